#include "tests/lib/rigs/msg_sample.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "wire/msg_table.h"

const enum msg_type msg_sample_types[] = {
#define SAMPLE_TYPE(name, number, lane, direction) MSG_##name,
    MSG_MAP(SAMPLE_TYPE)
#undef SAMPLE_TYPE
        0,
};

struct source {
    uint64_t seed, drawn;
    uint32_t most;
};

static uint64_t any(struct source *s)
{
    return rng_u64(s->seed, RNG_TEST, s->drawn++);
}

static uint64_t between(struct source *s, uint64_t low, uint64_t high)
{
    return low + (high - low == UINT64_MAX ? any(s) : any(s) % (high - low + 1));
}

static double real(struct source *s)
{
    return ((double)(any(s) >> 11) - 4503599627370496.0) / 1048576.0;
}

static void raw(struct source *s, void *out, size_t n)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)out)[i] = (uint8_t)any(s);
}

/* Printable text with some characters of two and three bytes. */
static void text(struct source *s, char *out, size_t cap, bool lines)
{
    static const char *const odd[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8f\x9d"};
    size_t want = between(s, 1, (uint64_t)s->most + 1), n = 0;
    while (n < want && n + 5 < cap) {
        uint64_t v = any(s);
        if (v % 16 == 0)
            n += (size_t)snprintf(out + n, cap - n, "%s", odd[v / 16 % 3]);
        else
            out[n++] = lines && v % 16 == 1 ? '\n' : (char)(' ' + v / 16 % 95);
    }
    out[n] = 0;
}

/* What a TEXT and up to two BLOBs of a message borrow. */
static char long_text[WIRE_STATUS_MAX];
static uint8_t long_data[2][WIRE_CHUNK_MAX];
static unsigned n_blobs;

static bool is_count(const struct field *f)
{
    for (const struct field *list = f + 1; list->kind != FIELD_END; list++)
        if (list->kind == FIELD_LIST && list->count_at == f->at) return true;
    return false;
}

static void fill_blob(struct source *s, const struct field *f, char *object)
{
    uint8_t *data = long_data[n_blobs++ % 2];
    size_t size = between(s, f->min, s->most < f->max ? s->most : f->max);
    if (size > WIRE_CHUNK_MAX) size = WIRE_CHUNK_MAX;
    raw(s, data, size);
    memcpy(object + f->at, &data, sizeof data);
    memcpy(object + f->count_at, &size, sizeof size);
}

static void fill(struct source *s, const struct field *fields, char *object);

static void fill_field(struct source *s, const struct field *f, char *object)
{
    static const size_t bytes[] = {[FIELD_U8] = 1, [FIELD_U16] = 2, [FIELD_U32] = 4, [FIELD_U64] = 8, [FIELD_BOOL] = 1};
    char *at = object + f->at;
    const char *texts = long_text;
    double d = real(s);
    float half = (float)d;
    uint64_t v = between(s, f->min, f->max);
    uint32_t n = 0;
    switch (f->kind) {
    case FIELD_U8:
    case FIELD_U16:
    case FIELD_U32:
    case FIELD_U64:
    case FIELD_BOOL:
        if (is_count(f)) v = between(s, 1, s->most < f->max ? s->most : f->max);
        memcpy(at, &v, bytes[f->kind]);
        break;
    case FIELD_F32:
    case FIELD_F32_ANY: memcpy(at, &half, sizeof half); break;
    case FIELD_F64:
    case FIELD_F64_ANY: memcpy(at, &d, sizeof d); break;
    case FIELD_BYTES: raw(s, at, f->max); break;
    case FIELD_LINE:
    case FIELD_REMARK: text(s, at, f->max + 1, false); break;
    case FIELD_TEXT:
        text(s, long_text, f->max + 1, true);
        memcpy(at, &texts, sizeof texts);
        break;
    case FIELD_BLOB: fill_blob(s, f, object); break;
    case FIELD_LIST:
        memcpy(&n, object + f->count_at, sizeof n);
        for (uint32_t i = 0; i < n; i++) fill(s, f->items, at + i * f->stride);
        break;
    default: break;
    }
}

static void fill(struct source *s, const struct field *fields, char *object)
{
    for (const struct field *f = fields; f->kind != FIELD_END; f++) fill_field(s, f, object);
}

/* The rules across fields (wire/msg_table.c). */
static void make_valid(struct msg *m)
{
    switch (m->type) {
    case MSG_ASSIGN:
        for (uint32_t i = 0; i < m->assign.n_ranges; i++)
            m->assign.ranges[i].start >>= 1, m->assign.ranges[i].count >>= 1;
        break;
    case MSG_EVAL:
        m->eval.start >>= 1;
        m->eval.count = (m->eval.count >> 1) + 1;
        m->eval.part = 1 + m->eval.count / (1 + m->eval.part % WIRE_PARTS_MAX);
        m->eval.wanted = 1 + (m->eval.wanted & msg_eval_all(msg_eval_parts(m->eval.count, m->eval.part) - 1));
        break;
    case MSG_EVAL_RESULT:
        m->eval_result.start >>= 1;
        m->eval_result.count >>= 1;
        break;
    case MSG_GET:
        m->get.offset >>= 1;
        m->get.length = 1 + (m->get.length >> 2);
        break;
    case MSG_CHUNK:
        m->chunk.crc = crc32c(0, m->chunk.data, m->chunk.size);
        m->chunk.offset >>= 2;
        m->chunk.total = m->chunk.offset + m->chunk.size + (m->chunk.total >> 2);
        break;
    default: break;
    }
}

void msg_sample(struct msg *m, enum msg_type type, uint64_t seed, uint32_t most)
{
    struct source s = {.seed = hash_mix(seed, (uint64_t)type), .most = most};
    memset(m, 0, sizeof *m);
    m->type = type;
    n_blobs = 0;
    fill(&s, msg_spec_of(type)->fields, (char *)&m->hello);
    make_valid(m);
}

/* Compares what a TEXT or BLOB borrows, and clears both pointers. */
static bool same_borrowed(const struct field *f, char *a, char *b)
{
    const char *x, *y;
    size_t nx, ny;
    memcpy(&x, a + f->at, sizeof x);
    memcpy(&y, b + f->at, sizeof y);
    memset(a + f->at, 0, sizeof x);
    memset(b + f->at, 0, sizeof y);
    if (f->kind == FIELD_TEXT) return !strcmp(x, y);
    memcpy(&nx, a + f->count_at, sizeof nx);
    memcpy(&ny, b + f->count_at, sizeof ny);
    return nx == ny && !memcmp(x, y, nx);
}

bool msg_sample_equal(const struct msg *a, const struct msg *b)
{
    static struct msg x, y;
    x = *a;
    y = *b;
    if (a->type != b->type) return false;
    for (const struct field *f = msg_spec_of(a->type)->fields; f->kind != FIELD_END; f++)
        if ((f->kind == FIELD_TEXT || f->kind == FIELD_BLOB) && !same_borrowed(f, (char *)&x.hello, (char *)&y.hello))
            return false;
    return !memcmp(&x, &y, sizeof x);
}
