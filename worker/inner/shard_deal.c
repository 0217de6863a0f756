#include "worker/inner/shard_deal.h"

#include <assert.h>

#include "common/base/mem.h"

static void add_piece(struct shard_deal *deal, uint64_t offset, uint64_t count, int rank, bool matrices)
{
    struct shard_piece *last = deal->n_pieces ? &deal->pieces[deal->n_pieces - 1] : NULL;
    assert(count > 0 && offset == (last ? last->offset + last->count : 0)); /* pieces ascend without gaps */
    if (last && last->rank == rank && last->matrices == matrices)           /* extend the previous piece */
        last->count += count;
    else
        deal->pieces[deal->n_pieces++] =
            (struct shard_piece){.offset = offset, .count = count, .rank = rank, .matrices = matrices};
}

/* Adds a tensor without matrices, cut at the borders of the shares. *at: its start among these tensors, in elements. */
static void add_elementwise(struct shard_deal *deal, const struct tensor *t, uint64_t *at, uint64_t share, int ranks)
{
    for (uint64_t done = 0; done < t->count;) {
        uint64_t rank = *at / share, left = (rank + 1) * share - *at, n = t->count - done;
        if (rank + 1 < (uint64_t)ranks && n > left) n = left;
        add_piece(deal, t->offset + done, n, rank < (uint64_t)ranks ? (int)rank : ranks - 1, false);
        done += n;
        *at += n;
    }
}

static void add_pieces(struct shard_deal *deal, const struct layout *layout, int ranks)
{
    const struct inner_matrices *m = &deal->matrices;
    uint64_t elementwise = layout->n_params, at = 0;
    size_t next = 0; /* index of the next matrix */
    for (size_t i = 0; i < m->n; i++) elementwise -= m->matrices[i].rows * m->matrices[i].cols;
    uint64_t share = (elementwise / (uint64_t)ranks + 63) & ~(uint64_t)63;
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        if (next < m->n && m->tensors[next] == i)
            add_piece(deal, t->offset, t->count, m->ranks[next], true);
        else
            add_elementwise(deal, t, &at, share ? share : 1, ranks);
        while (next < m->n && m->tensors[next] == i) next++;
    }
    assert(next == m->n);
}

static void place_states(struct shard_deal *deal, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        uint64_t used[2] = {0, 0};
        size_t n = 0;
        for (size_t i = 0; i < deal->n_pieces; i++) {
            struct shard_piece *p = &deal->pieces[i];
            if (p->rank != r) continue;
            p->state = used[p->matrices];
            used[p->matrices] += p->count;
            n++;
        }
        if (n > deal->most) deal->most = n;
    }
    size_t piece = 0;
    for (size_t i = 0; i < deal->matrices.n; i++) {
        struct muon_matrix *m = &deal->matrices.matrices[i];
        while (m->offset >= deal->pieces[piece].offset + deal->pieces[piece].count) piece++;
        assert(piece < deal->n_pieces && deal->pieces[piece].matrices);
        m->skipped = deal->pieces[piece].offset - deal->pieces[piece].state;
    }
}

/* Cuts each bucket into parts with one owner each, without padding. */
static void cut_buckets(struct shard_deal *deal, const struct shard_map *map)
{
    size_t n = 0, piece = 0;
    for (uint32_t b = 0; b < map->n_buckets; b++) {
        uint64_t at = shard_bucket_offset(map, b), end = at + shard_bucket_params(map, b);
        deal->first[b] = n;
        while (at < end) {
            assert(piece < deal->n_pieces);
            const struct shard_piece *p = &deal->pieces[piece];
            uint64_t stop = p->offset + p->count < end ? p->offset + p->count : end;
            struct collective_part *last = n > deal->first[b] ? &deal->parts[n - 1] : NULL;
            if (last && last->root == p->rank)
                last->n += stop - at;
            else
                deal->parts[n++] = (struct collective_part){.offset = at, .n = stop - at, .root = p->rank};
            at = stop;
            if (at == p->offset + p->count) piece++;
        }
    }
    assert(piece == deal->n_pieces); /* the buckets cover all of theta */
    deal->first[map->n_buckets] = n;
}

enum status shard_deal_make(struct shard_deal *deal, const struct shard_map *map, const struct layout *layout,
                            hidden_blocks_fn blocks)
{
    int ranks = (int)map->ranks;
    *deal = (struct shard_deal){0};
    TRY(inner_matrices_deal(&deal->matrices, layout, blocks, ranks, true));
    size_t most = layout->n_tensors + map->ranks; /* every cut adds one piece */
    deal->pieces = mem_alloc(most, sizeof *deal->pieces);
    deal->parts = mem_alloc(most + map->n_buckets, sizeof *deal->parts);
    if (!deal->pieces || !deal->parts) {
        shard_deal_finish(deal);
        return STATUS_NOMEM;
    }
    add_pieces(deal, layout, ranks);
    assert(deal->n_pieces <= most);
    place_states(deal, ranks);
    cut_buckets(deal, map);
    return STATUS_OK;
}

void shard_deal_finish(struct shard_deal *deal)
{
    inner_matrices_finish(&deal->matrices);
    mem_free(deal->pieces);
    mem_free(deal->parts);
    *deal = (struct shard_deal){0};
}

uint64_t shard_deal_floats(const struct shard_deal *deal, int rank, bool matrices)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < deal->n_pieces; i++)
        if (deal->pieces[i].rank == rank && deal->pieces[i].matrices == matrices) sum += deal->pieces[i].count;
    return sum;
}
