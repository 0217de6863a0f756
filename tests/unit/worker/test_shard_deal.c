/* The owners of theta with muon on ranks with separate memory.
 * - Every parameter has one owner and one position in its state.
 * - Matrices are whole on one rank and equal those of muon.
 * - The parts of the buckets cover theta without their padding.
 * - The work is even. */

#include "common/base/mem.h"
#include "gpu/muon_rules.h"
#include "tests/lib/test.h"
#include "worker/inner/shard_deal.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

enum { RANKS_MAX = 9, N_MAX = 60000 };

static const struct model_config models[] = {
    {.n_layer = 3,
     .n_head = 2,
     .n_embd = 16,
     .block_size = 8,
     .vocab_size = 43,
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
static uint8_t owner[N_MAX], matrix[N_MAX], state[RANKS_MAX][2][N_MAX];

static void check_pieces(const struct shard_deal *deal, const struct layout *layout, int ranks)
{
    uint64_t at = 0;
    size_t most = 0;
    memset(state, 0, sizeof state);
    for (size_t i = 0; i < deal->n_pieces; i++) {
        const struct shard_piece *p = &deal->pieces[i];
        assert_true(p->offset == at && p->count && p->rank >= 0 && p->rank < ranks);
        memset(owner + at, p->rank, p->count);
        memset(matrix + at, p->matrices, p->count);
        for (uint64_t k = 0; k < p->count; k++) assert_int_equal(state[p->rank][p->matrices][p->state + k]++, 0);
        at += p->count;
    }
    assert_int_equal(at, layout->n_params);
    for (int r = 0; r < ranks; r++) {
        size_t n = 0;
        for (size_t i = 0; i < deal->n_pieces; i++) n += deal->pieces[i].rank == r;
        if (n > most) most = n;
        for (int m = 0; m < 2; m++) { /* end to end, without gaps */
            uint64_t floats = shard_deal_floats(deal, r, m);
            for (uint64_t k = 0; k < N_MAX; k++) assert_int_equal(state[r][m][k], k < floats);
        }
    }
    assert_int_equal(deal->most, most);
}

/* The matrices equal those without a deal. Each lies in its owner's pieces, with its momentum in its piece. */
static void check_matrices(const struct shard_deal *deal, const struct layout *layout, hidden_blocks_fn blocks)
{
    struct inner_matrices want;
    uint64_t count = 0, marked = 0;
    assert_int_equal(inner_matrices_deal(&want, layout, blocks, 1, false), STATUS_OK);
    assert_int_equal(deal->matrices.n, want.n);
    for (size_t i = 0; i < want.n; i++) {
        const struct muon_matrix *m = &deal->matrices.matrices[i];
        assert_true(m->offset == want.matrices[i].offset && m->rows == want.matrices[i].rows &&
                    m->cols == want.matrices[i].cols && m->ld == want.matrices[i].ld);
        for (size_t r = 0; r < m->rows; r++)
            for (size_t c = 0; c < m->cols; c++) {
                uint64_t at = m->offset + r * m->ld + c, in = 0;
                assert_true(matrix[at] && owner[at] == deal->matrices.ranks[i]);
                for (size_t p = 0; p < deal->n_pieces; p++) { /* at the position of the piece */
                    const struct shard_piece *piece = &deal->pieces[p];
                    if (at >= piece->offset && at < piece->offset + piece->count)
                        in = at - piece->offset + piece->state;
                }
                assert_int_equal(at - m->skipped, in);
                count++;
            }
    }
    for (uint64_t at = 0; at < layout->n_params; at++) marked += matrix[at];
    assert_int_equal(count, marked);
    inner_matrices_finish(&want);
}

static void check_parts(const struct shard_deal *deal, const struct shard_map *map)
{
    uint64_t at = 0;
    assert_int_equal(deal->first[0], 0);
    for (uint32_t b = 0; b < map->n_buckets; b++) {
        assert_int_equal(at, shard_bucket_offset(map, b));
        for (size_t i = deal->first[b]; i < deal->first[b + 1]; i++) {
            const struct collective_part *p = &deal->parts[i];
            assert_int_equal(p->offset, at);
            assert_true(p->n > 0 && (i == deal->first[b] || p[-1].root != p->root));
            for (size_t k = 0; k < p->n; k++) assert_int_equal(owner[at++], p->root);
        }
    }
    assert_int_equal(at, map->n_params);
}

static void check(const struct model_family *family, const struct model_config *model, uint32_t ranks, uint64_t bucket)
{
    struct layout layout;
    struct shard_deal deal;
    layout_init(&layout);
    assert_int_equal(family->layout(model, &layout, NULL), STATUS_OK);
    assert_true(layout.n_params < N_MAX);
    struct shard_map map = shard_map_make(layout.n_params, ranks, bucket);
    assert_int_equal(shard_deal_make(&deal, &map, &layout, family->hidden_blocks), STATUS_OK);
    check_pieces(&deal, &layout, (int)ranks);
    check_matrices(&deal, &layout, family->hidden_blocks);
    check_parts(&deal, &map);
    shard_deal_finish(&deal);
    layout_finish(&layout);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_every_parameter_has_one_owner)
{
    static const struct model_family *const families[] = {&gpt2_family, &llama_family};
    for (int f = 0; f < 2; f++)
        for (int m = 0; m < 2; m++)
            for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks += ranks < 3 ? 1 : 3) {
                check(families[f], &models[m], ranks, 0);
                check(families[f], &models[m], ranks, 1000); /* smaller than some matrices */
            }
}

/* Work and memory of a model with few layers for the number of ranks. */
TEST(test_work_and_memory_are_even)
{
    const struct model_config model = {.n_layer = 12, .n_head = 2, .n_embd = 64, .block_size = 8, .vocab_size = 256};
    struct layout layout;
    layout_init(&layout);
    assert_int_equal(gpt2_layout(&model, &layout, NULL), STATUS_OK);
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
        struct shard_deal deal;
        struct shard_map map = shard_map_make(layout.n_params, ranks, 0);
        assert_int_equal(shard_deal_make(&deal, &map, &layout, gpt2_hidden_blocks), STATUS_OK);
        double work[8] = {0}, all = 0;
        uint64_t floats = 0;
        for (size_t i = 0; i < deal.matrices.n; i++) {
            double one = muon_work(deal.matrices.matrices[i].rows, deal.matrices.matrices[i].cols);
            work[deal.matrices.ranks[i]] += one;
            all += one;
        }
        for (uint32_t r = 0; r < ranks; r++) {
            if (work[r] > 1.15 * all / ranks) fail_msg("%u ranks: one has %.2f", ranks, work[r] * ranks / all);
            uint64_t plain = shard_deal_floats(&deal, (int)r, false), want = layout.n_params / ranks;
            floats += plain + shard_deal_floats(&deal, (int)r, true);
            assert_true(plain < want);
        }
        assert_int_equal(floats, layout.n_params);
        shard_deal_finish(&deal);
    }
    layout_finish(&layout);
}

static uint32_t two_blocks(const struct tensor *tensor)
{
    return tensor->ndim == 2 ? 2 : 0;
}

TEST(test_unsupported_layouts_are_refused)
{
    const uint64_t odd[2] = {4, 5};
    struct layout layout;
    struct shard_deal deal;
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "a", 2, odd, LAYOUT_INIT_ZEROS, 0, true), STATUS_OK);
    struct shard_map map = shard_map_make(20, 3, 0);
    assert_int_equal(shard_deal_make(&deal, &map, &layout, two_blocks), STATUS_INVALID);
    assert_int_equal(shard_deal_make(&deal, &map, &layout, NULL), STATUS_OK); /* all of it by elements, on few ranks */
    assert_int_equal(shard_deal_floats(&deal, 0, false), 20);
    shard_deal_finish(&deal);
    layout_finish(&layout);
    assert_int_equal(gpt2_layout(&models[0], &layout, NULL), STATUS_OK);
    map = shard_map_make(layout.n_params, 2, 0);
    for (int n = 1; n <= 7; n++) {
        mem_fail_after(n);
        size_t before = mem_live_bytes();
        assert_int_equal(shard_deal_make(&deal, &map, &layout, gpt2_hidden_blocks), STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), before);
    }
    mem_fail_after(0);
    layout_finish(&layout);
}

TEST_MAIN(NULL, NULL)
