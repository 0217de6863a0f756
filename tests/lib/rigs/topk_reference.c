#include "tests/lib/rigs/topk_reference.h"
#include "tests/lib/test.h"

#include <math.h>

#include "common/base/float_bits.h"

enum { BITS_MAX = 8 << 20 };

struct pick {
    uint32_t index, magnitude, code;
    bool negative;
};

struct chunk {
    struct pick *picks;
    uint32_t n, k, length, low, high; /* low, high: codes of scales */
};

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

static unsigned mantissa_of(enum topk_form form)
{
    static const unsigned mantissa[] = {4, 5, 7, 0};
    return mantissa[form];
}

static uint32_t nearest_scale(enum topk_form form, double value)
{
    float x = (float)value;
    unsigned drop = 23 - mantissa_of(form);
    uint64_t code = ((uint64_t)float_bits(x) + (1ull << (drop - 1))) >> drop;
    uint64_t largest = (255ull << mantissa_of(form)) - 1;
    return (uint32_t)(code < largest ? code : largest);
}

static float scale_of(enum topk_form form, uint32_t code)
{
    return float_of_bits(code << (23 - mantissa_of(form)));
}

/* Returns the nearest positive fp16 below 2, by search over all of them; never 0. */
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

static void quantize(enum topk_form form, struct chunk *c)
{
    double sum = 0, part[2] = {0, 0};
    uint32_t largest = 0, count[2] = {0, 0};
    for (uint32_t i = 0; i < c->n; i++) {
        sum += (double)float_of_bits(c->picks[i].magnitude);
        if (c->picks[i].magnitude > largest) largest = c->picks[i].magnitude;
    }
    if (!c->n) return;
    float mean = (float)(sum / c->n);
    if (form == TOPK_SIGN) c->low = nearest_scale(form, mean);
    if (form == TOPK_INT8) c->low = nearest_scale(form, float_of_bits(largest));
    if (form == TOPK_FP16) c->low = largest >> 23;
    for (uint32_t i = 0; i < c->n && form == TOPK_TWO_BIT; i++) {
        float x = float_of_bits(c->picks[i].magnitude);
        part[x > mean] += (double)x;
        count[x > mean]++;
    }
    if (form == TOPK_TWO_BIT) {
        c->low = nearest_scale(form, part[0] / count[0]);
        c->high = count[1] ? nearest_scale(form, part[1] / count[1]) : c->low;
    }
    if (c->low < 27u << mantissa_of(form)) {
        c->low = c->n = 0;
        return;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        struct pick *p = &c->picks[i];
        float x = float_of_bits(p->magnitude), scale = scale_of(form, c->low);
        p->code = p->negative;
        if (form == TOPK_TWO_BIT) p->code |= (uint32_t)(x > mean) << 1;
        if (form == TOPK_INT8) p->code |= (uint32_t)(fmin(fmax(rint((double)(x / scale) * 128), 1), 128) - 1) << 1;
        if (form == TOPK_FP16) p->code |= nearest_half(ldexp((double)x, 127 - (int)c->low)) << 1;
    }
}

static float value_of(enum topk_form form, const struct chunk *c, uint32_t code)
{
    double scale = (double)scale_of(form, c->low), h = code >> 1, x = scale;
    if (form == TOPK_TWO_BIT && code & 2) x = (double)scale_of(form, c->high);
    if (form == TOPK_INT8) x = scale * (h + 1) / 128;
    if (form == TOPK_FP16) x = scale * (h < 1024 ? ldexp(h, -24) : ldexp(1024 + fmod(h, 1024), (int)(h / 1024) - 25));
    return (float)(code & 1 ? -x : x);
}

static struct chunk choose(enum topk_form form, const float *x, uint32_t length, uint32_t k)
{
    struct chunk c = {.picks = calloc(length, sizeof *c.picks), .k = k, .length = length};
    for (uint32_t i = 0; i < length; i++)
        c.picks[i] = (struct pick){.index = i, .magnitude = float_bits(x[i]) & 0x7fffffff, .negative = signbit(x[i])};
    qsort(c.picks, length, sizeof *c.picks, by_magnitude);
    while (c.n < k && c.picks[c.n].magnitude) c.n++;
    qsort(c.picks, c.n, sizeof *c.picks, by_index);
    quantize(form, &c);
    return c;
}

/* One bit per byte. */
static uint8_t bits[BITS_MAX];
static size_t n_bits;

static void put(uint64_t value, unsigned n)
{
    for (unsigned i = 0; i < n; i++) bits[n_bits++] = value >> i & 1;
}

static void put_step(enum topk_form form, unsigned rice, bool fits, uint32_t folded, uint32_t code)
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

static void put_group(enum topk_form form, const struct chunk *chunks, size_t n, uint8_t *dst, size_t *pos)
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
        if (form == TOPK_TWO_BIT) put_step(form, 3, true, c->high - c->low, c->high);
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
    uint32_t b = float_bits(x), up = (b + 0x7fff + (b >> 16 & 1)) >> 16;
    if ((up & 0x7fff) == 0x7f80) up--;
    dst[0] = (uint8_t)up;
    dst[1] = (uint8_t)(up >> 8);
    *decoded = float_of_bits(up << 16);
}

size_t topk_reference(enum topk_form form, uint32_t k, uint32_t chunk, const struct codec_span *spans, size_t n_spans,
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
