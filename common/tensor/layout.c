#include "common/tensor/layout.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"

enum { TENSOR_BYTES_MIN = 10 }; /* of an encoded tensor: a name of one byte, and no dimension */
enum { FRAGMENT_SMALL = 4 << 20, FRAGMENT_LARGE = 32 << 20, FRAGMENTS_USUAL = 8 };

void layout_init(struct layout *layout)
{
    memset(layout, 0, sizeof *layout);
}

void layout_finish(struct layout *layout)
{
    mem_free(layout->tensors);
    layout_init(layout);
}

int layout_find(const struct layout *layout, const char *name)
{
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        if (!strcmp(layout->tensors[i].name, name)) return (int)i;
    return -1;
}

/* True when tensors and fragments are contiguous and cover all parameters. */
static bool is_whole(const struct layout *layout)
{
    uint64_t at = 0;
    uint32_t tensor = 0;
    for (uint32_t i = 0; i < layout->n_fragments; i++) {
        const struct fragment *f = &layout->fragments[i];
        if (f->first_tensor != tensor || f->offset != at || !f->n_tensors) return false;
        for (uint32_t t = 0; t < f->n_tensors; t++) {
            if (tensor >= layout->n_tensors || layout->tensors[tensor].offset != at) return false;
            at += layout->tensors[tensor++].count;
        }
        if (at - f->offset != f->count) return false;
    }
    return tensor == layout->n_tensors && at == layout->n_params;
}

bool layout_name_ok(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (name[i] < 0x20 || name[i] > 0x7e) return false;
    return n && n < LAYOUT_NAME_MAX && strncmp(name, "__", 2) != 0;
}

/* The caller checks that the name is new. */
static enum status append(struct layout *layout, const char *name, int ndim, const uint64_t *shape,
                          enum layout_init init, float sigma, uint32_t flags)
{
    if (!layout_name_ok(name) || ndim < 0 || ndim > LAYOUT_DIMS_MAX || layout->n_tensors >= LAYOUT_TENSORS_MAX ||
        init > LAYOUT_INIT_NORMAL || !isfinite(sigma) || flags > (LAYOUT_DECAY | LAYOUT_MEAN))
        return STATUS_INVALID;
    struct tensor t = {.ndim = (uint8_t)ndim,
                       .init = (uint8_t)init,
                       .decay = (flags & LAYOUT_DECAY) != 0,
                       .mean = (flags & LAYOUT_MEAN) != 0,
                       .sigma = sigma,
                       .count = 1};
    memcpy(t.name, name, strlen(name) + 1);
    for (int d = 0; d < ndim; d++) {
        if (!shape[d] || __builtin_mul_overflow(t.count, shape[d], &t.count)) return STATUS_INVALID;
        t.shape[d] = shape[d];
    }
    t.offset = layout->n_params;
    uint64_t total;
    if (__builtin_add_overflow(t.offset, t.count, &total) || total > LAYOUT_PARAMS_MAX) return STATUS_INVALID;
    if ((layout->n_tensors & (layout->n_tensors - 1)) == 0) { /* at powers of two the capacity doubles */
        size_t old = layout->n_tensors * sizeof t, room = layout->n_tensors ? 2 * old : sizeof t;
        struct tensor *grown = mem_resize(layout->tensors, old, room);
        if (!grown) return STATUS_NOMEM;
        layout->tensors = grown;
    }
    assert(layout->n_tensors < LAYOUT_TENSORS_MAX);
    layout->tensors[layout->n_tensors++] = t;
    layout->n_params = total;
    return STATUS_OK;
}

enum status layout_add(struct layout *layout, const char *name, int ndim, const uint64_t *shape, enum layout_init init,
                       float sigma, uint32_t flags)
{
    if (layout_find(layout, name) >= 0) return STATUS_INVALID;
    return append(layout, name, ndim, shape, init, sigma, flags);
}

static uint8_t flags_of(const struct tensor *t)
{
    return (uint8_t)((t->decay ? LAYOUT_DECAY : 0) | (t->mean ? LAYOUT_MEAN : 0));
}

bool layout_is_mean(const struct layout *layout, uint32_t fragment)
{
    assert(fragment < layout->n_fragments);
    return layout->tensors[layout->fragments[fragment].first_tensor].mean;
}

uint32_t layout_first_mean(const struct layout *layout)
{
    uint32_t f = 0;
    while (f < layout->n_fragments && !layout_is_mean(layout, f)) f++;
    return f;
}

bool tensor_is_embedding(const char *name)
{
    static const char *const words[] = {"wte", "wpe", "embed_tokens", "lm_head"};
    for (size_t length; *name; name += length + (name[length] == '.')) {
        length = strcspn(name, ".");
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (strlen(words[i]) == length && !strncmp(name, words[i], length)) return true;
    }
    return false;
}

/* Several fragments shorten an outer step: one is uploaded while another is merged and a third is downloaded. Each
 * fragment costs an fsync of the journal and some messages. */
static uint32_t fragments_by_size(uint64_t n_params)
{
    uint64_t small = (n_params + FRAGMENT_SMALL - 1) / FRAGMENT_SMALL;
    uint64_t large = (n_params + FRAGMENT_LARGE - 1) / FRAGMENT_LARGE;
    uint64_t n = small < FRAGMENTS_USUAL ? small : FRAGMENTS_USUAL;
    if (n < large) n = large;
    return n > LAYOUT_FRAGMENTS_MAX ? LAYOUT_FRAGMENTS_MAX : (uint32_t)n;
}

/* Appends at most n fragments of the tensors [first, end). */
static void split_range(struct layout *layout, uint32_t first, uint32_t end, uint32_t n)
{
    const uint64_t stop = end < layout->n_tensors ? layout->tensors[end].offset : layout->n_params;
    const uint32_t most = layout->n_fragments + n;
    struct fragment f = {.first_tensor = first, .offset = layout->tensors[first].offset};
    for (uint32_t i = first; i < end; i++) {
        const struct tensor *t = &layout->tensors[i];
        f.n_tensors++;
        f.count += t->count;
        assert(layout->n_fragments < most);
        uint32_t left = most - layout->n_fragments; /* remaining fragments, including this one */
        uint64_t share = (stop - f.offset + left - 1) / left;
        if (i + 1 < end && (left == 1 || f.count < share)) continue;
        layout->fragments[layout->n_fragments++] = f;
        f = (struct fragment){.first_tensor = i + 1, .offset = t->offset + t->count};
    }
}

enum status layout_split(struct layout *layout, uint32_t n)
{
    uint32_t trained = 0;
    if (!layout->n_tensors) return STATUS_INVALID;
    while (trained < layout->n_tensors && !layout->tensors[trained].mean) trained++;
    for (uint32_t i = trained; i < layout->n_tensors; i++)
        if (!layout->tensors[i].mean) return STATUS_INVALID;
    uint64_t size = trained < layout->n_tensors ? layout->tensors[trained].offset : layout->n_params;
    uint32_t means = trained < layout->n_tensors ? fragments_by_size(layout->n_params - size) : 0;
    if (n > LAYOUT_FRAGMENTS_MAX) return STATUS_INVALID;
    if (!n && trained) n = fragments_by_size(size);
    if (means > LAYOUT_FRAGMENTS_MAX / 2) means = LAYOUT_FRAGMENTS_MAX / 2;
    if (n > LAYOUT_FRAGMENTS_MAX - means) n = LAYOUT_FRAGMENTS_MAX - means;
    layout->n_fragments = 0;
    if (trained) split_range(layout, 0, trained, n);
    if (means) split_range(layout, trained, layout->n_tensors, means);
    assert(layout->n_fragments <= LAYOUT_FRAGMENTS_MAX && is_whole(layout));
    return STATUS_OK;
}

enum status layout_cut(struct layout *layout, const uint64_t *ends, uint32_t n)
{
    uint32_t tensor = 0;
    uint64_t at = 0;
    if (!n || n > LAYOUT_FRAGMENTS_MAX || ends[n - 1] != layout->n_params) return STATUS_INVALID;
    layout->n_fragments = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct fragment f = {.first_tensor = tensor, .offset = at};
        while (tensor < layout->n_tensors && at < ends[i]) at += layout->tensors[tensor++].count;
        f.n_tensors = tensor - f.first_tensor;
        f.count = at - f.offset;
        if (at != ends[i] || !f.n_tensors) return STATUS_INVALID;
        layout->fragments[layout->n_fragments++] = f;
    }
    assert(is_whole(layout));
    return STATUS_OK;
}

void layout_encode(const struct layout *layout, struct writer *w)
{
    put_u32(w, layout->n_tensors);
    put_u32(w, layout->n_fragments);
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        put_str(w, t->name);
        put_u8(w, t->ndim);
        put_u8(w, t->init);
        put_u8(w, flags_of(t));
        put_f32(w, t->sigma);
        for (int d = 0; d < t->ndim; d++) put_u64(w, t->shape[d]);
    }
    for (uint32_t i = 0; i < layout->n_fragments; i++) put_u32(w, layout->fragments[i].n_tensors);
}

size_t layout_encoded_size(const struct layout *layout)
{
    struct writer w = writer_counting();
    layout_encode(layout, &w);
    return w.pos;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* Checks names for repetitions by sorting their hashes: comparing all pairs would let a peer waste quadratic time. */
static enum status check_names(const struct layout *layout)
{
    uint32_t n = layout->n_tensors;
    uint64_t *names = mem_alloc(n, sizeof *names);
    if (!names) return STATUS_NOMEM;
    for (uint32_t i = 0; i < n; i++) names[i] = hash64(layout->tensors[i].name, strlen(layout->tensors[i].name));
    qsort(names, n, sizeof *names, by_value);
    bool repeated = false;
    for (uint32_t i = 1; i < n; i++) repeated = repeated || names[i] == names[i - 1];
    mem_free(names);
    return repeated ? STATUS_CORRUPT : STATUS_OK;
}

enum status layout_decode(struct layout *layout, struct reader *r)
{
    assert(!layout->n_tensors && !layout->n_fragments);
    uint32_t n_tensors = get_u32(r), n_fragments = get_u32(r);
    if (r->bad || !n_tensors || n_tensors > LAYOUT_TENSORS_MAX || !n_fragments || n_fragments > LAYOUT_FRAGMENTS_MAX ||
        n_fragments > n_tensors || n_tensors > reader_left(r) / TENSOR_BYTES_MIN)
        return STATUS_CORRUPT;
    for (uint32_t i = 0; i < n_tensors; i++) {
        char name[LAYOUT_NAME_MAX];
        uint64_t shape[LAYOUT_DIMS_MAX];
        get_str(r, name, sizeof name);
        int ndim = get_u8(r);
        uint8_t init = get_u8(r), flags = get_u8(r);
        float sigma = get_f32(r);
        if (r->bad || ndim > LAYOUT_DIMS_MAX || init > LAYOUT_INIT_NORMAL) return STATUS_CORRUPT;
        for (int d = 0; d < ndim; d++) shape[d] = get_u64(r);
        if (r->bad) return STATUS_CORRUPT;
        enum status s = append(layout, name, ndim, shape, (enum layout_init)init, sigma, flags);
        if (s != STATUS_OK) return s == STATUS_INVALID ? STATUS_CORRUPT : s;
    }
    TRY(check_names(layout));
    uint32_t first = 0;
    for (uint32_t i = 0; i < n_fragments; i++) {
        struct fragment f = {.first_tensor = first, .n_tensors = get_u32(r)};
        if (r->bad || !f.n_tensors || f.n_tensors > n_tensors - first) return STATUS_CORRUPT;
        f.offset = layout->tensors[first].offset;
        for (uint32_t t = 0; t < f.n_tensors; t++) {
            f.count += layout->tensors[first + t].count;
            if (layout->tensors[first + t].mean != layout->tensors[first].mean) return STATUS_CORRUPT;
        }
        layout->fragments[layout->n_fragments++] = f;
        first += f.n_tensors;
    }
    if (first != n_tensors) return STATUS_CORRUPT;
    assert(is_whole(layout));
    return STATUS_OK;
}

uint64_t layout_hash(const struct layout *layout)
{
    uint64_t acc = hash_mix(layout->n_tensors, layout->n_fragments);
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        uint32_t sigma;
        memcpy(&sigma, &t->sigma, sizeof sigma);
        acc = hash_mix(acc, hash64(t->name, strlen(t->name)));
        acc = hash_mix(acc, (uint64_t)t->ndim << 48 | (uint64_t)t->init << 40 | (uint64_t)flags_of(t) << 32 | sigma);
        for (int d = 0; d < t->ndim; d++) acc = hash_mix(acc, t->shape[d]);
    }
    for (uint32_t i = 0; i < layout->n_fragments; i++) acc = hash_mix(acc, layout->fragments[i].n_tensors);
    return acc;
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

const char *layout_shape(const uint64_t *shape, uint32_t ndim, const char *between, char out[LAYOUT_SHAPE])
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t d = 0; d < ndim && used + 24 < LAYOUT_SHAPE; d++)
        used +=
            (size_t)snprintf(out + used, LAYOUT_SHAPE - used, "%s%llu", d ? between : "", (unsigned long long)shape[d]);
    return out;
}

static bool same_shape(const struct tensor *a, const struct tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape);
}

static bool same_rules(const struct tensor *a, const struct tensor *b)
{
    return a->decay == b->decay && a->mean == b->mean && a->init == b->init &&
           !memcmp(&a->sigma, &b->sigma, sizeof a->sigma);
}

static void describe(const struct layout *other, const struct layout *run, uint32_t i, char out[LAYOUT_DIFFERENCE_MAX])
{
    const struct tensor *its = i < other->n_tensors ? &other->tensors[i] : NULL;
    const struct tensor *ours = i < run->n_tensors ? &run->tensors[i] : NULL;
    char a[LAYOUT_SHAPE] = "", b[LAYOUT_SHAPE] = "";
    if (its) layout_shape(its->shape, its->ndim, ", ", a);
    if (ours) layout_shape(ours->shape, ours->ndim, ", ", b);
    if (its && ours && !strcmp(its->name, ours->name) && !same_shape(its, ours))
        snprintf(out, LAYOUT_DIFFERENCE_MAX, "tensor '%s' has shape (%s), the run's has (%s)", its->name, a, b);
    else if (its && ours && !strcmp(its->name, ours->name))
        snprintf(out, LAYOUT_DIFFERENCE_MAX, "tensor '%s' has other initial values, another weight decay, or is a mean",
                 its->name);
    else if (its && layout_find(run, its->name) < 0)
        snprintf(out, LAYOUT_DIFFERENCE_MAX, "tensor '%s' of shape (%s) is extra: the run does not have it", its->name,
                 a);
    else if (ours && layout_find(other, ours->name) < 0)
        snprintf(out, LAYOUT_DIFFERENCE_MAX, "the run's tensor '%s' of shape (%s) is missing", ours->name, b);
    else
        snprintf(out, LAYOUT_DIFFERENCE_MAX, "tensor %u is '%s', the run's is '%s': another order", i + 1, its->name,
                 ours->name);
}

const char *layout_difference(const struct layout *other, const struct layout *run, char out[LAYOUT_DIFFERENCE_MAX])
{
    uint32_t i = 0, n = other->n_tensors < run->n_tensors ? other->n_tensors : run->n_tensors;
    while (i < n && !strcmp(other->tensors[i].name, run->tensors[i].name) &&
           same_shape(&other->tensors[i], &run->tensors[i]) && same_rules(&other->tensors[i], &run->tensors[i]))
        i++;
    if (i < n || other->n_tensors != run->n_tensors)
        describe(other, run, i, out);
    else
        snprintf(out, LAYOUT_DIFFERENCE_MAX, "it has %u fragments, the run has %u, or they begin elsewhere",
                 other->n_fragments, run->n_fragments);
    return out;
}

/* --- initial values ----------------------------------------------------------------------------------------------- */

enum {
    FILL_SHARED = 1 << 22, /* from this many values on, threads pay off; a normal value takes 20 ns */
    FILL_THREADS = 32,
    FILL_GRAIN = 4096 /* values of one tensor; a multiple of RNG_NORMALS */
};

struct fill {
    const struct layout *layout;
    const struct fragment *fragment;
    uint64_t seed;
    float *theta;
};

/* Each thread fills a share of every tensor. */
static void fill_share(void *ctx, int thread, int threads)
{
    const struct fill *fill = ctx;
    const struct fragment *f = fill->fragment;
    for (uint32_t i = f->first_tensor; i < f->first_tensor + f->n_tensors; i++) {
        const struct tensor *t = &fill->layout->tensors[i];
        assert(t->offset >= f->offset && t->offset - f->offset + t->count <= f->count);
        float *out = fill->theta + (t->offset - f->offset);
        size_t begin, end;
        pool_share(t->count, FILL_GRAIN, thread, threads, &begin, &end);
        if (t->init == LAYOUT_INIT_NORMAL)
            rng_normal_fill(fill->seed, RNG_INIT, ((uint64_t)i << 40) + begin / RNG_NORMALS, t->sigma, out + begin,
                            end - begin);
        else
            for (size_t k = begin; k < end; k++) out[k] = t->init == LAYOUT_INIT_ONES ? 1.0f : 0.0f;
    }
}

void layout_fill(const struct layout *layout, uint32_t fragment, uint64_t seed, float *theta)
{
    assert(fragment < layout->n_fragments);
    struct fill fill = {layout, &layout->fragments[fragment], seed, theta};
    int threads = fill.fragment->count < FILL_SHARED ? 1 : pool_cores(FILL_THREADS);
    struct pool *pool = NULL;
    if (threads > 1 && pool_create(threads, POOL_FLOATS_EXACT, &pool) == STATUS_OK)
        pool_run(pool, fill_share, &fill);
    else
        fill_share(&fill, 0, 1); /* without threads the result is the same */
    pool_destroy(pool);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct tensor *const *)a)->name, (*(const struct tensor *const *)b)->name);
}

uint64_t layout_theta_hash(const struct layout *layout, const float *theta)
{
    assert(layout->n_tensors <= LAYOUT_TENSORS_MAX);
    const struct tensor *order[LAYOUT_TENSORS_MAX];
    float block[HASH_BLOCK];
    uint64_t acc = layout->n_params;
    size_t used = 0;
    for (uint32_t i = 0; i < layout->n_tensors; i++) order[i] = &layout->tensors[i];
    qsort(order, layout->n_tensors, sizeof *order, by_name);
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const float *x = theta + order[i]->offset;
        for (uint64_t at = 0, n; at < order[i]->count; at += n) {
            n = order[i]->count - at < HASH_BLOCK - used ? order[i]->count - at : HASH_BLOCK - used;
            memcpy(block + used, x + at, n * sizeof *x);
            used = (used + n) % HASH_BLOCK;
            if (!used) acc = hash_mix(acc, hash64(block, sizeof block));
        }
    }
    assert(used == layout->n_params % HASH_BLOCK);
    return used ? hash_mix(acc, hash64(block, used * sizeof *block)) : acc;
}
