/* Codecs against hostile payloads and against every float there is.
 *
 * Byte 0 picks the codec and what the rest is, byte 1 the number of floats. The rest is a payload to decode, or
 * the bits of floats to encode, or a spec. A refusal writes nothing; what is accepted is finite; encode takes back what
 * decode gave; lossless means bit for bit. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/mem.h"
#include "compress/codec.h"
#include "tests/fuzz/codec_specs.h"
#include "tests/fuzz/fuzz_check.h"

static const size_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 500, 1000, 2048};

enum { N_SPECS = sizeof codec_specs / sizeof *codec_specs, N_SIZES = sizeof sizes / sizeof *sizes, N_MAX = 2048 };

static void fuzz_decode(struct codec *codec, size_t n, const uint8_t *data, size_t size)
{
    static float x[N_MAX], acc[N_MAX], untouched[N_MAX], again[N_MAX];
    for (size_t i = 0; i < n; i++) untouched[i] = x[i] = acc[i] = (float)i + 0.5f;
    enum status status = codec_decode(codec, data, size, x);
    FUZZ_CHECK(codec_decode_axpy(codec, 0.0f, data, size, acc) == status);
    FUZZ_CHECK(memcmp(acc, untouched, n * sizeof *acc) == 0); /* 0 times finite is 0 */
    if (status != STATUS_OK) {
        FUZZ_CHECK(status == STATUS_CORRUPT || status == STATUS_NONFINITE);
        FUZZ_CHECK(memcmp(x, untouched, n * sizeof *x) == 0);
        return;
    }
    for (size_t i = 0; i < n; i++) FUZZ_CHECK(isfinite(x[i]));
    uint8_t *bytes = malloc(codec_bound(codec));
    FUZZ_CHECK(bytes);
    size_t encoded;
    FUZZ_CHECK(codec_encode(codec, x, bytes, codec_bound(codec), &encoded, NULL) == STATUS_OK);
    FUZZ_CHECK(codec_decode(codec, bytes, encoded, again) == STATUS_OK);
    if (codec_lossless(codec)) FUZZ_CHECK(memcmp(x, again, n * sizeof *x) == 0);
    free(bytes);
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
        const char *spec = codec_spec(codec); /* two have no zero among their levels */
        bool no_zero = !strncmp(spec, "1bit", 4) || !strncmp(spec, "2bit", 4);
        for (size_t i = 0; i < n; i++) FUZZ_CHECK(isfinite(decoded[i]) && (no_zero || x[i] != 0 || decoded[i] == 0));
        if (codec_lossless(codec)) FUZZ_CHECK(memcmp(x, decoded, n * sizeof *x) == 0);
    }
    free(bytes);
}

/* Kept between inputs: making one costs more than using it. */
static struct codec *codec_of(unsigned spec, unsigned size)
{
    static struct codec *made[N_SPECS][N_SIZES];
    struct codec **slot = &made[spec][size];
    struct codec_span spans[2];
    size_t n_spans = codec_specs_spans(sizes[size], spans);
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    unsigned n = data[1] % N_SIZES;
    struct codec *codec = codec_of((data[0] & 0x3f) % N_SPECS, n);
    if (data[0] & 0x80)
        fuzz_spec(data + 2, size - 2);
    else if (data[0] & 0x40)
        fuzz_encode(codec, sizes[n], data + 2, size - 2);
    else
        fuzz_decode(codec, sizes[n], data + 2, size - 2);
    return 0;
}
