#include "common/base/text.h"

#include <assert.h>
#include <stdio.h>
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

void text_make_clean(char *line)
{
    uint32_t code;
    for (size_t n = strlen(line), len; n; n -= len, line += len) {
        len = text_character(line, n, &code);
        if (len) continue;
        *line = '?';
        len = 1;
    }
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
