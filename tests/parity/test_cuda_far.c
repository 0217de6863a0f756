/* Tests kernels on arrays of more than 2^32 elements: the last blocks of a large launch give the same bits as a launch
 * on small arrays.
 *
 * The large arrays are not allocated. Their base pointers lie far before small arrays, which hold the elements of the
 * last blocks; only these blocks run. A 32-bit index would address unmapped memory and end the process. Optimizers and
 * deltas: test_cuda_large, which allocates theta.
 * ctest: timeout=120 */
#include <signal.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_impl.h"
#include "gpu/cuda/kernels/cuda_act.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

enum { ROWS = 24, COLUMNS = 264, ARRAYS_MAX = 24, LAUNCHES_MAX = 8 };

/* Elements and rows (of COLUMNS or a few less) before the small arrays; multiples of a block's share. */
#define FAR_NUMBERS ((size_t)1 << 33)
#define FAR_ROWS ((size_t)1 << 25)

typedef void (*check_fn)(size_t c); /* c: columns per row */

static struct device *dev;
static bool bf16; /* activations are bf16 */
static bool far;  /* the current launch is the large one */

/* --- arrays: one for the small and one for the large launch ------------------------------------------------------- */

static struct array {
    char *p[2], *was; /* was: initial content of both */
    size_t bytes, each;
    bool differs; /* refill gave them different content */
} arrays[ARRAYS_MAX];
static size_t n_arrays;

static struct array *array_of(const void *values, size_t n, size_t each)
{
    struct array *a = &arrays[n_arrays++];
    assert_true(n_arrays <= ARRAYS_MAX);
    *a = (struct array){.was = mem_alloc(n, each), .bytes = n * each, .each = each};
    assert_non_null(a->was);
    memcpy(a->was, values, a->bytes);
    for (int i = 0; i < 2; i++) {
        a->p[i] = dev->ops->alloc(dev, a->bytes);
        assert_non_null(a->p[i]);
        dev->ops->upload(dev, a->p[i], values, a->bytes);
    }
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    return a;
}

static struct array *floats(size_t n)
{
    float *values = case_normal(n, n_arrays + 1, 1);
    struct array *a = array_of(values, n, sizeof *values);
    mem_free(values);
    return a;
}

static struct array *activations(size_t n)
{
    if (!bf16) return floats(n);
    float *values = case_normal(n, n_arrays + 1, 1);
    uint16_t *half = mem_alloc(n, sizeof *half);
    assert_non_null(half);
    for (size_t i = 0; i < n; i++) half[i] = bf16_of(values[i]);
    struct array *a = array_of(half, n, sizeof *half);
    mem_free(values);
    mem_free(half);
    return a;
}

/* Base pointer of the array: in the large launch, `numbers` elements before it. */
static void *behind(const struct array *a, size_t numbers)
{
    return (void *)((uintptr_t)a->p[far] - (far ? numbers * a->each : 0));
}

/* Replace the content for the large launch, for arrays of indices. */
static void refill(struct array *a, const void *values)
{
    dev->ops->upload(dev, a->p[1], values, a->bytes);
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    a->differs = true;
}

static size_t before(size_t n)
{
    return far ? n : 0;
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* Grids of the small launches, in order. */
static struct cuda_grid small[LAUNCHES_MAX];
static size_t n_launches;

/* Start the small (0) or the large (1) launches of a case. */
static int begin(int which)
{
    far = which == 1;
    n_launches = 0;
    return which;
}

#define SMALL_THEN_FAR for (int i_ = begin(0); i_ < 2; i_ = begin(i_ + 1))

/* The blocks of a grid of x by y that run: all in the small launch, the same number at the end in the large one. */
static struct cuda_grid grid_of(size_t x, size_t y, unsigned most_x)
{
    struct cuda_grid grid = cuda_rt_grid(((struct cuda_device *)dev)->rt, x, y);
    struct cuda_grid *part = &small[n_launches++];
    assert_true(n_launches <= LAUNCHES_MAX);
    if (!far) *part = (struct cuda_grid){.x = grid.x < most_x ? grid.x : most_x, .y = grid.y};
    emulate_last_blocks(part->x, part->y);
    return grid;
}

static void launched(const char *name)
{
    struct err err = {0};
    if (dev->ops->sync(dev, &err) != STATUS_OK) fail_msg("%s: %s", name, err.msg);
    emulate_last_blocks(0, 0);
}

#define RUN(kernel, x, y, args_type, ...)                                                                              \
    do {                                                                                                               \
        struct cuda_grid grid_ = grid_of((x), (y), UINT32_MAX);                                                        \
        kernel(&grid_, &(struct args_type){__VA_ARGS__});                                                              \
        launched(#kernel);                                                                                             \
    } while (0)

/* End a case: both launches gave the same bits, and at least one array changed. */
static void compare(const char *name)
{
    bool changed = false;
    for (size_t i = 0; i < n_arrays; i++) {
        struct array *a = &arrays[i];
        char *made[2] = {mem_alloc(a->bytes, 1), mem_alloc(a->bytes, 1)};
        assert_true(made[0] && made[1]);
        dev->ops->download(dev, made[0], a->p[0], a->bytes);
        dev->ops->download(dev, made[1], a->p[1], a->bytes);
        assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
        if (!a->differs && memcmp(made[0], made[1], a->bytes))
            fail_msg("%s, array %zu: the large launch gives other bits", name, i);
        changed |= memcmp(made[0], a->was, a->bytes) != 0;
        for (int k = 0; k < 2; k++) dev->ops->release(dev, a->p[k]);
        mem_free(a->was);
        mem_free(made[0]);
        mem_free(made[1]);
    }
    n_arrays = 0;
    if (!changed) fail_msg("%s: no array changed", name);
}

/* Run the check in fp32 and bf16, with rows that are a multiple of a wide load and others. */
static void each_kind(check_fn check)
{
    signal(SIGSEGV, SIG_DFL); /* cmocka's handler would continue in the middle of a launch */
    signal(SIGBUS, SIG_DFL);
    for (int kind = 0; kind < 4; kind++) {
        dev = cuda_begin(false);
        bf16 = kind / 2;
        check(COLUMNS - kind % 2 * 3);
        cuda_end(dev);
    }
}

/* --- elements ----------------------------------------------------------------------------------------------------- */

static void check_elements(size_t c)
{
    size_t n = ROWS * c, wide = n % CUDA_WIDE ? 1 : CUDA_WIDE;
    struct array *x = floats(n), *y = floats(n), *half = array_of(x->was, n, sizeof(uint16_t));
    struct array *z = activations(n), *act = activations(n), *scale = floats(1), *theta = floats(n);
    SMALL_THEN_FAR
    {
        size_t all = before(FAR_NUMBERS) + n, blocks = blocks_of(all, CUDA_BLOCK);
        float *to = behind(y, FAR_NUMBERS), *from = behind(x, FAR_NUMBERS);
        RUN(cuda_fill, blocks, 1, cuda_vector_args, .n = all, .alpha = 3, .y = to);
        RUN(cuda_axpy, blocks, 1, cuda_vector_args, .n = all, .alpha = 3, .x = from, .y = to);
        RUN(cuda_round, blocks_of(all / wide, CUDA_BLOCK), 1, cuda_round_args, .n = all, .width = wide, .x = from,
            .y = behind(half, FAR_NUMBERS));
        RUN(cuda_sgd, blocks, 1, cuda_sgd_args, .n = all, .theta = behind(theta, FAR_NUMBERS), .grad = from,
            .scale = behind(scale, 0), .lr = 0.1f, .keep = 0.5f);
        const struct cuda_gelu_args gelu = {
            .n = all, .bf16 = bf16, .z = behind(z, FAR_NUMBERS), .y = behind(act, FAR_NUMBERS)};
        struct cuda_grid grid = grid_of(wide_blocks(all, all, CUDA_BLOCK), 1, UINT32_MAX);
        cuda_gelu_fwd(&grid, &gelu);
        cuda_gelu_bwd(&grid, &gelu);
        launched("cuda_gelu");
    }
    compare("elements");
}

static void check_reduce(size_t c)
{
    size_t segment = FAR_NUMBERS / CUDA_SEGMENTS;
    const double none = 7;
    struct array *x = floats(ROWS * c), *sums = array_of(&none, 1, sizeof none);
    SMALL_THEN_FAR
    RUN(cuda_reduce, before(CUDA_SEGMENTS) + 1, 1, cuda_reduce_args, .n = before(FAR_NUMBERS) + ROWS * c,
        .segment = segment, .square = bf16, .wide = 1, .x = behind(x, FAR_NUMBERS),
        .sums = behind(sums, CUDA_SEGMENTS));
    compare("reduce");
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static void check_embed(size_t c)
{
    int32_t tokens[ROWS], keys[ROWS], order[ROWS];
    for (int i = 0; i < ROWS; i++) tokens[i] = i * 5 % ROWS, keys[i] = i / 2, order[i] = ROWS - 1 - i;
    struct array *tokens_at = array_of(tokens, ROWS, sizeof *tokens);
    struct array *keys_at = array_of(keys, ROWS, sizeof *keys), *order_at = array_of(order, ROWS, sizeof *order);
    struct array *wte = floats(ROWS * c), *wpe = floats(ROWS * c), *out = activations(ROWS * c);
    struct array *dout = activations(ROWS * c), *dwte = floats(ROWS * c), *dwpe = floats(ROWS * c);
    for (int i = 0; i < ROWS; i++) tokens[i] += FAR_ROWS, keys[i] += FAR_ROWS;
    refill(tokens_at, tokens);
    refill(keys_at, keys);
    SMALL_THEN_FAR
    {
        size_t n = before(FAR_ROWS) + ROWS;
        RUN(cuda_embed_fwd, wide_blocks(n * c, c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = n, .c = c,
            .bf16 = bf16, .tokens = behind(tokens_at, FAR_ROWS), .wte = behind(wte, FAR_ROWS * c),
            .wpe = behind(wpe, FAR_ROWS * c), .out = behind(out, FAR_ROWS * c));
        RUN(cuda_embed_place, wide_blocks(n * c, c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = n, .c = c,
            .bf16 = bf16, .accumulate = 1, .dout = behind(dout, FAR_ROWS * c), .dwpe = behind(dwpe, FAR_ROWS * c));
        RUN(cuda_embed_word, blocks_of(ROWS, CUDA_ROW_WARPS), wide_blocks(c, c, 32), cuda_embed_args, .n = ROWS, .c = c,
            .bf16 = bf16, .order = behind(order_at, 0), .keys = behind(keys_at, 0), .dout = behind(dout, 0),
            .dwte = behind(dwte, FAR_ROWS * c));
    }
    compare("embed");
}

/* Layer norm and RMS norm with their sums over rows, 1024 rows per block. */
static void check_norm(size_t c)
{
    enum { BLOCK = 1024 };
    size_t far_sums = FAR_ROWS / BLOCK * 2 * c, far_rms_sums = FAR_ROWS / BLOCK * c;
    struct array *x = activations(ROWS * c), *dy = activations(ROWS * c), *dres = activations(ROWS * c);
    struct array *y = activations(ROWS * c), *dx = activations(ROWS * c), *rms_y = activations(ROWS * c);
    struct array *rms_dx = activations(ROWS * c), *w = floats(c), *b = floats(c), *mean = floats(ROWS);
    struct array *rstd = floats(ROWS), *rms_rstd = floats(ROWS), *sums = floats(2 * c), *rms_sums = floats(c);
    SMALL_THEN_FAR
    {
        size_t n = before(FAR_ROWS) + ROWS, warps = blocks_of(n, CUDA_ROW_WARPS), blocks = blocks_of(n, BLOCK);
        const struct cuda_norm_args norm = {.n = n,
                                            .c = c,
                                            .block = BLOCK,
                                            .bf16 = bf16,
                                            .x = behind(x, FAR_ROWS * c),
                                            .dy = behind(dy, FAR_ROWS * c),
                                            .dres = behind(dres, FAR_ROWS * c),
                                            .w = behind(w, 0),
                                            .b = behind(b, 0),
                                            .mean = behind(mean, FAR_ROWS),
                                            .rstd = behind(rstd, FAR_ROWS),
                                            .y = behind(y, FAR_ROWS * c),
                                            .dx = behind(dx, FAR_ROWS * c),
                                            .mean_out = behind(mean, FAR_ROWS),
                                            .rstd_out = behind(rstd, FAR_ROWS),
                                            .partials = behind(sums, far_sums)};
        const struct cuda_norm_args rms = {.n = n,
                                           .c = c,
                                           .block = BLOCK,
                                           .bf16 = bf16,
                                           .eps = 1e-5f,
                                           .x = norm.x,
                                           .dy = norm.dy,
                                           .dres = norm.dres,
                                           .w = norm.w,
                                           .rstd = behind(rms_rstd, FAR_ROWS),
                                           .y = behind(rms_y, FAR_ROWS * c),
                                           .dx = behind(rms_dx, FAR_ROWS * c),
                                           .rstd_out = behind(rms_rstd, FAR_ROWS),
                                           .partials = behind(rms_sums, far_rms_sums)};
        struct cuda_grid by_row = grid_of(warps, 1, UINT32_MAX);
        cuda_norm_fwd(&by_row, &norm);
        cuda_norm_bwd(&by_row, &norm);
        cuda_rms_fwd(&by_row, &rms);
        cuda_rms_bwd(&by_row, &rms);
        launched("norm by rows");
        struct cuda_grid by_column = grid_of(wide_blocks(c, c, CUDA_COLUMN_THREADS), blocks, UINT32_MAX);
        cuda_norm_columns(&by_column, &norm);
        cuda_rms_columns(&by_column, &rms);
        launched("norm by columns");
    }
    compare("norm");
}

/* The fused norm backward, and long rows. */
static void check_both(size_t c)
{
    enum { BLOCK = 1024 };
    bool is_long = c % CUDA_WIDE; /* long rows need a multiple of CUDA_WIDE */
    c = is_long ? CUDA_FUSED_SHORT + CUDA_WIDE : c;
    size_t far_sums = FAR_ROWS / BLOCK * 2 * c, far_rms_sums = FAR_ROWS / BLOCK * c;
    struct array *x = activations(ROWS * c), *dy = activations(ROWS * c), *dres = activations(ROWS * c);
    struct array *dx = activations(ROWS * c), *rms_dx = activations(ROWS * c), *w = floats(c);
    struct array *mean = floats(ROWS), *rstd = floats(ROWS), *sums = floats(2 * c), *rms_sums = floats(c);
    SMALL_THEN_FAR
    {
        size_t n = before(FAR_ROWS) + ROWS;
        struct cuda_norm_args args = {.n = n,
                                      .c = c,
                                      .block = BLOCK,
                                      .bf16 = bf16,
                                      .x = behind(x, FAR_ROWS * c),
                                      .dy = behind(dy, FAR_ROWS * c),
                                      .dres = behind(dres, FAR_ROWS * c),
                                      .w = behind(w, 0),
                                      .mean = behind(mean, FAR_ROWS),
                                      .rstd = behind(rstd, FAR_ROWS),
                                      .dx = behind(dx, FAR_ROWS * c),
                                      .partials = behind(sums, far_sums)};
        struct cuda_grid grid = grid_of(blocks_of(n, BLOCK), 1, UINT32_MAX);
        if (is_long)
            cuda_norm_fused(&grid, &args);
        else
            cuda_norm_fused_short(&grid, &args);
        args.dx = behind(rms_dx, FAR_ROWS * c);
        args.partials = behind(rms_sums, far_rms_sums);
        if (is_long)
            cuda_rms_fused(&grid, &args);
        else
            cuda_rms_fused_short(&grid, &args);
        launched("both");
    }
    compare("both");
}

static void check_columns(size_t c)
{
    enum { BLOCK = 1024, BLOCKS = 3, END = 64 };
    struct array *x = activations(ROWS * c), *sums = floats(c), *parts = floats(BLOCKS * END), *out = floats(END);
    SMALL_THEN_FAR
    {
        size_t n = before(FAR_ROWS) + ROWS, end = before(FAR_NUMBERS) + END;
        RUN(cuda_columns, wide_blocks(c, c, CUDA_COLUMN_THREADS), blocks_of(n, BLOCK), cuda_columns_args, .n = n,
            .c = c, .block = BLOCK, .stride = c, .bf16 = bf16, .x = behind(x, FAR_ROWS * c),
            .partials = behind(sums, FAR_ROWS / BLOCK * c));
        RUN(cuda_columns_end, blocks_of(end, 32), 1, cuda_columns_args, .c = end, .blocks = BLOCKS, .stride = END,
            .accumulate = bf16, .partials = behind(parts, FAR_NUMBERS), .out = behind(out, FAR_NUMBERS));
    }
    compare("columns");
}

static void check_gates(size_t c)
{
    size_t head_dim = c % CUDA_WIDE ? 66 : 64, heads = 8, ld = heads * head_dim + CUDA_WIDE;
    struct array *gu = activations(ROWS * 2 * c), *h = activations(ROWS * c), *dh = activations(ROWS * c);
    struct array *dgu = activations(ROWS * 2 * c), *x = activations(ROWS * ld), *table = floats(ROWS * head_dim);
    SMALL_THEN_FAR
    {
        size_t n = before(FAR_ROWS) + ROWS, pairs = n * heads * head_dim / 2;
        bool wide = head_dim / 2 % CUDA_WIDE == 0;
        const struct cuda_glu_args glu = {.n = n,
                                          .f = c,
                                          .bf16 = bf16,
                                          .gu = behind(gu, FAR_ROWS * 2 * c),
                                          .dh = behind(dh, FAR_ROWS * c),
                                          .h = behind(h, FAR_ROWS * c),
                                          .dgu = behind(dgu, FAR_ROWS * 2 * c)};
        struct cuda_grid grid = grid_of(wide_blocks(n * c, c, CUDA_BLOCK), 1, UINT32_MAX);
        cuda_glu_fwd(&grid, &glu);
        cuda_glu_bwd(&grid, &glu);
        launched("cuda_glu");
        RUN(cuda_rope, blocks_of(wide ? pairs / CUDA_WIDE : pairs, CUDA_BLOCK), 1, cuda_rope_args, .n = n, .seq = n,
            .heads = heads, .head_dim = head_dim, .ld = ld, .bf16 = bf16, .wide = wide,
            .table = behind(table, FAR_ROWS * head_dim), .x = behind(x, FAR_ROWS * ld));
    }
    compare("gates");
}

static void check_loss(size_t c)
{
    size_t ld = COLUMNS;
    int32_t targets[ROWS];
    for (int i = 0; i < ROWS; i++) targets[i] = i % 5 ? i * 7 % (int)c : -1;
    struct array *logits = activations(ROWS * ld), *loss = floats(ROWS);
    struct array *targets_at = array_of(targets, ROWS, sizeof *targets);
    SMALL_THEN_FAR
    RUN(cuda_xent, before(FAR_ROWS) + ROWS, 1, cuda_xent_args, .v = c, .ld = ld, .dscale = 0.5f, .bf16 = bf16,
        .logits = behind(logits, FAR_ROWS * ld), .loss = behind(loss, FAR_ROWS),
        .targets = behind(targets_at, FAR_ROWS));
    compare("loss");
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

typedef void (*attn_kernel)(const struct cuda_grid *grid, const struct cuda_attn_args *a);

/* One head, as many sequences as the grid's height; the last blocks of the last sequence run. */
static void attend(size_t head_dim)
{
    static const attn_kernel kernels[] = {cuda_attn_fwd, cuda_attn_dot, cuda_attn_bwd_q, cuda_attn_bwd_kv};
    enum { SEQ = 1500, FAR_SEQUENCES = CUDA_GRID_Y_MAX - 1 };
    size_t ld = 3 * head_dim, all = FAR_SEQUENCES * (size_t)SEQ;
    struct array *qkv = activations(SEQ * ld), *d_o = activations(SEQ * head_dim);
    struct array *o = activations(SEQ * head_dim), *dqkv = activations(SEQ * ld);
    struct array *lse = floats(SEQ), *dot = floats(SEQ);
    assert_true(all * head_dim > (size_t)UINT32_MAX);
    SMALL_THEN_FAR
    {
        const struct cuda_attn_args args = {.seq = SEQ,
                                            .heads = 1,
                                            .kv_heads = 1,
                                            .head_dim = head_dim,
                                            .bf16 = bf16,
                                            .scale = 0.125f,
                                            .qkv = behind(qkv, all * ld),
                                            .o_in = behind(o, all * head_dim),
                                            .d_o = behind(d_o, all * head_dim),
                                            .lse = behind(lse, all),
                                            .o = behind(o, all * head_dim),
                                            .lse_out = behind(lse, all),
                                            .dot = behind(dot, all),
                                            .dqkv = behind(dqkv, all * ld)};
        for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
            struct cuda_grid grid = grid_of(blocks_of(SEQ, CUDA_ATTN_ROWS), before(FAR_SEQUENCES) + 1, 2);
            kernels[i](&grid, &args);
            launched("attention");
        }
    }
    compare("attention");
}

static void check_attention(size_t c)
{
    if (c % CUDA_WIDE) attend(45);
}

#define FAR_TEST(name)                                                                                                 \
    TEST(test_far_##name)                                                                                              \
    {                                                                                                                  \
        each_kind(check_##name);                                                                                       \
    }

FAR_TEST(elements)
FAR_TEST(reduce)
FAR_TEST(embed)
FAR_TEST(norm)
FAR_TEST(both)
FAR_TEST(columns)
FAR_TEST(gates)
FAR_TEST(loss)
FAR_TEST(attention)
TEST_MAIN(NULL, NULL)
