#include "gpu/cuda/cuda_muon.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/cuda/cuda_plans.h"
#include "gpu/muon_rules.h"

struct batch {                   /* matrices of one shape */
    size_t rows, cols, first, n; /* first: index of the first matrix in the plan's places */
    struct cuda_gemm *gram, *mult, *next;
};

struct plan {
    struct cuda_plan base;
    struct batch *batches;
    size_t n_batches;
    struct cuda_muon_place *places;     /* [n], device memory, as all buffers below */
    float *gram, *inverse;              /* sized for the largest batch, as the buffers below */
    void *x, *y, *factor, *poly, *mult; /* bf16; with fp32, factor is gram */
    size_t begin, end;                  /* range of theta that holds all matrices */
};

static bool same_shape(const struct muon_matrix *a, const struct muon_matrix *b)
{
    return a->rows == b->rows && a->cols == b->cols;
}

/* Maxima over all batches: floats of the matrices, floats of the squares of their short sides, and number of
 * matrices. */
struct largest {
    size_t area, square, n;
};

/* Groups matrices of one shape into batches of at most `floats` floats. Writes them to order[n] and batches[] (NULL:
 * neither), and their maxima. Returns the number of batches. */
static size_t make_batches(const struct muon_matrix *matrices, size_t n, size_t floats, struct cuda_muon_place *order,
                           struct batch *batches, struct largest *l)
{
    size_t n_batches = 0, placed = 0;
    *l = (struct largest){0};
    for (size_t i = 0; i < n; i++) {
        const struct muon_matrix *first = &matrices[i];
        size_t area = first->rows * first->cols, side = muon_side(first->rows, first->cols), same = 0;
        size_t most = muon_max(floats / area, 1);
        bool seen = false;
        for (size_t j = 0; j < i && !seen; j++) seen = same_shape(&matrices[j], first);
        for (size_t j = i; j < n && !seen; j++) {
            if (!same_shape(&matrices[j], first)) continue;
            size_t in_batch = same++ % most + 1;
            n_batches += in_batch == 1;
            *l = (struct largest){.area = muon_max(l->area, in_batch * area),
                                  .square = muon_max(l->square, in_batch * side * side),
                                  .n = muon_max(l->n, in_batch)};
            if (!batches) continue;
            if (in_batch == 1)
                batches[n_batches - 1] = (struct batch){.rows = first->rows, .cols = first->cols, .first = placed};
            batches[n_batches - 1].n++;
            order[placed++] = (struct cuda_muon_place){.offset = matrices[j].offset,
                                                       .ld = matrices[j].ld,
                                                       .skipped = matrices[j].skipped,
                                                       .decay = matrices[j].decay};
        }
    }
    return n_batches;
}

/* Bytes of one element that matrix products read. */
static size_t element_bytes(const struct cuda_device *cuda)
{
    return cuda->bf16 ? sizeof(uint16_t) : sizeof(float);
}

static size_t muon_bytes(struct device *dev, const struct muon_matrix *matrices, size_t n)
{
    struct largest l;
    (void)make_batches(matrices, n, cuda_of(dev)->muon->floats, NULL, NULL, &l);
    size_t each = element_bytes(cuda_of(dev)), squares = cuda_of(dev)->bf16 ? 3 : 2; /* besides the fp32 one */
    return n * sizeof(struct cuda_muon_place) + (l.square + l.n) * sizeof(float) +
           (2 * l.area + squares * l.square) * each;
}

/* Each product covers a whole batch in one call. */
static enum status make_gemms(struct cuda_device *cuda, struct batch *b)
{
    size_t rows = b->rows, cols = b->cols, side = muon_side(rows, cols);
    bool tall = rows > cols, bf16 = cuda->bf16;
    struct cuda_rt *rt = cuda->rt;
    struct cuda_gemm_shape gram = {
        .m = side, .n = side, .k = tall ? rows : cols, .a_trans = tall, .b_trans = !tall, .bf16 = bf16, .batch = b->n};
    struct cuda_gemm_shape mult = {.m = side, .n = side, .k = side, .bf16 = bf16, .bf16_out = bf16, .batch = b->n};
    struct cuda_gemm_shape next = {.m = rows, .n = cols, .k = side, .bf16 = bf16, .bf16_out = bf16, .batch = b->n};
    TRY(cuda_rt_gemm_create(rt, &gram, &b->gram));
    TRY(cuda_rt_gemm_create(rt, &mult, &b->mult));
    return cuda_rt_gemm_create(rt, &next, &b->next);
}

static enum status upload_places(struct cuda_device *cuda, struct plan *plan, const struct muon_matrix *matrices,
                                 size_t n, struct largest *l)
{
    struct cuda_muon_place *order = mem_alloc(n, sizeof *order);
    plan->places = cuda_rt_alloc(cuda->rt, n * sizeof *order);
    enum status status = order && plan->places ? STATUS_OK : STATUS_NOMEM;
    if (status == STATUS_OK) {
        (void)make_batches(matrices, n, cuda->muon->floats, order, plan->batches, l);
        cuda_rt_copy(cuda->rt, plan->places, order, n * sizeof *order, CUDA_UPLOAD);
        status = cuda_rt_sync(cuda->rt, NULL); /* the copy must end before `order` is freed */
    }
    mem_free(order);
    return status;
}

static void written_range(struct plan *plan, const struct muon_matrix *matrices, size_t n)
{
    plan->begin = matrices[0].offset;
    assert(n > 0 && plan->end == 0);
    for (size_t i = 0; i < n; i++) {
        size_t begin = matrices[i].offset, end = begin + (matrices[i].rows - 1) * matrices[i].ld + matrices[i].cols;
        if (begin < plan->begin) plan->begin = begin;
        if (end > plan->end) plan->end = end;
    }
}

static enum status fill(struct cuda_device *cuda, struct plan *plan, const struct muon_matrix *matrices, size_t n)
{
    assert(!plan->batches);
    written_range(plan, matrices, n);
    struct largest l;
    plan->n_batches = make_batches(matrices, n, cuda->muon->floats, NULL, NULL, &l);
    assert(plan->n_batches >= 1 && plan->n_batches <= n);
    plan->batches = mem_alloc(plan->n_batches, sizeof *plan->batches);
    if (!plan->batches) return STATUS_NOMEM;
    TRY(upload_places(cuda, plan, matrices, n, &l));
    for (size_t i = 0; i < plan->n_batches; i++) TRY(make_gemms(cuda, &plan->batches[i]));
    size_t each = element_bytes(cuda);
    plan->x = cuda_rt_alloc(cuda->rt, l.area * each);
    plan->y = cuda_rt_alloc(cuda->rt, l.area * each);
    plan->gram = cuda_rt_alloc(cuda->rt, l.square * sizeof(float));
    plan->factor = cuda->bf16 ? cuda_rt_alloc(cuda->rt, l.square * each) : plan->gram;
    plan->poly = cuda_rt_alloc(cuda->rt, l.square * each);
    plan->mult = cuda_rt_alloc(cuda->rt, l.square * each);
    plan->inverse = cuda_rt_alloc(cuda->rt, l.n * sizeof(float));
    bool all = plan->x && plan->y && plan->gram && plan->factor && plan->poly && plan->mult && plan->inverse;
    return all ? STATUS_OK : STATUS_NOMEM;
}

static void free_plan(struct cuda_device *cuda, void *plan)
{
    struct plan *p = plan;
    for (size_t i = 0; p->batches && i < p->n_batches; i++) {
        cuda_rt_gemm_free(p->batches[i].gram);
        cuda_rt_gemm_free(p->batches[i].mult);
        cuda_rt_gemm_free(p->batches[i].next);
    }
    mem_free(p->batches);
    cuda_rt_release(cuda->rt, p->places);
    cuda_rt_release(cuda->rt, p->x);
    cuda_rt_release(cuda->rt, p->y);
    if (p->factor != p->gram) cuda_rt_release(cuda->rt, p->factor);
    cuda_rt_release(cuda->rt, p->gram);
    cuda_rt_release(cuda->rt, p->poly);
    cuda_rt_release(cuda->rt, p->mult);
    cuda_rt_release(cuda->rt, p->inverse);
}

static enum status muon_plan(struct device *dev, const struct muon_matrix *matrices, size_t n, struct muon_plan **out)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (!muon_matrices_valid(matrices, n)) return STATUS_INVALID;
    struct plan *plan = cuda_plan_new(sizeof *plan, free_plan);
    if (!plan) return STATUS_NOMEM;
    return cuda_plan_keep(cuda, plan, cuda_plan_refused(cuda, fill(cuda, plan, matrices, n)), out);
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Orthogonalizes the batch's matrices in x; returns the buffer that holds the result, x or y. */
static void *orthogonalize(struct cuda_device *cuda, const struct plan *p, const struct batch *b, uint32_t rounds)
{
    size_t side = muon_side(b->rows, b->cols);
    bool tall = b->rows > b->cols;
    void *x = p->x, *y = p->y, *mult = p->mult;
    assert(b->gram && b->mult && b->next && b->n > 0);
    for (uint32_t round = 0; round < rounds; round++) {
        struct cuda_muon_poly_args args = {.side = side,
                                           .first = round == 0,
                                           .bf16 = cuda->bf16,
                                           .gram = p->gram,
                                           .factor = p->factor,
                                           .poly = p->poly,
                                           .mult = mult,
                                           .inverse = p->inverse};
        cuda_rt_gemm(cuda->rt, b->gram, &(struct cuda_gemm_call){.a = x, .b = x, .out = args.gram});
        if (args.first) LAUNCH_ARGS(cuda, cuda_muon_norm, 1, b->n, &args);
        LAUNCH_ARGS(cuda, cuda_muon_poly, blocks_of(side * side, CUDA_BLOCK), b->n, &args);
        cuda_rt_gemm(cuda->rt, b->mult,
                     &(struct cuda_gemm_call){.a = args.factor, .b = args.poly, .c = mult, .out = mult});
        cuda_rt_gemm(cuda->rt, b->next, &(struct cuda_gemm_call){.a = tall ? x : mult, .b = tall ? mult : x, .out = y});
        void *was = x;
        x = y;
        y = was;
    }
    return x;
}

static void muon(struct device *dev, const struct muon_plan *plan, float *theta, const float *grad, void *momentum,
                 const struct muon_hyper *h, const float *scale)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    assert(h->steps >= 1 && (!h->bf16_moments || h->count));
    cuda_written(cuda, theta + p->begin, (p->end - p->begin) * sizeof *theta);
    for (size_t i = 0; i < p->n_batches; i++) {
        const struct batch *b = &p->batches[i];
        struct cuda_muon_args args = {.rows = b->rows,
                                      .cols = b->cols,
                                      .places = p->places + b->first,
                                      .mu = h->momentum,
                                      .decay = h->lr * h->weight_decay,
                                      .step = -h->lr * muon_length(b->rows, b->cols),
                                      .scale = scale,
                                      .grad = grad,
                                      .theta = theta,
                                      .momentum = momentum,
                                      .x = p->x,
                                      .count = h->bf16_moments ? h->count : NULL,
                                      .bf16 = cuda->bf16};
        size_t blocks = blocks_of(b->rows * b->cols, CUDA_BLOCK);
        LAUNCH_ARGS(cuda, cuda_muon_momentum, blocks, b->n, &args);
        args.x = orthogonalize(cuda, p, b, h->steps);
        LAUNCH_ARGS(cuda, cuda_muon_apply, blocks, b->n, &args);
    }
}

enum status cuda_muon_open(struct cuda_device *cuda)
{
    cuda->ops.muon_plan = muon_plan;
    cuda->ops.muon_bytes = muon_bytes;
    cuda->ops.muon = muon;
    cuda->muon = mem_alloc(1, sizeof *cuda->muon);
    if (!cuda->muon) return STATUS_NOMEM;
    cuda->muon->floats = CUDA_MUON_FLOATS;
    return STATUS_OK;
}

void cuda_muon_close(struct cuda_device *cuda)
{
    mem_free(cuda->muon);
}
