/* Codecs against hostile payloads and against every float there is.
 *
 * Byte 0 picks the codec and what the rest is, bytes 1 and 2 the number of floats. The rest is a payload to decode, or
 * the bits of floats to encode, or a spec. A refusal writes nothing; what is accepted is finite; encode takes back what
 * decode gave; lossless means bit for bit. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/mem.h"
#include "compress/codec.h"
#include "tests/fuzz/fuzz_check.h"

enum { N_MAX = 2048 };

static const char *const specs[] = {"fp32",     "bf16",     "int8:16",     "int8:256",
                                    "fp32+lz4", "bf16+lz4", "int8:64+lz4", "fp32+lz4+lz4"};

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
        for (size_t i = 0; i < n; i++) FUZZ_CHECK(isfinite(decoded[i]) && (x[i] != 0 || decoded[i] == 0));
        if (codec_lossless(codec)) FUZZ_CHECK(memcmp(x, decoded, n * sizeof *x) == 0);
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    const char *spec = specs[data[0] & 7];
    char text[64] = "";
    struct codec *codec = NULL;
    struct err err;
    if (data[0] & 0x80) { /* the rest is a spec */
        memcpy(text, data + 3, size - 3 < sizeof text - 1 ? size - 3 : sizeof text - 1);
        spec = text;
    }
    size_t n = 1 + (data[1] | (size_t)data[2] << 8) % N_MAX;
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 1};
    enum status status = codec_create(&codec, spec, &span, 1, &err);
    FUZZ_CHECK(status == codec_spec_check(spec, &err));
    if (status != STATUS_OK) {
        FUZZ_CHECK(status == STATUS_INVALID && data[0] & 0x80 && err.msg[0] && !strchr(err.msg, '\n'));
        return 0;
    }
    FUZZ_CHECK(codec_spec_check(codec_spec(codec), &err) == STATUS_OK);
    if (data[0] & 0x40)
        fuzz_encode(codec, n, data + 3, size - 3);
    else
        fuzz_decode(codec, n, data + 3, size - 3);
    codec_destroy(codec);
    return 0;
}
