/* Layouts: offsets, split into fragments, encoding, refusal of invalid layouts, initial values. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/layout.h"
#include "tests/lib/test.h"

/* Builds a small GPT-like layout of 1 + 4 * blocks tensors. */
static void build(struct layout *layout, int blocks)
{
    char name[32];
    layout_init(layout);
    assert_int_equal(layout_add(layout, "wte", 2, (uint64_t[]){16, 8}, LAYOUT_INIT_NORMAL, 0.02f, true), STATUS_OK);
    for (int i = 0; i < blocks; i++) {
        snprintf(name, sizeof name, "h.%d.ln.weight", i);
        assert_int_equal(layout_add(layout, name, 1, (uint64_t[]){8}, LAYOUT_INIT_ONES, 0, false), STATUS_OK);
        snprintf(name, sizeof name, "h.%d.ln.bias", i);
        assert_int_equal(layout_add(layout, name, 1, (uint64_t[]){8}, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
        snprintf(name, sizeof name, "h.%d.fc", i);
        assert_int_equal(layout_add(layout, name, 2, (uint64_t[]){8, 32}, LAYOUT_INIT_NORMAL, 0.02f, true), STATUS_OK);
        snprintf(name, sizeof name, "h.%d.conv", i);
        assert_int_equal(layout_add(layout, name, 3, (uint64_t[]){2, 3, 5}, LAYOUT_INIT_NORMAL, 0.1f, true), STATUS_OK);
    }
}

TEST(test_add_sets_offsets_and_refuses_invalid_tensors)
{
    struct layout layout;
    build(&layout, 3);
    assert_int_equal(layout.n_tensors, 13);
    assert_int_equal(layout.n_params, 128 + 3 * (8 + 8 + 256 + 30));
    assert_int_equal(layout_find(&layout, "h.1.fc"), 7);
    assert_int_equal(layout.tensors[7].offset, 128 + 302 + 16);
    assert_int_equal(layout_find(&layout, "h.3.fc"), -1);
    const uint64_t eight = 8, zero = 0;
    const uint64_t huge[2] = {1ull << 40, 1ull << 40}, wide[2] = {1ull << 30, 1ull << 11};
    char long_name[LAYOUT_NAME_MAX + 1];
    memset(long_name, 'x', sizeof long_name);
    long_name[LAYOUT_NAME_MAX] = 0;
    struct {
        const char *name;
        int ndim;
        const uint64_t *shape;
        int init;
        float sigma;
    } bad[] = {{"wte", 1, &eight, 0, 0}, {"", 1, &eight, 0, 0},         {"__metadata__", 1, &eight, 0, 0},
               {"a\n", 1, &eight, 0, 0}, {"\xc3\xbc", 1, &eight, 0, 0}, {long_name, 1, &eight, 0, 0},
               {"a", -1, &eight, 0, 0},  {"a", 9, &eight, 0, 0},        {"a", 1, &zero, 0, 0},
               {"a", 2, huge, 0, 0},     {"a", 2, wide, 0, 0},          {"a", 1, &eight, 3, 0},
               {"a", 1, &eight, 2, NAN}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(
            layout_add(&layout, bad[i].name, bad[i].ndim, bad[i].shape, (enum layout_init)bad[i].init, bad[i].sigma, 0),
            STATUS_INVALID);
    assert_int_equal(layout_add(&layout, "a", 1, &eight, 0, 0, 4), STATUS_INVALID); /* no such flag */
    assert_int_equal(layout.n_tensors, 13);                                         /* no tensor was added */
    mem_fail_after(1);
    assert_int_equal(layout_add(&layout, "a", 1, &eight, 0, 0, false), STATUS_OK); /* room for 16: no allocation */
    mem_fail_after(0);
    layout_finish(&layout);
    mem_fail_after(1);
    assert_int_equal(layout_add(&layout, "a", 1, &eight, 0, 0, false), STATUS_NOMEM);
    mem_fail_after(0);
    layout_finish(&layout);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_split_makes_equal_fragments)
{
    struct layout layout;
    layout_init(&layout);
    assert_int_equal(layout_split(&layout, 1), STATUS_INVALID); /* nothing to split */
    build(&layout, 20);
    assert_int_equal(layout_split(&layout, LAYOUT_FRAGMENTS_MAX + 1), STATUS_INVALID);
    for (uint32_t n = 1; n <= 100; n++) {
        assert_int_equal(layout_split(&layout, n), STATUS_OK);
        assert_in_range(layout.n_fragments, 1, n);
        uint64_t offset = 0, largest = 0;
        uint32_t first = 0;
        for (uint32_t i = 0; i < layout.n_fragments; i++) {
            const struct fragment *f = &layout.fragments[i];
            assert_true(f->n_tensors > 0);
            assert_int_equal(f->first_tensor, first);
            assert_int_equal(f->offset, offset);
            assert_int_equal(f->offset, layout.tensors[first].offset);
            uint64_t count = 0;
            for (uint32_t t = 0; t < f->n_tensors; t++) count += layout.tensors[first + t].count;
            assert_int_equal(f->count, count);
            offset += f->count;
            first += f->n_tensors;
            if (f->count > largest) largest = f->count;
        }
        assert_int_equal(offset, layout.n_params);
        assert_int_equal(first, layout.n_tensors);
        assert_true(largest <= layout.n_params / n + 1 + 256); /* differs from its share by at most one tensor */
    }
    assert_int_equal(layout_split(&layout, 0), STATUS_OK);
    assert_int_equal(layout.n_fragments, 1); /* small */
    layout_finish(&layout);
}

/* Trained tensors of 8 values, then mean tensors of 4, a scalar last. */
static void build_with_means(struct layout *layout, int trained, int means)
{
    char name[16];
    layout_init(layout);
    for (int i = 0; i < trained + means; i++) {
        uint64_t shape = i < trained ? 8 : 4;
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(layout_add(layout, name, i == trained + means - 1 ? 0 : 1, &shape, LAYOUT_INIT_ZEROS, 0,
                                    i < trained ? LAYOUT_DECAY : LAYOUT_MEAN),
                         STATUS_OK);
    }
}

TEST(test_mean_tensors_get_fragments_of_their_own)
{
    struct layout layout;
    uint64_t eight = 8;
    build_with_means(&layout, 6, 3);
    assert_int_equal(layout.n_params, 48 + 4 + 4 + 1); /* a scalar is one value */
    for (uint32_t n = 0; n <= 4; n++) {
        assert_int_equal(layout_split(&layout, n), STATUS_OK);
        assert_int_equal(layout.n_fragments, n ? n + 1 : 2);
        for (uint32_t f = 0; f + 1 < layout.n_fragments; f++) assert_false(layout_is_mean(&layout, f));
        const struct fragment *last = &layout.fragments[layout.n_fragments - 1];
        assert_true(layout_is_mean(&layout, layout.n_fragments - 1));
        assert_int_equal(last->first_tensor, 6);
        assert_int_equal(last->n_tensors, 3);
        assert_int_equal(last->count, 9);
    }
    assert_int_equal(layout_split(&layout, LAYOUT_FRAGMENTS_MAX), STATUS_OK); /* as many as there are trained tensors */
    assert_int_equal(layout_add(&layout, "late", 1, &eight, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(layout_split(&layout, 1), STATUS_INVALID); /* behind a mean tensor */
    layout_finish(&layout);
    build_with_means(&layout, 0, 2);
    assert_int_equal(layout_split(&layout, 3), STATUS_OK); /* nothing is trained */
    assert_int_equal(layout.n_fragments, 1);
    layout_finish(&layout);
}

TEST(test_fragment_of_both_kinds_is_refused)
{
    struct layout a, b;
    uint8_t bytes[256];
    build_with_means(&a, 2, 2);
    assert_int_equal(layout_split(&a, 1), STATUS_OK);
    for (int moved = 0; moved < 2; moved++) {
        a.fragments[0].n_tensors = (uint32_t)(2 + moved);
        a.fragments[1].n_tensors = (uint32_t)(2 - moved);
        struct writer w = writer_of(bytes, sizeof bytes);
        layout_encode(&a, &w);
        struct reader r = reader_of(bytes, w.pos);
        layout_init(&b);
        assert_int_equal(layout_decode(&b, &r), moved ? STATUS_CORRUPT : STATUS_OK);
        if (!moved) assert_true(b.tensors[2].mean && !b.tensors[2].decay && b.tensors[3].ndim == 0);
        if (!moved) assert_true(layout_hash(&a) == layout_hash(&b));
        layout_finish(&b);
    }
    layout_finish(&a);
}

static const char *difference(const char *name, int ndim, uint32_t flags, bool second)
{
    static char out[LAYOUT_DIFFERENCE_MAX];
    struct layout run, other;
    const uint64_t shape[2] = {2, 3};
    layout_init(&run);
    layout_init(&other);
    assert_int_equal(layout_add(&run, "a", 2, shape, LAYOUT_INIT_ZEROS, 0, LAYOUT_DECAY), STATUS_OK);
    assert_int_equal(layout_add(&run, "b", 1, shape, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(layout_add(&other, name, ndim, shape, LAYOUT_INIT_ZEROS, 0, flags), STATUS_OK);
    if (second) assert_int_equal(layout_add(&other, strcmp(name, "b") ? "b" : "a", 1, shape, 0, 0, 0), STATUS_OK);
    layout_difference(&other, &run, out);
    layout_finish(&run);
    layout_finish(&other);
    return out;
}

TEST(test_first_difference_is_named)
{
    assert_string_equal(difference("a", 1, LAYOUT_DECAY, true), "tensor 'a' has shape (2), the run's has (2, 3)");
    assert_string_equal(difference("a", 0, LAYOUT_DECAY, true), "tensor 'a' has shape (), the run's has (2, 3)");
    assert_string_equal(difference("a", 2, LAYOUT_DECAY, false), "the run's tensor 'b' of shape (2) is missing");
    assert_string_equal(difference("c", 2, LAYOUT_DECAY, true),
                        "tensor 'c' of shape (2, 3) is extra: the run does not have it");
    assert_string_equal(difference("b", 1, 0, true), "tensor 1 is 'b', the run's is 'a': another order");
    assert_string_equal(difference("a", 2, LAYOUT_DECAY | LAYOUT_MEAN, true),
                        "tensor 'a' has other initial values, another weight decay, or is a mean");
    assert_string_equal(difference("a", 2, LAYOUT_DECAY, true),
                        "it has 0 fragments, the run has 0, or they begin elsewhere");
}

TEST(test_split_by_size_limits_fragment_size)
{
    static const struct {
        uint32_t tensors, mi, fragments; /* mi: of each tensor */
    } sizes[] = {{1, 1, 1},   {4, 1, 1},   {5, 1, 2},
                 {10, 1, 3},  {32, 1, 8},  {124, 1, 8},
                 {256, 1, 8}, {257, 1, 9}, {300, 32, LAYOUT_FRAGMENTS_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct layout layout;
        uint64_t shape = (uint64_t)sizes[i].mi << 20;
        char name[16];
        layout_init(&layout);
        for (uint32_t t = 0; t < sizes[i].tensors; t++) {
            snprintf(name, sizeof name, "t%u", t);
            assert_int_equal(layout_add(&layout, name, 1, &shape, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
        }
        assert_int_equal(layout_split(&layout, 0), STATUS_OK);
        assert_int_equal(layout.n_fragments, sizes[i].fragments);
        layout_finish(&layout);
    }
}

static size_t encode(const struct layout *layout, uint8_t *out, size_t cap)
{
    struct writer w = writer_of(out, cap);
    layout_encode(layout, &w);
    assert_false(w.bad);
    assert_int_equal(w.pos, layout_encoded_size(layout));
    return w.pos;
}

TEST(test_decode_restores_encoded_layout)
{
    struct layout a, b;
    static uint8_t bytes[4096], again[4096];
    build(&a, 5);
    assert_int_equal(layout_split(&a, 3), STATUS_OK);
    size_t size = encode(&a, bytes, sizeof bytes);
    layout_init(&b);
    struct reader r = reader_of(bytes, size);
    assert_int_equal(layout_decode(&b, &r), STATUS_OK);
    assert_true(reader_done(&r));
    assert_int_equal(b.n_params, a.n_params);
    assert_true(layout_hash(&a) == layout_hash(&b));
    assert_int_equal(encode(&b, again, sizeof again), size);
    assert_memory_equal(again, bytes, size);
    layout_finish(&b);
    for (size_t cut = 0; cut < size; cut++) { /* every truncated encoding is refused */
        layout_init(&b);
        r = reader_of(bytes, cut);
        assert_int_equal(layout_decode(&b, &r), STATUS_CORRUPT);
        layout_finish(&b);
    }
    for (int change = -1; change <= 1; change += 2) { /* the last fragment ends before or after the last tensor */
        memcpy(again, bytes, size);
        again[size - 4] = (uint8_t)(again[size - 4] + change);
        layout_init(&b);
        r = reader_of(again, size);
        assert_int_equal(layout_decode(&b, &r), STATUS_CORRUPT);
        layout_finish(&b);
    }
    bytes[size - 8] = (uint8_t)(bytes[size - 8] + bytes[size - 12]);
    bytes[size - 12] = 0; /* an empty fragment */
    layout_init(&b);
    r = reader_of(bytes, size);
    assert_int_equal(layout_decode(&b, &r), STATUS_CORRUPT);
    layout_finish(&b);
    layout_finish(&a);
    assert_int_equal(mem_live_bytes(), 0);
}

/* A received layout has one fragment more than the maximum; everything else about it is valid. */
TEST(test_too_many_fragments_are_refused)
{
    struct layout layout;
    static uint8_t bytes[1 << 16];
    build(&layout, LAYOUT_FRAGMENTS_MAX / 2);
    assert_int_equal(layout_split(&layout, LAYOUT_FRAGMENTS_MAX), STATUS_OK);
    size_t size = encode(&layout, bytes, sizeof bytes), counts = size - 4 * (size_t)LAYOUT_FRAGMENTS_MAX;
    struct writer w = writer_of(bytes + 4, 4);
    put_u32(&w, LAYOUT_FRAGMENTS_MAX + 1);
    w = writer_of(bytes + counts, 4 * (size_t)LAYOUT_FRAGMENTS_MAX + 4);
    for (int i = 0; i < LAYOUT_FRAGMENTS_MAX; i++) put_u32(&w, 1);
    put_u32(&w, layout.n_tensors - LAYOUT_FRAGMENTS_MAX);
    layout_finish(&layout);
    layout_init(&layout);
    struct reader r = reader_of(bytes, size + 4);
    assert_int_equal(layout_decode(&layout, &r), STATUS_CORRUPT);
    assert_int_equal(layout.n_tensors, 0);
    layout_finish(&layout);
}

/* A received layout: two tensors of one name, and names that no checkpoint can hold. */
TEST(test_invalid_tensor_names_are_refused)
{
    static const char *const names[] = {"h.1.fc", "h.2.fc", "__0.fc", "h.\x7f.fc", "h.\xff.fc", "h.\t.fc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct layout a, b;
        static uint8_t bytes[4096];
        build(&a, 2);
        assert_int_equal(layout_split(&a, 2), STATUS_OK);
        memcpy(a.tensors[layout_find(&a, "h.0.fc")].name, names[i], strlen(names[i]) + 1);
        struct reader r = reader_of(bytes, encode(&a, bytes, sizeof bytes));
        layout_init(&b);
        assert_int_equal(layout_decode(&b, &r), i == 1 ? STATUS_OK : STATUS_CORRUPT);
        layout_finish(&a);
        layout_finish(&b);
    }
}

/* A flipped bit gives a refused layout, or a consistent layout with another hash. */
TEST(test_flipped_bit_never_keeps_hash)
{
    struct layout a, b;
    static uint8_t bytes[4096], again[4096];
    build(&a, 2);
    assert_int_equal(layout_split(&a, 2), STATUS_OK);
    uint64_t hash = layout_hash(&a);
    size_t size = encode(&a, bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        layout_init(&b);
        struct reader r = reader_of(bytes, size);
        if (layout_decode(&b, &r) == STATUS_OK && reader_done(&r)) {
            assert_true(layout_hash(&b) != hash);
            assert_int_equal(encode(&b, again, sizeof again), size);
            assert_memory_equal(again, bytes, size);
        }
        layout_finish(&b);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    layout_finish(&a);
}

TEST(test_fill_is_independent_of_split)
{
    struct layout layout;
    static float theta[2048], again[2048];
    build(&layout, 5);
    assert_int_equal(layout_split(&layout, 1), STATUS_OK);
    layout_fill(&layout, 0, 42, theta);
    const struct tensor *fc = &layout.tensors[3];
    double square = 0;
    for (uint64_t i = 0; i < fc->count; i++) square += (double)theta[fc->offset + i] * theta[fc->offset + i];
    assert_true(fabs(sqrt(square / (double)fc->count) / 0.02 - 1) < 0.2);
    for (int i = 0; i < 8; i++) {
        assert_true(theta[layout.tensors[1].offset + (uint64_t)i] == 1.0f);
        assert_true(theta[layout.tensors[2].offset + (uint64_t)i] == 0.0f);
    }
    uint64_t hash = layout_theta_hash(&layout, theta);
    /* The split changes neither the values nor the hash. */
    assert_int_equal(layout_split(&layout, 4), STATUS_OK);
    for (uint32_t f = 0; f < layout.n_fragments; f++) layout_fill(&layout, f, 42, again + layout.fragments[f].offset);
    assert_memory_equal(theta, again, layout.n_params * sizeof *theta);
    assert_true(layout_theta_hash(&layout, again) == hash);
    again[layout.n_params - 1] += 1e-6f;
    assert_true(layout_theta_hash(&layout, again) != hash);
    layout_fill(&layout, 0, 43, again);
    assert_memory_not_equal(theta, again, 64 * sizeof *theta);
    layout_finish(&layout);
}

/* A fragment filled by several threads has the bits of a fragment filled by one, for any tensor boundaries. */
TEST(test_fill_is_independent_of_threads)
{
    struct layout layout;
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "odd", 1, (uint64_t[]){4099}, LAYOUT_INIT_NORMAL, 1, true), STATUS_OK);
    assert_int_equal(layout_add(&layout, "one", 1, (uint64_t[]){1}, LAYOUT_INIT_NORMAL, 1, true), STATUS_OK);
    assert_int_equal(layout_add(&layout, "ones", 1, (uint64_t[]){3000017}, LAYOUT_INIT_ONES, 0, true), STATUS_OK);
    assert_int_equal(layout_add(&layout, "wide", 2, (uint64_t[]){1301, 1303}, LAYOUT_INIT_NORMAL, 0.02f, true),
                     STATUS_OK);
    assert_int_equal(layout_split(&layout, 1), STATUS_OK);
    float *theta = mem_alloc(layout.n_params, sizeof *theta), *alone = mem_alloc(layout.n_params, sizeof *alone);
    assert_true(theta && alone && layout.n_params > 1 << 22);
    layout_fill(&layout, 0, 42, theta);
    for (uint32_t i = 0; i < layout.n_tensors; i++) {
        const struct tensor *t = &layout.tensors[i];
        rng_normal_fill(42, RNG_INIT, (uint64_t)i << 40, t->sigma, alone + t->offset, t->count);
        for (uint64_t k = 0; t->init == LAYOUT_INIT_ONES && k < t->count; k++) alone[t->offset + k] = 1;
    }
    assert_memory_equal(theta, alone, layout.n_params * sizeof *theta);
    mem_free(theta);
    mem_free(alone);
    layout_finish(&layout);
}

/* The hash covers the values end to end, independent of the tensors' positions in its blocks. */
TEST(test_theta_hash_covers_values_end_to_end)
{
    enum { COUNT = 3 * HASH_BLOCK + 5 };
    static float theta[COUNT];
    static const uint64_t firsts[] = {0, 7, HASH_BLOCK, HASH_BLOCK + 1, 2 * HASH_BLOCK + 50, COUNT - 1};
    uint64_t whole = 0;
    rng_normal_fill(1, RNG_TEST, 0, 1.0f, theta, COUNT);
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        struct layout layout;
        const uint64_t first = firsts[i], rest = COUNT - first;
        layout_init(&layout);
        if (first) assert_int_equal(layout_add(&layout, "a", 1, &first, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
        assert_int_equal(layout_add(&layout, "b", 1, &rest, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
        uint64_t hash = layout_theta_hash(&layout, theta);
        if (!i) whole = hash;
        assert_true(hash == whole);
        theta[COUNT - 1] += 1;
        assert_true(layout_theta_hash(&layout, theta) != whole);
        theta[COUNT - 1] -= 1;
        layout_finish(&layout);
    }
}

TEST_MAIN(NULL, NULL)
