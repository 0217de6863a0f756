/* ctest: labels=threads
 * Collectives between ranks that are threads: sums in rank order with the same bits on every rank, broadcast, and an
 * abort that ends every wait. */
#include <pthread.h>

#include "common/base/mem.h"
#include "gpu/collective.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

enum { N = 50021, ROUNDS = 20, RANKS = 4 };

struct rank {
    struct device *dev;
    struct collective *coll;
    float *buf;
    enum status status;
    int completed;
    pthread_t thread;
};

static float value(int rank, int round, size_t i)
{
    return (float)((i * 2654435761u + (unsigned)(rank * 977 + round * 31)) % 10007) * (rank % 2 ? 1e-3f : 1.7f);
}

/* Reduces parts of odd sizes to their reduce_to_owners, and gathers them on all ranks; a gap between parts keeps its
 * values. */
static enum status reduce_to_owners(struct rank *r, int round)
{
    struct collective *coll = r->coll;
    int last = coll->n_ranks - 1;
    const struct collective_part parts[] = {{.offset = 1, .n = 17, .root = last},
                                            {.offset = 18, .n = N / 3, .root = round % coll->n_ranks},
                                            {.offset = N / 2, .n = N - N / 2, .root = last}};
    for (size_t i = 0; i < N; i++) r->buf[i] = value(coll->rank, round, i);
    TRY(coll->ops->start_parts(coll, COLLECTIVE_REDUCE, r->buf, parts, 3, 7));
    collective_wait(coll, 7);
    for (int p = 0; p < 3; p++) /* a rank may discard the other parts */
        if (parts[p].root != coll->rank) memset(r->buf + parts[p].offset, 0xff, parts[p].n * sizeof *r->buf);
    TRY(coll->ops->start_parts(coll, COLLECTIVE_BROADCAST, r->buf, parts, 3, 7));
    collective_wait(coll, 7);
    for (size_t i = 0; i < N; i++) {
        bool in = i > 0 && (i < 18 + N / 3 || i >= N / 2);
        float want = value(in ? 0 : coll->rank, round, i);
        for (int k = 1; in && k < coll->n_ranks; k++) want += value(k, round, i);
        if (memcmp(&want, &r->buf[i], sizeof want) == 0) continue;
        coll->ops->abort(coll, NULL);
        return STATUS_MISMATCH;
    }
    for (size_t i = 0; i < N; i++) r->buf[i] = 0; /* the same on every rank */
    return STATUS_OK;
}

static void *rank_sums(void *arg)
{
    struct rank *r = arg;
    struct collective *coll = r->coll;
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < N; i++) r->buf[i] = value(coll->rank, round, i);
        size_t n = round == 0 ? 0 : round == 1 ? 1 : round == 2 ? 17 : N;
        r->status = collective_sum(coll, r->buf, n);
        if (r->status != STATUS_OK) return NULL;
        for (size_t i = 0; i < N; i++) {
            float want = i < n ? value(0, round, i) : value(coll->rank, round, i);
            for (int k = 1; i < n && k < coll->n_ranks; k++) want += value(k, round, i);
            if (memcmp(&want, &r->buf[i], sizeof want) != 0) {
                r->status = STATUS_MISMATCH;
                coll->ops->abort(coll, NULL);
                return NULL;
            }
        }
        int root = round % coll->n_ranks;
        r->status = coll->ops->start_parts(coll, COLLECTIVE_BROADCAST, r->buf,
                                           &(struct collective_part){.n = N, .root = root}, 1, 0);
        collective_wait(coll, 0);
        if (r->status != STATUS_OK) return NULL;
        r->status = reduce_to_owners(r, round);
        if (r->status != STATUS_OK) return NULL;
        r->completed++;
    }
    return NULL;
}

static void open_ranks(struct rank *ranks, struct collective *colls, int n)
{
    struct device *devices[RANKS];
    for (int i = 0; i < n; i++) {
        assert_int_equal(device_open("cpu", 1 + i % 2, &devices[i], NULL), STATUS_OK);
        ranks[i] = (struct rank){.dev = devices[i], .coll = &colls[i], .buf = mem_alloc(N, sizeof(float))};
    }
    assert_int_equal(collective_open(devices, n, NULL, colls, NULL), STATUS_OK);
}

static void close_ranks(struct rank *ranks, struct collective *colls, int n)
{
    collective_close(colls);
    for (int i = 0; i < n; i++) {
        device_close(ranks[i].dev);
        mem_free(ranks[i].buf);
    }
}

TEST(test_sums_have_same_bits_on_every_rank)
{
    for (int n = 1; n <= RANKS; n++) {
        struct rank ranks[RANKS];
        struct collective colls[RANKS];
        open_ranks(ranks, colls, n);
        for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_sums, &ranks[i]), 0);
        for (int i = 0; i < n; i++) pthread_join(ranks[i].thread, NULL);
        for (int i = 0; i < n; i++) {
            assert_int_equal(ranks[i].status, STATUS_OK);
            assert_int_equal(ranks[i].completed, ROUNDS);
            case_equal("after the broadcast", ranks[0].buf, ranks[i].buf, N);
        }
        close_ranks(ranks, colls, n);
    }
}

static void *rank_waits(void *arg)
{
    struct rank *r = arg;
    r->status = collective_sum(r->coll, r->buf, N);
    return NULL;
}

/* One rank aborts and never enters the collective: the others return. */
TEST(test_abort_ends_every_wait)
{
    struct rank ranks[RANKS];
    struct collective colls[RANKS];
    open_ranks(ranks, colls, RANKS);
    for (int i = 1; i < RANKS; i++) assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_waits, &ranks[i]), 0);
    assert_null(colls[1].ops->failure(&colls[1]));
    colls[0].ops->abort(&colls[0], &(struct err){STATUS_IO, "the first"});
    colls[1].ops->abort(&colls[1], &(struct err){STATUS_NOMEM, "the second"});
    assert_string_equal(colls[2].ops->failure(&colls[2])->msg, "the first");
    for (int i = 1; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_int_equal(ranks[i].status, STATUS_CLOSED);
    }
    assert_int_equal(collective_sum(&colls[2], ranks[2].buf, 1), STATUS_CLOSED);
    close_ranks(ranks, colls, RANKS);
}

static void *rank_short(void *arg)
{
    struct rank *r = arg;
    r->status = collective_sum(r->coll, r->buf, r->coll->rank == 1 ? 5 : N);
    return NULL;
}

TEST(test_different_lengths_are_refused)
{
    struct rank ranks[RANKS];
    struct collective colls[RANKS];
    struct err err;
    open_ranks(ranks, colls, 2);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_short, &ranks[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_true(ranks[i].status == STATUS_INVALID || ranks[i].status == STATUS_CLOSED);
    }
    close_ranks(ranks, colls, 2);
    assert_int_equal(collective_open(NULL, 0, NULL, colls, &err), STATUS_INVALID);
    assert_int_equal(collective_open(NULL, COLLECTIVE_RANKS_MAX + 1, NULL, colls, &err), STATUS_INVALID);
    collective_close(NULL);
}

TEST_MAIN(NULL, NULL)
