/* Top-k against a slow reference written from docs/codecs.md: it sorts, and writes one bit at a time. Same bytes, same
 * values, from every instruction set, for every kind of input, shape and value form. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "common/rng.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"

enum { N_MAX = 300000, BITS_MAX = 8 << 20 };

enum form { SIGN, TWO_BIT, INT8, FP16, N_FORMS };
static const char *const form_names[] = {"sign", "2bit", "int8", "fp16"};

/* ---- the reference ------------------------------------------------------------------------------------------------
 */

struct pick {
    uint32_t index, magnitude, code;
    bool negative;
};

struct chunk {
    struct pick *picks;
    uint32_t n, k, length, low, high; /* low, high: codes of scales */
};

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static int by_magnitude(const void *a, const void *b)
{
    const struct pick *x = a, *y = b;
    if (x->magnitude != y->magnitude) return x->magnitude < y->magnitude ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static int by_index(const void *a, const void *b)
{
    const struct pick *x = a, *y = b;
    return x->index < y->index ? -1 : 1;
}

static unsigned mantissa_of(enum form form)
{
    static const unsigned mantissa[] = {4, 5, 7, 0};
    return mantissa[form];
}

static uint32_t nearest_scale(enum form form, double value)
{
    float x = (float)value;
    unsigned drop = 23 - mantissa_of(form);
    uint64_t code = ((uint64_t)to_bits(x) + (1ull << (drop - 1))) >> drop, largest = (255ull << mantissa_of(form)) - 1;
    return (uint32_t)(code < largest ? code : largest);
}

static float scale_of(enum form form, uint32_t code)
{
    return from_bits(code << (23 - mantissa_of(form)));
}

/* Nearest positive fp16 below 2 to y, by search over all of them; never 0. */
static uint32_t nearest_half(double y)
{
    uint32_t best = 1;
    double least = INFINITY;
    for (uint32_t h = 1; h < 0x4000; h++) {
        double value = h < 0x400 ? ldexp(h, -24) : ldexp(1024 + (h & 1023), (int)(h >> 10) - 25);
        double off = fabs(value - y);
        if (off < least || (off == least && !(h & 1))) {
            least = off;
            best = h;
        }
    }
    return best;
}

static void quantize(enum form form, struct chunk *c)
{
    double sum = 0, part[2] = {0, 0};
    uint32_t largest = 0, count[2] = {0, 0};
    for (uint32_t i = 0; i < c->n; i++) {
        sum += (double)from_bits(c->picks[i].magnitude);
        if (c->picks[i].magnitude > largest) largest = c->picks[i].magnitude;
    }
    if (!c->n) return;
    float mean = (float)(sum / c->n);
    if (form == SIGN) c->low = nearest_scale(form, mean);
    if (form == INT8) c->low = nearest_scale(form, from_bits(largest));
    if (form == FP16) c->low = largest >> 23;
    for (uint32_t i = 0; i < c->n && form == TWO_BIT; i++) {
        float x = from_bits(c->picks[i].magnitude);
        part[x > mean] += (double)x;
        count[x > mean]++;
    }
    if (form == TWO_BIT) {
        c->low = nearest_scale(form, part[0] / count[0]);
        c->high = count[1] ? nearest_scale(form, part[1] / count[1]) : c->low;
    }
    if (c->low < 27u << mantissa_of(form)) {
        c->low = c->n = 0;
        return;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct pick *p = &c->picks[i];
        float x = from_bits(p->magnitude), scale = scale_of(form, c->low);
        p->code = p->negative;
        if (form == TWO_BIT) p->code |= (uint32_t)(x > mean) << 1;
        if (form == INT8) p->code |= (uint32_t)(fmin(fmax(rint((double)(x / scale) * 128), 1), 128) - 1) << 1;
        if (form == FP16) p->code |= nearest_half(ldexp((double)x, 127 - (int)c->low)) << 1;
    }
}

static float value_of(enum form form, const struct chunk *c, uint32_t code)
{
    double scale = (double)scale_of(form, c->low), h = code >> 1, x = scale;
    if (form == TWO_BIT && code & 2) x = (double)scale_of(form, c->high);
    if (form == INT8) x = scale * (h + 1) / 128;
    if (form == FP16) x = scale * (h < 1024 ? ldexp(h, -24) : ldexp(1024 + fmod(h, 1024), (int)(h / 1024) - 25));
    return (float)(code & 1 ? -x : x);
}

static struct chunk choose(enum form form, const float *x, uint32_t length, uint32_t k)
{
    struct chunk c = {.picks = calloc(length, sizeof *c.picks), .k = k, .length = length};
    for (uint32_t i = 0; i < length; i++)
        c.picks[i] = (struct pick){.index = i, .magnitude = to_bits(x[i]) & 0x7fffffff, .negative = signbit(x[i])};
    qsort(c.picks, length, sizeof *c.picks, by_magnitude);
    while (c.n < k && c.picks[c.n].magnitude) c.n++;
    qsort(c.picks, c.n, sizeof *c.picks, by_index);
    quantize(form, &c);
    return c;
}

/* One bit a byte. */
static uint8_t bits[BITS_MAX];
static size_t n_bits;

static void put(uint64_t value, unsigned n)
{
    for (unsigned i = 0; i < n; i++) bits[n_bits++] = value >> i & 1;
}

static void put_step(enum form form, unsigned rice, bool fits, uint32_t folded, uint32_t code)
{
    if (!fits || folded >> rice >= 12) {
        put(0, 12);
        put(code, 8 + mantissa_of(form));
    } else {
        put(1ull << (folded >> rice), (folded >> rice) + 1);
        put(folded, rice);
    }
}

static void put_gap(uint32_t m, uint32_t gap)
{
    unsigned c = 0;
    while ((1u << c) < m) c++;
    uint32_t u = (1u << c) - m, r = gap % m;
    for (uint32_t i = 0; i < gap / m; i++) put(0, 1);
    put(1, 1);
    if (r < u) {
        put(r, c - 1);
    } else if (c) {
        put((r + u) >> 1, c - 1);
        put((r + u) & 1, 1);
    }
}

static size_t gaps_of(const struct chunk *c, uint32_t *gaps)
{
    uint32_t next = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < c->n; next = c->picks[i++].index + 1) gaps[n++] = c->picks[i].index - next;
    if (c->n && c->n < c->k) gaps[n++] = c->length - next;
    return n;
}

static void put_group(enum form form, const struct chunk *chunks, size_t n, uint8_t *dst, size_t *pos)
{
    static const unsigned rice[] = {1, 2, 4, 1}, value_bits[] = {1, 2, 8, 15};
    static uint32_t gaps[70000];
    uint64_t sum = 0, count = 0;
    uint32_t previous = 0;
    for (size_t i = 0; i < n; i++) {
        size_t some = gaps_of(&chunks[i], gaps);
        count += some;
        for (size_t g = 0; g < some; g++) sum += gaps[g];
    }
    /* ln 2 (mean + 1/2), rounded, in integers */
    uint64_t m = count ? ((2 * sum + count) * 45426 + 65536 * count) / (131072 * count) : 1;
    if (!m) m = 1;
    dst[(*pos)++] = (uint8_t)m;
    dst[(*pos)++] = (uint8_t)(m >> 8);
    n_bits = 0;
    for (size_t i = 0; i < n; i++) {
        const struct chunk *c = &chunks[i];
        int64_t step = (int64_t)c->low - previous;
        put_step(form, rice[form], c->low && previous, (uint32_t)(step < 0 ? -2 * step - 1 : 2 * step), c->low);
        if (!c->low) continue;
        previous = c->low;
        if (form == TWO_BIT) put_step(form, 3, true, c->high - c->low, c->high);
        size_t some = gaps_of(c, gaps);
        for (size_t g = 0; g < some; g++) {
            put_gap((uint32_t)m, gaps[g]);
            if (g < c->n) put(c->picks[g].code, value_bits[form]);
        }
    }
    while (n_bits % 8) bits[n_bits++] = 0;
    assert_true(n_bits < BITS_MAX);
    for (size_t i = 0; i < n_bits; i += 8) {
        uint8_t byte = 0;
        for (unsigned b = 0; b < 8; b++) byte |= (uint8_t)(bits[i + b] << b);
        dst[(*pos)++] = byte;
    }
}

static void put_bf16(float x, uint8_t *dst, float *decoded)
{
    uint32_t b = to_bits(x), up = (b + 0x7fff + (b >> 16 & 1)) >> 16;
    if ((up & 0x7fff) == 0x7f80) up--;
    dst[0] = (uint8_t)up;
    dst[1] = (uint8_t)(up >> 8);
    *decoded = from_bits(up << 16);
}

/* The whole payload, what it decodes to, and which coordinates it carries. */
static size_t reference(enum form form, uint32_t k, uint32_t chunk, const struct codec_span *spans, size_t n_spans,
                        const float *x, uint8_t *dst, float *decoded, bool *carried)
{
    enum { GROUPS_MAX = 2000 };
    static struct chunk chunks[GROUPS_MAX];
    size_t n_chunks = 0, n_dense = 0, per = 131072 / chunk, pos;
    for (size_t s = 0; s < n_spans; s++) {
        for (size_t at = 0, left; at < spans[s].count && spans[s].ndim > 1; at += chunk) {
            left = (size_t)spans[s].count - at < chunk ? (size_t)spans[s].count - at : chunk;
            const size_t from = (size_t)spans[s].offset + at;
            struct chunk c = choose(form, x + from, (uint32_t)left, (uint32_t)((k * left + chunk - 1) / chunk));
            for (size_t i = from; i < from + left; i++) decoded[i] = -0.0f, carried[i] = false;
            for (uint32_t i = 0; i < c.n; i++) {
                decoded[from + c.picks[i].index] = value_of(form, &c, c.picks[i].code);
                carried[from + c.picks[i].index] = true;
            }
            assert_true(n_chunks < GROUPS_MAX);
            chunks[n_chunks++] = c;
        }
        for (size_t i = (size_t)spans[s].offset; spans[s].ndim == 1 && i < spans[s].offset + spans[s].count; i++) {
            put_bf16(x[i], dst + 2 * n_dense++, &decoded[i]);
            carried[i] = true;
        }
    }
    size_t groups = (n_chunks + per - 1) / per, offsets = 2 * n_dense,
           first = offsets + (groups ? 4 * (groups - 1) : 0);
    pos = first;
    for (size_t g = 0; g < groups; g++) {
        uint32_t offset = (uint32_t)(pos - first);
        if (g) memcpy(dst + offsets + 4 * (g - 1), &offset, 4);
        put_group(form, chunks + g * per, n_chunks - g * per < per ? n_chunks - g * per : per, dst, &pos);
    }
    for (size_t i = 0; i < n_chunks; i++) free(chunks[i].picks);
    return pos;
}

/* ---- inputs --------------------------------------------------------------------------------------------------------
 */

enum kind { NORMAL, ZEROS, SPARSE, TIES, EQUAL, DENORMAL, WIDE, HUGE_VALUES, ANY_BITS, RAMP, STEPS, POWERS, N_KINDS };

static void fill(enum kind kind, float *x, size_t n)
{
    rng_normal_fill(3, RNG_TEST, 1u << 20, 1e-3f, x, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = rng_u64(4, RNG_TEST, i);
        uint32_t b = (uint32_t)r;
        switch (kind) {
        case ZEROS: x[i] = i & 1 ? -0.0f : 0.0f; break;
        case SPARSE: x[i] = r % 150 ? r % 3 ? 0.0f : -0.0f : x[i]; break;
        case TIES: x[i] = (float)((int)(r % 9) - 4); break;
        case EQUAL: x[i] = r & 1 ? 0.3f : -0.3f; break;
        case DENORMAL: x[i] *= i / 1000 % 2 ? 1e-37f : 3e-28f; break; /* around the smallest that is sent */
        case WIDE: x[i] = ldexpf(x[i], (int)(r % 200) - 100); break;
        case HUGE_VALUES: x[i] = r & 1 ? FLT_MAX : r & 2 ? -FLT_MAX : x[i] * 1e38f; break;
        case ANY_BITS:
            if ((b & 0x7f800000u) == 0x7f800000u) b &= 0x807fffffu;
            x[i] = from_bits(b);
            break;
        case RAMP: x[i] = (float)i; break;                            /* each guess is too low */
        case STEPS: x[i] = ldexpf(x[i], -(int)(i / 700 % 40)); break; /* each guess is too high, then too low */
        /* Each guess is too high, and the sure one is a value itself. */
        case POWERS: x[i] = ldexpf(r & 8 ? 1.0f : -1.0f, (int)(r % 3) - 3 * (int)(i / 256 % 30)); break;
        default: break;
        }
    }
}

/* ---- the tests -----------------------------------------------------------------------------------------------------
 */

static float x[N_MAX], decoded[N_MAX], expected[N_MAX], acc[N_MAX], weight[N_MAX], plain[N_MAX];
static bool carried[N_MAX];
static uint8_t wanted[2 * N_MAX + 100000];

static bool same(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) == 0;
}

static void check_parts(struct codec *codec, const uint8_t *bytes, size_t size, size_t n)
{
    struct codec_view view;
    size_t end = 0, parts = codec_parts(codec);
    assert_int_equal(codec_open_room(codec), 0);
    assert_int_equal(codec_open(codec, bytes, size, NULL, &view), STATUS_OK);
    for (size_t p = 0; p < parts; p++) {
        struct codec_part part = codec_part(codec, p);
        assert_int_equal(part.index, p);
        assert_int_equal(part.from, end);
        assert_true(part.to > part.from);
        end = part.to;
    }
    assert_int_equal(end, n);
    for (size_t i = 0; i < n; i++) acc[i] = plain[i] = (float)i - 7.25f, weight[i] = 3.0f;
    for (size_t p = parts; p-- > 0;) {
        size_t from = codec_part(codec, p).from;
        codec_view_decode(&view, p, decoded + from);
        codec_view_axpy(&view, p, 0.7f, plain + from);
        codec_view_axpy_weigh(&view, p, 0.7f, acc + from, weight + from);
    }
    assert_true(same(decoded, expected, n * sizeof *x));
    assert_true(same(acc, plain, n * sizeof *x));
    for (size_t i = 0; i < n; i++) {
        volatile float product = 0.7f * expected[i];
        if (acc[i] != (float)i - 7.25f + product) fail_msg("coordinate %zu", i);
        assert_true(weight[i] == (carried[i] ? 3.7f : 3.0f));
    }
}

static void check_against_reference(enum form form, uint32_t k, uint32_t chunk, const struct codec_span *spans,
                                    size_t n_spans, enum kind kind)
{
    char spec[64];
    struct codec *codec = NULL;
    snprintf(spec, sizeof spec, "topk:%u/%u+%s", k, chunk, form_names[form]);
    assert_int_equal(codec_create(&codec, spec, spans, n_spans, NULL), STATUS_OK);
    assert_true(codec_sparse(codec));
    size_t n = codec_count(codec), bound = codec_bound(codec), size = 0;
    fill(kind, x, n);
    size_t want = reference(form, k, chunk, spans, n_spans, x, wanted, expected, carried);
    uint8_t *bytes = mem_alloc(1, bound + 1);
    assert_in_range(want, 1, bound);
    for (int simd = CODEC_SIMD_PLAIN; simd <= CODEC_SIMD_AVX512; simd++) {
        codec_simd_limit((enum codec_simd)simd);
        memset(bytes, 0xee, bound + 1);
        assert_int_equal(codec_encode(codec, x, bytes, bound, &size, NULL), STATUS_OK);
        if (size != want || !same(bytes, wanted, want)) {
            size_t at = 0;
            while (at < size && at < want && bytes[at] == wanted[at]) at++;
            fail_msg("%s, kind %d, n %zu, simd %d: %zu bytes for %zu, byte %zu", spec, kind, n, simd, size, want, at);
        }
        assert_int_equal(bytes[bound], 0xee);
        assert_int_equal(codec_encode(codec, x, bytes, want, &size, NULL), STATUS_OK);
        assert_int_equal(codec_encode(codec, x, bytes, want - 1, &size, NULL), STATUS_LIMIT);
        assert_int_equal(codec_encode(codec, x, bytes, want, &size, NULL), STATUS_OK);
        memset(decoded, 0xee, n * sizeof *x);
        assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
        if (!same(decoded, expected, n * sizeof *x)) {
            for (size_t i = 0; i < n; i++)
                if (!same(&decoded[i], &expected[i], 4))
                    fail_msg("%s, kind %d: %zu decodes to %a for %a, was %a", spec, kind, i, decoded[i], expected[i],
                             x[i]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(expected[i]));
        if (x[i] == 0) assert_true(expected[i] == 0);
        if (expected[i] != 0) assert_true(signbit(expected[i]) == signbit(x[i]));
    }
    check_parts(codec, bytes, size, n);
    mem_free(bytes);
    codec_destroy(codec);
}

static void test_matrix_sizes(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {/* n, K, CHUNK */
                                         {1, 1, 256},      {2, 255, 256},     {255, 3, 256},   {256, 3, 256},
                                         {257, 3, 256},    {1000, 64, 256},   {700, 255, 256}, {5000, 1, 512},
                                         {9000, 64, 4096}, {70000, 16, 65536}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int form = 0; form < N_FORMS; form++)
            for (int kind = 0; kind < N_KINDS; kind++) {
                if (form == FP16 && shapes[s][0] > 1000 && kind != NORMAL && kind != WIDE)
                    continue; /* a slow reference */
                const uint32_t n = shapes[s][0];
                const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
                check_against_reference((enum form)form, shapes[s][1], shapes[s][2], &span, 1, (enum kind)kind);
            }
    assert_int_equal(mem_live_bytes(), 0);
}

/* Several groups, short chunks in the middle, 1-D tensors before, between and behind. */
static void test_many_tensors(void **state)
{
    (void)state;
    static const uint32_t tensors[][2] = {/* count, dimensions */
                                          {77, 1},    {40000, 2}, {1, 1},   {3, 2},   {600, 1},
                                          {99999, 3}, {5, 2},     {256, 2}, {511, 2}, {300, 1}};
    enum { T = sizeof tensors / sizeof *tensors };
    struct codec_span spans[T];
    uint64_t n = 0;
    for (size_t t = 0; t < T; n += tensors[t++][0])
        spans[t] = (struct codec_span){
            .offset = n, .count = tensors[t][0], .rows = 1, .cols = tensors[t][0], .ndim = (uint8_t)tensors[t][1]};
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_against_reference(SIGN, 4, 256, spans, T, (enum kind)kind);
        check_against_reference(TWO_BIT, 100, 1024, spans, T, (enum kind)kind);
        check_against_reference(INT8, 64, 4096, spans, T, (enum kind)kind);
    }
    check_against_reference(FP16, 1, 512, spans, T, NORMAL);
    check_against_reference(SIGN, 4, 256, spans, 1, NORMAL); /* 1-D only: no chunk at all */
    check_against_reference(SIGN, 4, 256, spans, 2, WIDE);
    assert_int_equal(mem_live_bytes(), 0);
}

/* More than one part. */
static void test_large(void **state)
{
    (void)state;
    const struct codec_span span = {.count = N_MAX, .rows = 3, .cols = N_MAX / 3, .ndim = 2};
    check_against_reference(SIGN, 64, 4096, &span, 1, NORMAL);
    check_against_reference(SIGN, 64, 4096, &span, 1, SPARSE);
    check_against_reference(TWO_BIT, 1000, 4096, &span, 1, STEPS);
    check_against_reference(INT8, 8, 65536, &span, 1, TIES);
    check_against_reference(SIGN, 4, 256, &span, 1, STEPS);
}

/* What the issue asks for: all bytes counted, against log2 of the number of choices and a sign. */
static void test_size_on_noise(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    const struct codec_span span = {.count = N, .rows = 64, .cols = N / 64, .ndim = 2};
    static const struct {
        const char *spec;
        double most;
    } cases[] = {{"topk:64/4096+sign", 0.1335}, {"topk:128/4096+sign", 0.2345}, {"topk:64/4096+2bit", 0.1505}};
    rng_normal_fill(8, RNG_TEST, 0, 1e-3f, x, N);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct codec *codec = NULL;
        size_t size;
        assert_int_equal(codec_create(&codec, cases[i].spec, &span, 1, NULL), STATUS_OK);
        uint8_t *bytes = mem_alloc(1, codec_bound(codec));
        assert_int_equal(codec_encode(codec, x, bytes, codec_bound(codec), &size, NULL), STATUS_OK);
        if (8.0 * (double)size / N > cases[i].most) fail_msg("%s: %.4f bits", cases[i].spec, 8.0 * (double)size / N);
        mem_free(bytes);
        codec_destroy(codec);
    }
}

/* 1-D tensors take 16 bits a value, at a small model most of the bytes; an entropy stage knows where they lie. */
static void test_vectors_have_entropy(void **state)
{
    (void)state;
    enum { MATRIX = 1 << 18, VECTOR = 8192 };
    const struct codec_span spans[2] = {{.count = MATRIX, .rows = 64, .cols = MATRIX / 64, .ndim = 2},
                                        {.offset = MATRIX, .count = VECTOR, .rows = 1, .cols = VECTOR, .ndim = 1}};
    size_t size[2];
    rng_normal_fill(8, RNG_TEST, 0, 1e-3f, x, MATRIX + VECTOR);
    for (int i = 0; i < 2; i++) {
        struct codec *codec = NULL;
        assert_int_equal(codec_create(&codec, i ? "topk:64/4096+sign+huff" : "topk:64/4096+sign", spans, 2, NULL),
                         STATUS_OK);
        uint8_t *bytes = mem_alloc(1, codec_bound(codec));
        assert_int_equal(codec_encode(codec, x, bytes, codec_bound(codec), &size[i], NULL), STATUS_OK);
        mem_free(bytes);
        codec_destroy(codec);
    }
    double saved = 8.0 * ((double)size[0] - (double)size[1]) / VECTOR;
    if (saved < 4.9 || saved > 5.5) fail_msg("%.2f bits a value less", saved);
}

static void test_specs(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *canonical;
    } good[] = {{"topk:64/4096", "topk:64/4096+sign"},           {"topk:64/4096+sign", "topk:64/4096+sign"},
                {"topk:1/256+2bit", "topk:1/256+2bit"},          {"topk:65535/65536+int8", "topk:65535/65536+int8"},
                {"topk:07/256+fp16+lz4", "topk:7/256+fp16+lz4"}, {"topk:7/256+lz4", "topk:7/256+sign+lz4"}};
    const struct codec_span span = {.count = 1000, .rows = 10, .cols = 100, .ndim = 2};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct codec *codec = NULL;
        assert_int_equal(codec_create(&codec, good[i].spec, &span, 1, NULL), STATUS_OK);
        assert_string_equal(codec_spec(codec), good[i].canonical);
        assert_int_equal(codec_spec_check(good[i].canonical, NULL), STATUS_OK);
        assert_true(codec_feedback_decay(codec) == 0.95f);
        assert_false(codec_lossless(codec));
        codec_destroy(codec);
    }
    static const char *const bad[] = {"topk",
                                      "topk:",
                                      "topk:64",
                                      "topk:/4096",
                                      "topk:64/",
                                      "topk:0/256",
                                      "topk:256/256",
                                      "topk:64/4095",
                                      "topk:64/128",
                                      "topk:1/131072",
                                      "topk:64/4096x",
                                      "topk:-1/256",
                                      "topk:64/4096/2",
                                      "topk:99999999999/256",
                                      "topk:8/256+sign+2bit",
                                      "topk:8/256+lz4+sign",
                                      "topk:8/256+int4",
                                      "topk:8/256+"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        assert_int_equal(codec_spec_check(bad[i], &err), STATUS_INVALID);
        assert_true(err.msg[0] != 0);
    }
    /* Offsets are 32 bits: a fragment that might need more is refused, by name. */
    struct err err = {0};
    struct codec *codec = NULL;
    const struct codec_span vast = {.count = 1ull << 38, .rows = 1, .cols = 1ull << 38, .ndim = 2};
    enum status status = codec_create(&codec, "topk:64/4096", &vast, 1, &err);
    assert_true(status == STATUS_LIMIT || status == STATUS_NOMEM);
    assert_null(codec);
    assert_int_equal(mem_live_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matrix_sizes),  cmocka_unit_test(test_many_tensors), cmocka_unit_test(test_large),
        cmocka_unit_test(test_size_on_noise),
        cmocka_unit_test(test_vectors_have_entropy), cmocka_unit_test(test_specs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
