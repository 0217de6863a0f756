#include "common/text.h"

#include <stdint.h>
#include <string.h>

/* Length of the UTF-8 sequence at p (n bytes left), 0 when it is malformed. */
static size_t utf8_sequence(const unsigned char *p, size_t n, uint32_t *code_p)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;
    if (!len || len > n) return 0;
    uint32_t code = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if (p[i] >> 6 != 2) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    *code_p = code;
    return code >= least[len] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? len : 0;
}

/* Length of the clean character at p, 0 when there is none. */
static size_t clean_character(const unsigned char *p, size_t n, bool lines)
{
    uint32_t code = 0;
    size_t len = utf8_sequence(p, n, &code);
    bool space = lines && (code == '\t' || code == '\n' || code == '\r');
    return (code < 0x20 && !space) || (code >= 0x7f && code < 0xa0) ? 0 : len;
}

bool text_is_clean(const char *text, size_t n, bool lines)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0, len; i < n; i += len) {
        len = clean_character(p + i, n - i, lines);
        if (!len) return false;
    }
    return true;
}

void text_make_clean(char *line)
{
    unsigned char *p = (unsigned char *)line;
    for (size_t n = strlen(line), len; n; n -= len, p += len) {
        len = clean_character(p, n, false);
        if (len) continue;
        *p = '?';
        len = 1;
    }
}
