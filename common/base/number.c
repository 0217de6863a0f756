#include "common/base/number.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool number_whole(const char *text, uint64_t *value)
{
    if (!*text || text[strspn(text, "0123456789")]) return false;
    errno = 0;
    unsigned long long parsed = strtoull(text, NULL, 10);
    if (errno) return false;
    *value = parsed;
    return true;
}

const char *number_real_text(double value, char out[NUMBER_REAL])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, NUMBER_REAL, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    return out;
}

const char *number_hex_text(const uint8_t *bytes, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return out;
}

bool number_hex(const char *text, uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++, text += 2) {
        const char two[3] = {text[0], text[0] ? text[1] : 0, 0};
        if (strspn(two, "0123456789abcdefABCDEF") != 2) return false;
        bytes[i] = (uint8_t)strtoul(two, NULL, 16);
    }
    return true;
}
