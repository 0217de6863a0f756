/* Cursors: exact little-endian bytes, latched bounds, strings with limits. */

#include "common/base/bytes.h"
#include "tests/lib/test.h"

TEST(test_encoding_is_little_endian)
{
    static const uint8_t expected[] = {0x01, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12, 0xef, 0xcd, 0xab, 0x89, 0x67,
                                       0x45, 0x23, 0x01, 0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0x00, 0x00, 0x00,
                                       0x00, 0x00, 0xc0, 0x03, 0x00, 'a',  'b',  'c',  0xff, 0xfe};
    uint8_t buffer[sizeof expected];
    struct writer w = writer_of(buffer, sizeof buffer);
    put_u8(&w, 1);
    put_u16(&w, 0x1234);
    put_u32(&w, 0x12345678);
    put_u64(&w, 0x0123456789abcdefu);
    put_f32(&w, 1.0f);
    put_f64(&w, -2.0);
    put_str(&w, "abc");
    put_bytes(&w, "\xff\xfe", 2);
    assert_false(w.bad);
    assert_int_equal(w.pos, sizeof expected);
    assert_memory_equal(buffer, expected, sizeof expected);

    struct reader r = reader_of(buffer, sizeof buffer);
    char text[4];
    assert_int_equal(get_u8(&r), 1);
    assert_int_equal(get_u16(&r), 0x1234);
    assert_int_equal(get_u32(&r), 0x12345678);
    assert_true(get_u64(&r) == 0x0123456789abcdefu);
    assert_true(get_f32(&r) == 1.0f);
    assert_true(get_f64(&r) == -2.0);
    get_str(&r, text, sizeof text);
    assert_string_equal(text, "abc");
    assert_false(reader_done(&r)); /* two bytes are left */
    assert_int_equal(reader_left(&r), 2);
    assert_ptr_equal(get_bytes(&r, 2), buffer + sizeof buffer - 2);
    assert_true(reader_done(&r));
}

TEST(test_reader_latches_at_end)
{
    const uint8_t data[5] = {1, 2, 3, 4, 5};
    struct reader r = reader_of(data, sizeof data);
    assert_int_equal(get_u32(&r), 0x04030201);
    assert_int_equal(get_u16(&r), 0); /* one byte short */
    assert_true(r.bad);
    assert_int_equal(get_u8(&r), 0); /* the remaining byte stays unreadable */
    assert_null(get_bytes(&r, 0));
    assert_null(get_bytes(&r, SIZE_MAX));
    assert_int_equal(reader_left(&r), 0);
    assert_false(reader_done(&r));

    r = reader_of(data, sizeof data);
    get_u8(&r);
    assert_null(get_bytes(&r, SIZE_MAX)); /* no wrap-around */
    assert_true(r.bad);

    r = reader_of(NULL, 0);
    assert_true(reader_done(&r));
    assert_int_equal(get_u64(&r), 0);
    assert_true(r.bad);
}

TEST(test_writer_latches_at_capacity)
{
    uint8_t buffer[8] = {0};
    struct writer w = writer_of(buffer, 6);
    put_u32(&w, 0xffffffff);
    put_u32(&w, 0xffffffff); /* does not fit: the writer must write no part of it */
    assert_true(w.bad);
    put_u8(&w, 7); /* fits, but the writer has failed */
    assert_int_equal(w.pos, 4);
    static const uint8_t expected[8] = {0xff, 0xff, 0xff, 0xff};
    assert_memory_equal(buffer, expected, sizeof buffer);

    w = writer_of(buffer, 2);
    put_u8(&w, 1);
    put_bytes(&w, buffer, SIZE_MAX);
    assert_true(w.bad);
}

TEST(test_strings_respect_limits)
{
    char text[4] = "xyz";
    const uint8_t long_text[] = {4, 0, 'a', 'b', 'c', 'd'}; /* needs five bytes */
    struct reader r = reader_of(long_text, sizeof long_text);
    get_str(&r, text, sizeof text);
    assert_true(r.bad);
    assert_string_equal(text, "");

    const uint8_t with_nul[] = {2, 0, 'a', 0};
    r = reader_of(with_nul, sizeof with_nul);
    get_str(&r, text, sizeof text);
    assert_true(r.bad);

    const uint8_t cut[] = {9, 0, 'a'};
    r = reader_of(cut, sizeof cut);
    get_str(&r, text, sizeof text);
    assert_true(r.bad);

    const uint8_t empty[] = {0, 0};
    r = reader_of(empty, sizeof empty);
    get_str(&r, text, sizeof text);
    assert_true(reader_done(&r));
    assert_string_equal(text, "");

    static char huge[65537];
    static uint8_t out[70000];
    memset(huge, 'a', 65536);
    struct writer w = writer_of(out, sizeof out);
    put_str(&w, huge); /* 65536 exceeds the length field */
    assert_true(w.bad);
    huge[65535] = 0;
    w = writer_of(out, sizeof out);
    put_str(&w, huge);
    assert_false(w.bad);
    assert_int_equal(w.pos, 65537);
}

/* Every bit pattern of a float survives, including NaN payloads. */
TEST(test_floats_keep_their_bits)
{
    static const uint32_t patterns[] = {0, 0x80000000, 1, 0x7f800000, 0xff800000, 0x7fc12345, 0x7f7fffff};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        uint8_t bytes[4];
        float v;
        memcpy(&v, &patterns[i], 4);
        struct writer w = writer_of(bytes, 4);
        put_f32(&w, v);
        struct reader r = reader_of(bytes, 4);
        v = get_f32(&r);
        assert_memory_equal(&v, &patterns[i], 4);
    }
}

TEST_MAIN(NULL, NULL)
