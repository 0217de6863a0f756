/* Tests norms, rotary positions, gates and embeddings of the CUDA device against the CPU
 * (tests/lib/device/device_pair.h), in fp32 and bf16: odd sizes around every block size, outputs filled with NaN
 * before. ctest: labels=asan timeout=240 */
#include "common/base/mem.h"
#include "gpu/cuda/cuda_rows.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Row lengths around the limits of each variant of cuda_norm_fused, several iterations of a block, rows too long. */
static const size_t both_sizes[][2] = {{1300, 8}, {5, 1024}, {3, 1032}, {2, 2056}, {1, 4096}, {1, 4104}};

/* weight: offset of the weight in theta from an alignment of 16 bytes. */
static void norm_one(size_t n, size_t c, size_t weight)
{
    struct vec x = act_normal(n * c, 1, 2), w = vec_normal(c + weight, 2, 1), b = vec_normal(c, 3, 1);
    struct vec g = act_normal(n * c, 4, 1), y = act_poisoned(n * c), mean = vec_poisoned(n), rstd = vec_poisoned(n);
    struct vec dx = act_poisoned(n * c);
    struct vec dw = vec_poisoned(c), db = vec_poisoned(c), dres = act_normal(n * c, 5, 1);
    for (int d = 0; d < 2; d++) {
        ON(d, norm_fwd, n, c, x.at[d], w.at[d] + weight, b.at[d], y.at[d], mean.at[d], rstd.at[d]);
        ON(d, norm_bwd, n, c, g.at[d], x.at[d], w.at[d] + weight, mean.at[d], rstd.at[d], NULL, dx.at[d], dw.at[d],
           db.at[d], false);
        ON(d, norm_bwd, n, c, g.at[d], x.at[d], w.at[d] + weight, mean.at[d], rstd.at[d], dres.at[d], dres.at[d],
           dw.at[d], db.at[d], true);
    }
    vec_same("norm y", &y, tol(2e-6, 4e-3));
    vec_same("norm mean", &mean, 1e-5);
    vec_same("norm rstd", &rstd, 2e-6);
    if (c > 2) vec_same("norm dx", &dx, tol(1e-5, 4e-3)); /* else it is nearly zero: rounding noise */
    vec_same("norm dx onto the residual", &dres, c > 2 ? tol(1e-5, 3e-3) : 1e-2);
    vec_same("norm dw", &dw, 1e-5);
    vec_same("norm db", &db, 1e-5);
    vecs_free();
}

static void check_norm(void)
{
    static const size_t sizes[][2] = {{1, 1},    {3, 7},    {8, 32},   {9, 33}, {65, 31},
                                      {130, 64}, {17, 257}, {70, 300}, {601, 9}};
    for (size_t i = 0; i < COUNT(sizes); i++) norm_one(sizes[i][0], sizes[i][1], 0);
    norm_one(5, 64, 1);
    for (size_t i = 0; i < COUNT(both_sizes); i++) norm_one(both_sizes[i][0], both_sizes[i][1], i % 2);
}

static void rms_one(size_t n, size_t c, float eps)
{
    struct vec x = act_normal(n * c, 1, 0.5f), w = vec_normal(c, 2, 1), g = act_normal(n * c, 4, 1);
    struct vec y = act_poisoned(n * c), rstd = vec_poisoned(n), dx = act_poisoned(n * c), dw = vec_poisoned(c);
    struct vec dres = act_normal(n * c, 5, 1);
    for (int d = 0; d < 2; d++) {
        ON(d, rms_fwd, n, c, eps, x.at[d], w.at[d], y.at[d], rstd.at[d]);
        ON(d, rms_bwd, n, c, g.at[d], x.at[d], w.at[d], rstd.at[d], NULL, dx.at[d], dw.at[d], false);
        ON(d, rms_bwd, n, c, g.at[d], x.at[d], w.at[d], rstd.at[d], dres.at[d], dres.at[d], dw.at[d], true);
    }
    vec_same("rms y", &y, tol(2e-6, 4e-3));
    vec_same("rms rstd", &rstd, 2e-6);
    vec_same("rms dx", &dx, tol(1e-5, 4e-3));
    vec_same("rms dx onto the residual", &dres, tol(1e-5, 4e-3));
    vec_same("rms dw", &dw, 1e-5);
    vecs_free();
}

static void rope_one(size_t n, size_t seq, size_t heads, size_t head_dim, size_t ld)
{
    struct rope_shape s = {.n = n, .seq = seq, .heads = heads, .head_dim = head_dim, .ld = ld};
    struct vec x = act_normal(n * ld, 1, 1), g = act_normal(n * ld, 2, 1), table = vec_normal(seq * head_dim, 3, 1);
    for (int d = 0; d < 2; d++) {
        ON(d, rope, &s, table.at[d], x.at[d], false);
        ON(d, rope, &s, table.at[d], g.at[d], true);
    }
    vec_same("rope", &x, tol(1e-6, 4e-3));
    vec_same("rope back", &g, tol(1e-6, 4e-3));
    vecs_free();
}

static void glu_one(size_t n, size_t f, float sigma)
{
    struct vec gu = act_normal(2 * n * f, 1, sigma), dh = act_normal(n * f, 2, 1), h = act_poisoned(n * f);
    struct vec dgu = act_poisoned(2 * n * f);
    for (int d = 0; d < 2; d++) {
        ON(d, glu_fwd, n, f, gu.at[d], h.at[d]);
        ON(d, glu_bwd, n, f, gu.at[d], dh.at[d], dgu.at[d]);
        ON(d, glu_bwd, n, f, gu.at[d], dh.at[d], gu.at[d]);
    }
    vec_same("glu h", &h, tol(2e-6, 4e-3));
    vec_same("glu dgu", &dgu, tol(2e-6, 4e-3));
    vec_same("glu dgu in place", &gu, tol(2e-6, 4e-3));
    vecs_free();
}

static void check_llama(void)
{
    rms_one(9, 33, 0.1f);
    rms_one(100, 40, 1e-5f);
    rms_one(17, 264, 0.01f);
    for (size_t i = 0; i < COUNT(both_sizes); i++) rms_one(both_sizes[i][0], both_sizes[i][1], 0.01f);
    rope_one(15, 5, 3, 6, 31);
    rope_one(10, 10, 5, 32, 224);
    rope_one(6, 3, 2, 16, 37); /* heads are a multiple of a wide load, rows are not */
    glu_one(7, 37, 2);
    glu_one(9, 64, 30);
}

/* In parts of `rows` rows. weight: offset of the embedding in theta and its gradient from an alignment of 16 bytes. */
static void embed_one(size_t n, size_t seq, size_t c, size_t v, size_t rows, size_t weight)
{
    cuda_of(pair.devs[1])->rows->embed_rows = rows;
    struct vec wte = vec_normal(v * c + weight, 1, 1), wpe = vec_normal(seq * c, 2, 1), dout = act_normal(n * c, 3, 1);
    struct vec out = act_poisoned(n * c), bare = act_poisoned(n * c);
    struct vec dwte = vec_normal(v * c + weight, 4, 1), dwpe = vec_normal(seq * c, 5, 0);
    int32_t *tokens = mem_alloc(n, sizeof *tokens);
    for (size_t r = 0; r < n; r++) tokens[r] = (int32_t)((r * r + 3 * r) % v);
    struct vec ids = vec_of(n, (const float *)(const void *)tokens, false);
    for (int d = 0; d < 2; d++) {
        const int32_t *t = (const int32_t *)(const void *)ids.at[d];
        float *words = wte.at[d] + weight, *d_words = dwte.at[d] + weight;
        ON(d, embed_fwd, n, seq, c, t, words, wpe.at[d], out.at[d]);
        ON(d, embed_bwd, n, seq, c, t, dout.at[d], d_words, dwpe.at[d], false);
        ON(d, embed_bwd, n, seq, c, t, dout.at[d], d_words, dwpe.at[d], true);
        ON(d, embed_fwd, n, seq, c, t, words, NULL, bare.at[d]);
        ON(d, embed_bwd, n, seq, c, t, dout.at[d], d_words, NULL, false);
    }
    vec_same("embed out without positions", &bare, tol(1e-7, 4e-3));
    vec_same("embed out", &out, tol(1e-7, 4e-3));
    vec_same("embed dwte", &dwte, 1e-6);
    vec_same("embed dwpe", &dwpe, 1e-6);
    vecs_free();
    mem_free(tokens);
}

static void check_embed(void)
{
    embed_one(1, 1, 1, 1, 8, 0);
    embed_one(6, 3, 5, 2, 8, 0);
    embed_one(5, 8, 3, 4, 8, 0); /* fewer rows than positions */
    embed_one(300, 100, 40, 7, 1000, 0);
    embed_one(30, 10, 40, 7, 1000, 1);
    embed_one(600, 75, 270, 3, 1000, 0);
    embed_one(257, 257, 33, 500, 100, 0);
}

PAIR_TEST(norm)
PAIR_TEST(llama)
PAIR_TEST(embed)

TEST_MAIN(NULL, NULL)
