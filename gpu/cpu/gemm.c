#include "gpu/cpu/gemm.h"

#include "common/base/pool.h"
#include "gpu/cpu/cpu_kernels.h"

#include <assert.h>
#include <string.h>

enum {
    NC = 1024,                                     /* columns of B packed at a time */
    PANEL_A = GEMM_MR_MAX * GEMM_KC + GEMM_NR_MAX, /* floats, with the slack that pack_a needs */
    PANELS_B = NC * GEMM_KC,
};

struct gemm_job {
    const struct gemm *g;
    const struct cpu_kernels *kernels;
    void *const *scratch;
    int rows_split, cols_split; /* the grid of threads over C */
};

size_t gemm_scratch_bytes(void)
{
    return sizeof(float) * (PANEL_A + PANELS_B);
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Blocks of k as equal as possible, so that the last one is not a sliver. Depends on k alone. */
static size_t k_block(size_t k)
{
    size_t blocks = (k + GEMM_KC - 1) / GEMM_KC;
    return blocks ? ((k + blocks - 1) / blocks + 15) / 16 * 16 : 0;
}

static void pack_b_block(const struct gemm_job *job, size_t n0, size_t nc, size_t k0, size_t kc, bool sums, float *out)
{
    const struct gemm *g = job->g;
    const struct cpu_kernels *kernels = job->kernels;
    for (size_t j = 0; j < nc; j += kernels->nr) {
        size_t cols = min_size(kernels->nr, nc - j);
        float *colsum = sums ? g->colsum + n0 + j : NULL;
        if (colsum && k0 == 0 && !g->colsum_add) memset(colsum, 0, cols * sizeof *colsum);
        if (g->b_trans) {
            kernels->pack_b_trans(cols, kc, g->b + (n0 + j) * g->ldb + k0, g->ldb, out + j * kc);
        } else {
            kernels->pack_b(cols, kc, g->b + k0 * g->ldb + n0 + j, g->ldb, out + j * kc, colsum);
        }
    }
}

/* Rows of A as the register tile reads them. */
struct a_panel {
    const float *p;
    size_t rs, cs;
    bool in_place;
};

/* Reads A in place, with two exceptions: the last, short panel (zeros below it), and matrices whose row distance is a
 * large power of two, because their cache lines compete for the same sets of L1. */
static struct a_panel panel_of(const struct gemm *g, const struct cpu_kernels *kernels, size_t m0, size_t rows,
                               size_t k0, size_t kc, float *pack)
{
    const float *a = g->a_trans ? g->a + k0 * g->lda + m0 : g->a + m0 * g->lda + k0;
    bool in_place = rows == kernels->mr && (g->a_trans ? g->lda % 512 != 0 || g->n > 256 : g->lda % 1024 != 0);
    if (in_place && g->a_trans) return (struct a_panel){.p = a, .rs = 1, .cs = g->lda, .in_place = true};
    if (in_place) return (struct a_panel){.p = a, .rs = g->lda, .cs = 1, .in_place = true};
    if (g->a_trans) {
        kernels->pack_a_trans(rows, kc, a, g->lda, pack);
    } else {
        kernels->pack_a(rows, kc, a, g->lda, pack);
    }
    return (struct a_panel){.p = pack, .rs = 1, .cs = kernels->mr};
}

/* Prefetch address for tile `index` of a stripe: part of the next panel of A, at row m0. Row-major A: GEMM_FETCH_ROWS
 * rows a tile. A stored [k,m]: all of it with the first tile, whose step k fetches row k; the line of its first columns
 * came with the previous panel. Packed panels prefetch themselves. */
static const float *next_panel(const struct gemm *g, const struct a_panel *a, size_t mr, size_t m0, size_t k0,
                               size_t index)
{
    if (!a->in_place) return NULL;
    if (g->a_trans) return index == 0 ? g->a + k0 * g->lda + m0 + mr - 1 : NULL;
    size_t row = m0 + GEMM_FETCH_ROWS * index;
    return GEMM_FETCH_ROWS * index < mr && row < g->m ? g->a + row * g->lda + k0 : NULL;
}

/* Multiplies one panel of A by the packed block of B: a stripe of C. more: another panel follows. */
static void stripe(const struct gemm_job *job, size_t m0, size_t rows, bool more, size_t n0, size_t nc, size_t k0,
                   size_t kc, const struct a_panel *a, const float *b)
{
    const struct gemm *g = job->g;
    bool first = k0 == 0, last = k0 + kc == g->k;
    for (size_t j = 0; j < nc; j += job->kernels->nr) {
        size_t at = m0 * g->ldc + n0 + j;
        struct gemm_tile tile = {
            .c = g->c + at, .ldc = g->ldc, .rows = rows, .cols = min_size(job->kernels->nr, nc - j)};
        if (more) tile.next = next_panel(g, a, job->kernels->mr, m0 + rows, k0, j / job->kernels->nr);
        if (!first) {
            tile.add = g->c + at;
        } else if (g->add) {
            tile.add = g->add + at;
        }
        if (last) {
            tile.bias = g->bias ? g->bias + n0 + j : NULL;
            tile.gelu = g->gelu;
            tile.aux_out = g->aux_out ? g->aux_out + at : NULL;
            tile.aux_in = g->aux_in ? g->aux_in + at : NULL;
        }
        job->kernels->gemm_tile(kc, a->p, a->rs, a->cs, b + j * kc, &tile);
    }
}

static void gemm_part(const struct gemm_job *job, size_t m_begin, size_t m_end, size_t n_begin, size_t n_end, bool sums,
                      float *scratch)
{
    const struct gemm *g = job->g;
    const struct cpu_kernels *kernels = job->kernels;
    float *pack = scratch, *b = scratch + PANEL_A;
    size_t k_step = k_block(g->k), wide = n_end - n_begin, blocks = (wide + NC - 1) / NC;
    size_t n_step = ((wide + blocks - 1) / blocks + kernels->nr - 1) / kernels->nr * kernels->nr;
    for (size_t n0 = n_begin; n0 < n_end; n0 += n_step) {
        size_t nc = min_size(n_step, n_end - n0);
        for (size_t k0 = 0; k0 < g->k; k0 += k_step) {
            size_t kc = min_size(k_step, g->k - k0);
            pack_b_block(job, n0, nc, k0, kc, sums, b);
            for (size_t m0 = m_begin; m0 < m_end; m0 += kernels->mr) {
                size_t rows = min_size(kernels->mr, m_end - m0);
                struct a_panel a = panel_of(g, kernels, m0, rows, k0, kc, pack);
                stripe(job, m0, rows, m0 + rows < m_end, n0, nc, k0, kc, &a, b);
            }
        }
    }
}

static void gemm_thread(void *ctx, int thread, int threads)
{
    const struct gemm_job *job = ctx;
    (void)threads;
    size_t m_begin, m_end, n_begin, n_end;
    pool_share(job->g->m, job->kernels->mr, thread / job->cols_split, job->rows_split, &m_begin, &m_end);
    pool_share(job->g->n, job->kernels->nr, thread % job->cols_split, job->cols_split, &n_begin, &n_end);
    bool sums = job->g->colsum && thread / job->cols_split == 0;
    if ((m_begin == m_end && !sums) || n_begin == n_end) return;
    gemm_part(job, m_begin, m_end, n_begin, n_end, sums, job->scratch[thread]);
}

/* Chooses the grid with the least work for the busiest thread. Threads duplicate the packing: r row shares pack B r
 * times, c column shares pack A c times. */
static void choose_grid(struct gemm_job *job, int threads)
{
    size_t best = SIZE_MAX;
    for (int rows = 1; rows <= threads; rows++) {
        if (threads % rows != 0) continue;
        int cols = threads / rows;
        size_t tall = (job->g->m + job->kernels->mr - 1) / job->kernels->mr;
        size_t wide = (job->g->n + job->kernels->nr - 1) / job->kernels->nr;
        size_t longest = ((tall + (size_t)rows - 1) / (size_t)rows) * ((wide + (size_t)cols - 1) / (size_t)cols);
        size_t tiles = longest * job->kernels->mr * job->kernels->nr; /* multiply-adds of one k in the busiest thread */
        size_t packed = job->g->m / (size_t)rows + job->g->n / (size_t)cols;
        size_t cost = tiles / 16 + packed / 2;
        if (cost < best) {
            best = cost;
            job->rows_split = rows;
            job->cols_split = cols;
        }
    }
}

void gemm_run(const struct gemm *g, const struct cpu_kernels *kernels, struct pool *pool, void *const *scratch)
{
    assert(!g->gelu || !g->aux_in);
    struct gemm dense = *g;
    if (!g->lda) dense.lda = g->a_trans ? g->m : g->k;
    if (!g->ldb) dense.ldb = g->b_trans ? g->k : g->n;
    if (!g->ldc) dense.ldc = g->n;
    struct gemm_job job = {.g = &dense, .kernels = kernels, .scratch = scratch};
    choose_grid(&job, pool_threads(pool));
    assert(job.rows_split * job.cols_split == pool_threads(pool));
    pool_run(pool, gemm_thread, &job);
}
