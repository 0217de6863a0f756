/* Which bytes are clean text, and how a line shows other bytes. */

#include "common/base/text.h"
#include "tests/lib/test.h"

TEST(test_only_valid_utf8_is_clean)
{
    static const struct {
        const char *text;
        size_t length;
        uint32_t code;
    } cases[] = {{" ", 1, 0x20},
                 {"~", 1, 0x7e},
                 {"\x7f", 0, 0},
                 {"\x1f", 0, 0},
                 {"\xc2\xa0", 2, 0xa0},
                 {"\xc2\x9f", 0, 0},
                 {"\xc3\xbc", 2, 0xfc},
                 {"\xc0\xa0", 0, 0},
                 {"\xe0\xa0\x80", 3, 0x800},
                 {"\xe0\x9f\xbf", 0, 0},
                 {"\xed\x9f\xbf", 3, 0xd7ff},
                 {"\xed\xa0\x80", 0, 0},
                 {"\xed\xbf\xbf", 0, 0},
                 {"\xee\x80\x80", 3, 0xe000},
                 {"\xf0\x90\x80\x80", 4, 0x10000},
                 {"\xf0\x8f\xbf\xbf", 0, 0},
                 {"\xf4\x8f\xbf\xbf", 4, 0x10ffff},
                 {"\xf4\x90\x80\x80", 0, 0},
                 {"\xf8\x88\x80\x80\x80", 0, 0},
                 {"\x80", 0, 0},
                 {"\xe2\x82", 0, 0},
                 {"\xc3z", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t code = 0;
        const char *text = cases[i].text;
        if (text_character(text, strlen(text), &code) != cases[i].length) fail_msg("case %zu", i);
        if (cases[i].length) assert_int_equal(code, cases[i].code);
        assert_int_equal(text_is_clean(text, strlen(text), false), cases[i].length > 0);
        if (cases[i].length > 1) assert_int_equal(text_character(text, cases[i].length - 1, &code), 0);
    }
}

TEST(test_line_breaks_are_clean_only_in_text)
{
    assert_true(text_is_clean("a\tb\r\n", 5, true));
    assert_true(text_is_clean("", 0, false));
    for (const char *p = "\t\r\n"; *p; p++) assert_false(text_is_clean(p, 1, false));
    assert_false(text_is_clean("\v", 1, true));
    char line[] = "a\tb\xc3\xbc\xc3 \xe2\x82";
    text_make_clean(line);
    assert_string_equal(line, "a?b\xc3\xbc? ??");
}

TEST(test_shown_text_is_clean_and_truncated)
{
    char out[TEXT_SHOWN], text[TEXT_SHOWN + 1];
    memset(text, 'x', sizeof text - 1);
    text[TEXT_SHOWN] = '\0';
    assert_string_equal(text_shown("one=two", 3, out), "one");
    assert_string_equal(text_shown("a\nb", 3, out), "a?b");
    assert_string_equal(text_shown(text, TEXT_SHOWN - 1, out), text + 1);
    text_shown(text, TEXT_SHOWN, out);
    assert_int_equal(strlen(out), TEXT_SHOWN - 1);
    assert_string_equal(out + TEXT_SHOWN - 5, "x...");
}

TEST(test_text_grows_as_far_as_it_fits)
{
    char out[8] = "ab";
    text_add(out, sizeof out, ", %d", 7);
    assert_string_equal(out, "ab, 7");
    text_add(out, sizeof out, ", %s", "long");
    assert_string_equal(out, "ab, 7, ");
    text_add(out, sizeof out, "more");
    assert_string_equal(out, "ab, 7, ");
}

TEST(test_hidden_characters_are_no_name_and_are_replaced)
{
    static const char *const hidden[] = {"\u061c", "\u200b", "\u200d", "\u200f", "\u2028", "\u202a",    "\u202e",
                                         "\u2060", "\u2066", "\u2069", "\ufeff", "\ufff9", "\U000e0041"};
    static const char *const seen[] = {"\u061b", "\u200a", "\u2010", "\u2027",
                                       "\u202f", "\u205f", "\u2070", "\U0001f40b"};
    char line[32];
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
        snprintf(line, sizeof line, "a%sb", hidden[i]);
        assert_true(text_is_clean(line, strlen(line), false)); /* it may be stored */
        assert_false(text_is_name(line, strlen(line)));
        text_make_clean(line);
        assert_int_equal(strlen(line), strlen(hidden[i]) + 2);
        assert_int_equal(strspn(line + 1, "?"), strlen(hidden[i]));
        assert_true(text_is_name(line, strlen(line)));
    }
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        snprintf(line, sizeof line, "%s", seen[i]);
        assert_true(text_is_name(line, strlen(line)));
        text_make_clean(line);
        assert_string_equal(line, seen[i]);
    }
    char bytes[] = "a\0\t\n\rb";
    text_make_clean_n(bytes, 6, true);
    assert_memory_equal(bytes, "a?\t\n?b", 6);
}

TEST(test_stream_shows_marks_in_place_of_what_a_terminal_obeys)
{
#define MARK "\ufffd"
    static const struct {
        const char *in, *out;
    } cases[] = {{"plain \t\n", "plain \t\n"},
                 {"\x1b]0;PWNED\x07", MARK "]0;PWNED" MARK},
                 {"\r\x7f\xc2\x9b", MARK MARK MARK MARK},
                 {"\u00e9\u20ac\U0001f40b", "\u00e9\u20ac\U0001f40b"},
                 {"\u202ea\u200b", MARK "a" MARK},
                 {"\xff\xfe\xe2\x82x", MARK MARK MARK MARK "x"},
                 {"\xf0\x9f\x90", MARK MARK MARK},
                 {"\xed\xa0\x80", MARK MARK MARK},
                 {"\xc3\xc3\xa9", MARK "\u00e9"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 4; piece++) {
            char *out = NULL;
            size_t size, n = strlen(cases[i].in);
            FILE *file = open_memstream(&out, &size);
            struct text_stream s = {.n = 0};
            for (size_t at = 0; at < n; at += piece)
                assert_true(text_stream_put(&s, cases[i].in + at, n - at < piece ? n - at : piece, file));
            assert_true(text_stream_end(&s, file));
            fclose(file);
            if (strcmp(out, cases[i].out) != 0) fail_msg("case %zu in pieces of %zu: \"%s\"", i, piece, out);
            free(out);
        }
}

TEST(test_distance_counts_changed_bytes)
{
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("rtt", "rtt"), 0);
}

TEST_MAIN(NULL, NULL)
