#include "common/base/text.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

size_t text_character(const char *text, size_t n, uint32_t *code)
{
    assert(n);
    static const uint32_t least[5] = {0, 0x20, 0xa0, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)text;
    size_t len = p[0] < 0x7f ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (!len || len > n) return 0;
    uint32_t c = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (p[i] >> 6 != 2) return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    *code = c;
    return c >= least[len] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? len : 0;
}

bool text_is_clean(const char *text, size_t n, bool lines)
{
    uint32_t code;
    for (size_t i = 0, len; i < n; i += len) {
        bool space = lines && (text[i] == '\t' || text[i] == '\n' || text[i] == '\r');
        len = space ? 1 : text_character(text + i, n - i, &code);
        if (!len) return false;
        assert(len <= n - i);
    }
    return true;
}

/* Characters of the Unicode category Cf and line separators that fonts do not show, as first and last. */
bool text_is_hidden(uint32_t code)
{
    static const uint32_t hidden[][2] = {{0x61c, 0x61c},   {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
                                         {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i][0] && code <= hidden[i][1]) return true;
    return false;
}

/* Length of the character at the start of text[n] that a terminal may get; 0: there is none. */
static size_t visible(const char *text, size_t n, bool lines)
{
    uint32_t code = 0;
    if (lines && (*text == '\t' || *text == '\n')) return 1;
    size_t len = text_character(text, n, &code);
    return text_is_hidden(code) ? 0 : len;
}

bool text_is_name(const char *text, size_t n)
{
    for (size_t i = 0, len; i < n; i += len)
        if (!(len = visible(text + i, n - i, false))) return false;
    return true;
}

void text_make_clean_n(char *text, size_t n, bool lines)
{
    for (size_t len; n; n -= len, text += len) {
        len = visible(text, n, lines);
        if (len) continue;
        *text = '?';
        len = 1;
    }
}

void text_make_clean(char *line)
{
    text_make_clean_n(line, strlen(line), false);
}

void text_print(FILE *out, const char *fmt, ...)
{
    char text[16384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text_make_clean_n(text, strlen(text), true);
    fputs(text, out);
}

/* --- text in pieces ----------------------------------------------------------------------------------------------- */

/* True if more bytes can complete part[n] to a character. */
static bool is_incomplete(const char *part, size_t n)
{
    const unsigned char *p = (const unsigned char *)part;
    size_t len = p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 1;
    for (size_t i = 1; i < n; i++)
        if (p[i] >> 6 != 2) return false;
    return n < len;
}

/* Writes the beginning of the part: a visible character, or a mark in place of a hidden one or of a byte. */
static bool write_first(struct text_stream *s, FILE *out)
{
    static const char mark[] = "\xef\xbf\xbd";
    uint32_t code;
    size_t seen = visible(s->part, s->n, true), len = seen ? seen : text_character(s->part, s->n, &code);
    if (!len) len = 1;
    bool good = seen ? fwrite(s->part, 1, len, out) == len : fwrite(mark, 1, 3, out) == 3;
    s->n -= len;
    memmove(s->part, s->part + len, s->n);
    return good;
}

bool text_stream_put(struct text_stream *s, const char *text, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        assert(s->n < sizeof s->part);
        s->part[s->n++] = text[i];
        while (s->n && !is_incomplete(s->part, s->n))
            if (!write_first(s, out)) return false;
    }
    return true;
}

bool text_stream_end(struct text_stream *s, FILE *out)
{
    while (s->n)
        if (!write_first(s, out)) return false;
    return true;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

void text_add(char *out, size_t cap, const char *fmt, ...)
{
    size_t used = strlen(out);
    va_list args;
    assert(used < cap);
    va_start(args, fmt);
    vsnprintf(out + used, cap - used, fmt, args);
    va_end(args);
}

const char *text_shown(const char *text, size_t n, char out[TEXT_SHOWN])
{
    int most = n < TEXT_SHOWN ? (int)n : TEXT_SHOWN - 4;
    snprintf(out, TEXT_SHOWN, "%.*s%s", most, text, n < TEXT_SHOWN ? "" : "...");
    text_make_clean(out);
    return out;
}

int text_distance(const char *a, const char *b)
{
    int row[TEXT_DISTANCE_MAX + 1]; /* row[j]: distance of the first i bytes of a and the first j of b */
    int na = (int)strnlen(a, TEXT_DISTANCE_MAX), nb = (int)strnlen(b, TEXT_DISTANCE_MAX);
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    assert(row[nb] >= 0 && row[nb] <= (na > nb ? na : nb));
    return row[nb];
}
