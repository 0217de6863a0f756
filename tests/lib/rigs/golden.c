#include "tests/lib/rigs/golden.h"
#include "tests/lib/test.h"

#include <unistd.h>

enum { LINE_BYTES = 32, GOLDEN_MAX = 1 << 20 };

static FILE *golden_open(const char *name, const char *mode)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/%s.hex", name);
    FILE *f = fopen(path, mode);
    if (!f) fail_msg("cannot open %s", path);
    return f;
}

bool golden_exists(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/%s.hex", name);
    return access(path, F_OK) == 0;
}

size_t golden_read(const char *name, uint8_t *out, size_t cap)
{
    FILE *f = golden_open(name, "r");
    size_t n = 0;
    unsigned byte;
    while (n < cap && fscanf(f, "%2x", &byte) == 1) out[n++] = (uint8_t)byte;
    char rest[2];
    int more = fscanf(f, " %1s", rest);
    fclose(f);
    if (more == 1) fail_msg("tests/golden/%s.hex: not hexadecimal, or more than %zu bytes", name, cap);
    return n;
}

static void golden_write(const char *name, const uint8_t *bytes, size_t size)
{
    FILE *f = golden_open(name, "w");
    for (size_t i = 0; i < size; i++)
        fprintf(f, "%02x%s", bytes[i], (i + 1) % LINE_BYTES == 0 || i + 1 == size ? "\n" : "");
    fclose(f);
}

void golden_check(const char *name, const uint8_t *bytes, size_t size)
{
    const char *write = getenv("ATOLL_GOLDEN");
    if (write && !strcmp(write, "write")) golden_write(name, bytes, size);
    static uint8_t want[GOLDEN_MAX];
    size_t n = golden_read(name, want, sizeof want);
    for (size_t i = 0; i < n && i < size; i++)
        if (bytes[i] != want[i])
            fail_msg("%s: byte %zu is %02x, expected %02x: the format changed", name, i, bytes[i], want[i]);
    if (n != size) fail_msg("%s: %zu bytes, expected %zu: the format changed", name, size, n);
}
