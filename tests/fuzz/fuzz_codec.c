/* Codecs against hostile payloads and against every float.
 *
 * Byte 0 selects the codec and the kind of the rest, byte 1 the number of floats. The rest is a payload to decode,
 * the bits of floats to encode, or a spec.
 * - A refused payload writes nothing.
 * - Accepted values are finite.
 * - encode accepts the output of decode.
 * - A lossless codec returns the same bits.
 *
 * ATOLL_FUZZ_SPEC names one codec of codec_specs.h: byte 0 is then ignored and every input is a payload for that
 * codec. "list" prints the names. Such a run counts the payloads of each decoder and prints the counts at the end. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "compress/codec.h"
#include "tests/fuzz/codec_specs.h"
#include "tests/fuzz/fuzz_check.h"

static const size_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 500, 1000, 2048};

enum { N_SPECS = sizeof codec_specs / sizeof *codec_specs, N_SIZES = sizeof sizes / sizeof *sizes };
enum { N_MAX = CODEC_SPECS_LARGE, SMALL = 2048 };

static struct {
    unsigned long long executions, accepted;
} counts[N_SPECS];

/* A refused payload leaves both outputs unchanged. Large fragments are only opened, because open makes all checks. */
static enum status fuzz_refusal(struct codec *codec, size_t n, const uint8_t *data, size_t size)
{
    static float x[SMALL], acc[SMALL], untouched[SMALL];
    struct codec_view view;
    if (n > SMALL) return codec_open(codec, data, size, NULL, &view);
    for (size_t i = 0; i < n; i++) untouched[i] = x[i] = acc[i] = (float)i + 0.5f;
    enum status status = codec_decode(codec, data, size, x);
    if (status != STATUS_OK) FUZZ_CHECK(memcmp(x, untouched, n * sizeof *x) == 0);
    if (status != STATUS_OK && size % 8)
        return status; /* add refuses at the same point as decode: check only some
                        * sizes */
    FUZZ_CHECK(codec_decode_axpy(codec, 0.0f, data, size, acc) == status);
    FUZZ_CHECK(memcmp(acc, untouched, n * sizeof *acc) == 0); /* 0 times a finite value is 0 */
    return status;
}

static bool fuzz_decode(struct codec *codec, size_t n, const uint8_t *data, size_t size)
{
    static float x[N_MAX], again[N_MAX];
    enum status status = fuzz_refusal(codec, n, data, size);
    if (status != STATUS_OK) {
        FUZZ_CHECK(status == STATUS_CORRUPT || status == STATUS_NONFINITE);
        return false;
    }
    FUZZ_CHECK(codec_decode(codec, data, size, x) == STATUS_OK);
    for (size_t i = 0; i < n; i++) FUZZ_CHECK(isfinite(x[i]));
    uint8_t *bytes = malloc(codec_bound(codec));
    FUZZ_CHECK(bytes);
    size_t encoded;
    FUZZ_CHECK(codec_encode(codec, x, bytes, codec_bound(codec), &encoded, NULL) == STATUS_OK);
    FUZZ_CHECK(codec_decode(codec, bytes, encoded, again) == STATUS_OK);
    if (codec_lossless(codec)) FUZZ_CHECK(memcmp(x, again, n * sizeof *x) == 0);
    free(bytes);
    return true;
}

static void fuzz_encode(struct codec *codec, size_t n, const uint8_t *data, size_t size)
{
    static float x[N_MAX], decoded[N_MAX];
    size_t encoded = 0, bad = n, first = n;
    memset(x, 0, n * sizeof *x);
    memcpy(x, data, size < n * sizeof *x ? size : n * sizeof *x);
    for (size_t i = n; i-- > 0;)
        if (!isfinite(x[i])) first = i;
    uint8_t *bytes = malloc(codec_bound(codec));
    FUZZ_CHECK(bytes);
    enum status status = codec_encode(codec, x, bytes, codec_bound(codec), &encoded, &bad);
    FUZZ_CHECK(status == (first < n ? STATUS_NONFINITE : STATUS_OK) && bad == first);
    if (status == STATUS_OK) {
        FUZZ_CHECK(encoded <= codec_bound(codec));
        FUZZ_CHECK(codec_decode(codec, bytes, encoded, decoded) == STATUS_OK);
        const char *spec = codec_spec(codec); /* two codecs have no level at zero */
        bool no_zero = !strncmp(spec, "1bit", 4) || !strncmp(spec, "2bit", 4);
        for (size_t i = 0; i < n; i++) FUZZ_CHECK(isfinite(decoded[i]) && (no_zero || x[i] != 0 || decoded[i] == 0));
        if (codec_lossless(codec)) FUZZ_CHECK(memcmp(x, decoded, n * sizeof *x) == 0);
    }
    free(bytes);
}

static size_t size_of(unsigned spec, unsigned size)
{
    return spec == CODEC_SPECS_LARGE_AT ? CODEC_SPECS_LARGE : sizes[size];
}

/* Keeps codecs between inputs: creating one costs more than using it. */
static struct codec *codec_of(unsigned spec, unsigned size)
{
    static struct codec *made[N_SPECS][N_SIZES];
    struct codec **slot = &made[spec][spec == CODEC_SPECS_LARGE_AT ? 0 : size];
    struct codec_span spans[2];
    size_t n_spans = codec_specs_spans(size_of(spec, size), spans);
    if (!*slot) FUZZ_CHECK(codec_create(slot, codec_specs[spec], spans, n_spans, NULL) == STATUS_OK);
    return *slot;
}

static void fuzz_spec(const uint8_t *data, size_t size)
{
    char text[80] = "";
    struct codec *codec = NULL;
    struct err err;
    const struct codec_span span = {.count = 3, .rows = 1, .cols = 3, .ndim = 1};
    memcpy(text, data, size < sizeof text - 1 ? size : sizeof text - 1);
    enum status status = codec_create(&codec, text, &span, 1, &err);
    FUZZ_CHECK(status == codec_spec_check(text, &err));
    if (status != STATUS_OK) {
        FUZZ_CHECK(status == STATUS_INVALID && err.msg[0] && !strchr(err.msg, '\n'));
        return;
    }
    FUZZ_CHECK(codec_spec_check(codec_spec(codec), &err) == STATUS_OK);
    codec_destroy(codec);
}

static void print_counts(void)
{
    for (unsigned i = 0; i < N_SPECS; i++)
        if (counts[i].executions)
            printf("%-24s %llu payloads, %llu accepted, %llu refused\n", codec_specs[i], counts[i].executions,
                   counts[i].accepted, counts[i].executions - counts[i].accepted);
}

/* Returns the codec that ATOLL_FUZZ_SPEC names; N_SPECS: none. */
static unsigned chosen_spec(void)
{
    const char *name = getenv("ATOLL_FUZZ_SPEC");
    unsigned spec = 0;
    if (!name) return N_SPECS;
    for (unsigned i = 0; i < N_SPECS && !strcmp(name, "list"); i++) puts(codec_specs[i]);
    if (!strcmp(name, "list")) {
        fflush(stdout);
        _Exit(0); /* libFuzzer reports exit() as a crash */
    }
    while (spec < N_SPECS && strcmp(codec_specs[spec], name) != 0) spec++;
    if (spec == N_SPECS) {
        fprintf(stderr, "fuzz_codec: \"%s\" is not in tests/fuzz/codec_specs.h; ATOLL_FUZZ_SPEC=list prints it\n",
                name);
        _Exit(2);
    }
    atexit(print_counts);
    return spec;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned chosen = N_SPECS + 1;
    if (chosen > N_SPECS) chosen = chosen_spec();
    bool all = chosen == N_SPECS;
    if (size < 2 && all) return 0;
    if (size < 2) { /* an empty payload is valid input */
        data = (const uint8_t *)"\0";
        size = 2;
    }
    unsigned at = data[1] % N_SIZES, spec = all ? (data[0] & 0x3f) % N_SPECS : chosen;
    struct codec *codec = codec_of(spec, at);
    size_t n = size_of(spec, at);
    if (all && data[0] & 0x80) {
        fuzz_spec(data + 2, size - 2);
    } else if (all && data[0] & 0x40) {
        fuzz_encode(codec, n, data + 2, size - 2);
    } else {
        counts[spec].executions++;
        counts[spec].accepted += fuzz_decode(codec, n, data + 2, size - 2);
    }
    return 0;
}
