#include "worker/inner/inner_matrices.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "gpu/muon_rules.h"

static enum status list_matrices(struct inner_matrices *m, const struct layout *layout, hidden_blocks_fn blocks_of)
{
    for (uint32_t i = 0; blocks_of && i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        uint32_t blocks = blocks_of(t);
        if (!blocks) continue;
        if (t->ndim != 2 || t->shape[1] % blocks) return STATUS_INVALID;
        size_t cols = (size_t)(t->shape[1] / blocks);
        for (uint32_t b = 0; b < blocks; b++) {
            if (m->matrices) {
                m->matrices[m->n] = (struct muon_matrix){.offset = t->offset + b * cols,
                                                         .rows = (size_t)t->shape[0],
                                                         .cols = cols,
                                                         .ld = (size_t)t->shape[1],
                                                         .decay = t->decay};
                m->tensors[m->n] = i;
            }
            m->n++;
        }
    }
    return STATUS_OK;
}

struct group { /* matrices that go to one rank together */
    size_t index, n;
    double work;
};

static int by_work_descending(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    if (x->work != y->work) return x->work > y->work ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static void deal(struct inner_matrices *m, struct group *order, double *load, int n_ranks, bool tensors)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++) {
        double work = muon_work(m->matrices[i].rows, m->matrices[i].cols);
        if (!tensors || !i || m->tensors[i] != m->tensors[i - 1]) order[n++] = (struct group){.index = i};
        order[n - 1].work += work;
        order[n - 1].n++;
    }
    assert(n_ranks > 0 && n > 0 && n <= m->n);
    qsort(order, n, sizeof *order, by_work_descending);
    for (size_t i = 0; i < n; i++) {
        int least = 0;
        for (int r = 1; r < n_ranks; r++)
            if (load[r] < load[least]) least = r;
        load[least] += order[i].work;
        for (size_t k = 0; k < order[i].n; k++) m->ranks[order[i].index + k] = least;
    }
}

enum status inner_matrices_deal(struct inner_matrices *m, const struct layout *layout, hidden_blocks_fn blocks,
                                int n_ranks, bool tensors)
{
    *m = (struct inner_matrices){0};
    TRY(list_matrices(m, layout, blocks)); /* m->matrices is NULL: only counts */
    if (!m->n) return STATUS_OK;
    m->matrices = mem_alloc(m->n, sizeof *m->matrices);
    m->ranks = mem_alloc(m->n, sizeof *m->ranks);
    m->tensors = mem_alloc(m->n, sizeof *m->tensors);
    struct group *order = mem_alloc(m->n, sizeof *order);
    double *load = mem_alloc((size_t)n_ranks, sizeof *load);
    enum status status = m->matrices && m->ranks && m->tensors && order && load ? STATUS_OK : STATUS_NOMEM;
    if (status == STATUS_OK) {
        size_t counted = m->n;
        m->n = 0;
        status = list_matrices(m, layout, blocks);
        assert(m->n == counted);
    }
    if (status == STATUS_OK) deal(m, order, load, n_ranks, tensors);
    mem_free(order);
    mem_free(load);
    if (status != STATUS_OK) inner_matrices_finish(m);
    return status;
}

void inner_matrices_finish(struct inner_matrices *m)
{
    mem_free(m->matrices);
    mem_free(m->ranks);
    mem_free(m->tensors);
    *m = (struct inner_matrices){0};
}

size_t inner_matrices_of(const struct inner_matrices *m, int rank, struct muon_matrix *out)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++)
        if (m->ranks[i] == rank) out[n++] = m->matrices[i];
    return n;
}
