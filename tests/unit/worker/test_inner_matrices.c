/* The parts of theta for muon: the matrices of every block and no other part, each on one rank. AdamW updates the
 * rest once. q, k and v are separate matrices where they lie side by side, and the work is even. */

#include "common/base/mem.h"
#include "gpu/muon_rules.h"
#include "tests/lib/test.h"
#include "worker/inner/inner_opt.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

enum { RANKS_MAX = 8, N_MAX = 200000 };

static const struct model_config models[] = {
    {.n_layer = 3,
     .n_head = 2,
     .n_embd = 16,
     .block_size = 8,
     .vocab_size = 40,
     .n_kv_head = 1,
     .ffn = 40,
     .rope_theta = 1e4,
     .norm_eps = 1e-5},
    {.n_layer = 1,
     .n_head = 4,
     .n_embd = 32,
     .block_size = 8,
     .vocab_size = 64,
     .n_kv_head = 2,
     .ffn = 80,
     .rope_theta = 1e4,
     .norm_eps = 1e-5,
     .tied = true},
};

/* Marks the elements of a list of matrices; no element twice. */
static size_t mark(const struct muon_matrix *m, size_t n, uint8_t *owners)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < m[i].rows; r++)
            for (size_t c = 0; c < m[i].cols; c++, count++)
                assert_int_equal(owners[m[i].offset + r * m[i].ld + c]++, 0);
    return count;
}

static void check_cover(const struct model_family *family, const struct model_config *model, int ranks)
{
    static uint8_t owners[N_MAX];
    struct layout layout;
    struct inner_matrices dealt;
    struct muon_matrix mine[256];
    size_t dealt_count = 0, n = 0;
    layout_init(&layout);
    assert_int_equal(family->layout(model, &layout, NULL), STATUS_OK);
    assert_true(layout.n_params < N_MAX);
    memset(owners, 0, sizeof owners);
    assert_int_equal(inner_matrices_deal(&dealt, &layout, family->hidden_blocks, ranks, false), STATUS_OK);
    assert_in_range(dealt.n, 6 * model->n_layer, 7 * model->n_layer);
    for (int r = 0; r < ranks; r++) {
        size_t had = inner_matrices_of(&dealt, r, mine);
        dealt_count += mark(mine, had, owners);
        n += had;
    }
    assert_int_equal(n, dealt.n);
    for (uint32_t i = 0; i < layout.n_tensors; i++) {
        const struct tensor *t = &layout.tensors[i];
        bool block = !strncmp(t->name, "h.", 2) || !strncmp(t->name, "model.layers.", 13);
        for (uint64_t at = t->offset; at < t->offset + t->count; at++)
            if (owners[at] != (block && t->ndim == 2)) fail_msg("%s: updated %d times", t->name, owners[at]);
    }
    struct device *devices[RANKS_MAX];
    for (int r = 0; r < ranks; r++) assert_int_equal(device_open("cpu", 1, &devices[r], NULL), STATUS_OK);
    const struct inner_opt_config config = {
        .kind = OPTIMIZER_MUON, .muon_steps = 5, .hidden_blocks = family->hidden_blocks};
    struct inner_opt *opt;
    assert_int_equal(inner_opt_create(&opt, &config, &layout, devices, ranks, NULL), STATUS_OK);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < opt->slices[r].n_spans; i++)
            for (uint64_t k = 0; k < opt->slices[r].spans[i].count; k++)
                assert_int_equal(owners[opt->slices[r].spans[i].offset + k]++, 0);
    for (uint64_t at = 0; at < layout.n_params; at++) assert_int_equal(owners[at], 1);
    assert_true(dealt_count < layout.n_params);
    inner_opt_destroy(opt);
    for (int r = 0; r < ranks; r++) device_close(devices[r]);
    inner_matrices_finish(&dealt);
    layout_finish(&layout);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_every_parameter_is_updated_once)
{
    static const struct model_family *const families[] = {&gpt2_family, &llama_family};
    for (int f = 0; f < 2; f++)
        for (int m = 0; m < 2; m++)
            for (int ranks = 1; ranks <= RANKS_MAX; ranks++) check_cover(families[f], &models[m], ranks);
}

TEST(test_qkv_are_separate_matrices)
{
    struct layout layout;
    struct inner_matrices dealt;
    layout_init(&layout);
    assert_int_equal(gpt2_layout(&models[0], &layout, NULL), STATUS_OK);
    assert_int_equal(inner_matrices_deal(&dealt, &layout, gpt2_hidden_blocks, 1, false), STATUS_OK);
    const struct tensor *qkv = &layout.tensors[layout_find(&layout, "h.0.attn.c_attn.weight")];
    for (size_t i = 0; i < 3; i++) {
        const struct muon_matrix *m = &dealt.matrices[i];
        assert_int_equal(m->offset, qkv->offset + i * 16);
        assert_true(m->rows == 16 && m->cols == 16 && m->ld == 48 && m->decay);
    }
    assert_true(dealt.matrices[4].rows == 16 && dealt.matrices[4].cols == 64 && dealt.matrices[4].ld == 64);
    inner_matrices_finish(&dealt);
    layout_finish(&layout);
}

TEST(test_work_is_even)
{
    const struct model_config model = {.n_layer = 12, .n_head = 2, .n_embd = 64, .block_size = 8, .vocab_size = 256};
    struct layout layout;
    struct inner_matrices dealt;
    struct muon_matrix mine[128];
    layout_init(&layout);
    assert_int_equal(gpt2_layout(&model, &layout, NULL), STATUS_OK);
    for (int ranks = 1; ranks <= 8; ranks++) {
        double most = 0, all = 0;
        assert_int_equal(inner_matrices_deal(&dealt, &layout, gpt2_hidden_blocks, ranks, false), STATUS_OK);
        for (int r = 0; r < ranks; r++) {
            double work = 0;
            size_t n = inner_matrices_of(&dealt, r, mine);
            for (size_t i = 0; i < n; i++) work += muon_work(mine[i].rows, mine[i].cols);
            all += work;
            most = work > most ? work : most;
        }
        if (most > 1.15 * all / ranks) fail_msg("%d ranks: one has %.2f of its share", ranks, most * ranks / all);
        inner_matrices_finish(&dealt);
    }
    layout_finish(&layout);
}

static uint32_t two_blocks(const struct tensor *tensor)
{
    return tensor->ndim == 2 ? 2 : 0;
}

static uint32_t of_vectors(const struct tensor *tensor)
{
    (void)tensor;
    return 1;
}

TEST(test_unsupported_layouts_are_refused)
{
    const uint64_t odd[2] = {4, 5};
    struct layout layout;
    struct inner_matrices dealt;
    struct err err = {0};
    struct inner_opt *opt;
    struct device *dev;
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "a", 2, odd, LAYOUT_INIT_ZEROS, 0, true), STATUS_OK);
    assert_int_equal(layout_add(&layout, "b", 1, odd, LAYOUT_INIT_ZEROS, 0, true), STATUS_OK);
    assert_int_equal(inner_matrices_deal(&dealt, &layout, two_blocks, 1, false), STATUS_INVALID);
    assert_int_equal(inner_matrices_deal(&dealt, &layout, of_vectors, 1, false), STATUS_INVALID);
    assert_int_equal(device_open("cpu", 1, &dev, NULL), STATUS_OK);
    const struct inner_opt_config config = {.kind = OPTIMIZER_MUON, .muon_steps = 5};
    assert_int_equal(inner_opt_create(&opt, &config, &layout, &dev, 1, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "muon"));
    device_close(dev);
    layout_finish(&layout);
    assert_int_equal(gpt2_layout(&models[0], &layout, NULL), STATUS_OK);
    for (int n = 1; n <= 4; n++) {
        mem_fail_after(n);
        size_t before = mem_live_bytes();
        assert_int_equal(inner_matrices_deal(&dealt, &layout, gpt2_hidden_blocks, 2, false), STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), before);
    }
    mem_fail_after(0);
    layout_finish(&layout);
}

TEST_MAIN(NULL, NULL)
