/* codec.down auto: the size of a union is known before its encoding, and the smaller form is sent.
 * Also: how a union handles vectors and the error of its codec. ctest: timeout=150 */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/relay.h"
#include "compress/topk/union_size.h"
#include "tests/lib/rigs/merge_rig.h"
#include "tests/lib/test.h"

enum { R = MERGERIG_WORKERS, ROUNDS = 3, MOST_ROUNDS = 10 };

static struct merge_rig w;
enum { FLOATS = 700 * 384 + 384 + 37 * 11 + 100 * 501 + 77 }; /* of the layout below */

static void world_open(const char *up, const char *down)
{
    static const struct merge_rig_tensor tensors[] = {{"embedding", 700, 384}, /* more than one group */
                                                      {"bias", 384, 0},
                                                      {"thin", 37, 11}, /* short chunks */
                                                      {"matrix", 100, 501},
                                                      {"norm", 77, 0}};
    merge_rig_open(&w, up, down, tensors, sizeof tensors / sizeof *tensors);
    assert_int_equal(w.layout.n_params, FLOATS);
}

static void world_close(void)
{
    merge_rig_close(&w);
}

/* Returns normal noise, made once because drawing it is slow. A round reads the noise of the previous one at another
 * offset. */
static const float *noise(uint64_t round, uint32_t which)
{
    enum { FURTHER = 1009, DRAWN = FLOATS + MOST_ROUNDS * FURTHER };
    static float drawn[R + 1][DRAWN];
    static bool there[R + 1];
    assert_true(round < MOST_ROUNDS && which <= R);
    if (!there[which]) rng_normal_fill(9, RNG_TEST, (uint64_t)which << 30, 0.01f, drawn[which], DRAWN);
    there[which] = true;
    return drawn[which] + round * FURTHER;
}

/* Merges deltas of n workers that share the part `shared` of their direction; some rows are larger. Returns the
 * bytes of the deltas. */
static uint64_t merge_round(uint32_t n, float shared, uint64_t round)
{
    uint64_t bytes = 0;
    float alone = sqrtf(1 - shared * shared);
    const float *common = noise(round, 0);
    for (uint32_t i = 0; i < n; i++) {
        const float *own = noise(round, i + 1);
        for (uint64_t k = 0; k < FLOATS; k++) w.x[k] = (shared * common[k] + alone * own[k]) * (float)(1 + k / 384 % 7);
        merge_rig_encode(&w, i);
        bytes += w.deltas[i].size;
    }
    merge_rig_merge(&w, n);
    return bytes;
}

static size_t encode_union(uint64_t round)
{
    struct outer_step step = {.version = round + 1, .round = round};
    size_t size;
    assert_int_equal(outer_state_step(&w.outer, &step, 0, &size), STATUS_OK);
    return size;
}

TEST(test_counted_bytes_match_encoded_bytes)
{
    static const char *const ups[] = {"topk:1/4096+sign",  "topk:64/4096+sign",   "topk:64/1024+int8",
                                      "topk:128/256+2bit", "topk:1000/4096+sign", "topk:255/256+sign"};
    double worst = 0;
    for (size_t u = 0; u < sizeof ups / sizeof *ups; u++)
        for (uint32_t n = 1; n <= R; n *= 4) {
            world_open(ups[u], "auto");
            for (uint64_t round = 0; round < ROUNDS; round++) {
                merge_round(n, 0.7f, round);
                uint64_t counted = union_bytes(&w.layout, 0, w.outer.acc, NULL);
                double encoded = (double)encode_union(round), off = fabs((double)counted - encoded) / encoded;
                double chunks = 700.0 * 384 / 4096 + 14;
                double most = 0.003 * encoded + 3 * chunks / 8; /* scales: a large part if a chunk has a single value */
                if (fabs((double)counted - encoded) > most)
                    fail_msg("%s, %u workers, round %u: counted %llu bytes, encoded %.0f", ups[u], n, (unsigned)round,
                             (unsigned long long)counted, encoded);
                if (off > worst) worst = off;
            }
            world_close();
        }
    printf("worst: %.3f %%\n", 100 * worst);
}

TEST(test_empty_and_full_unions_are_counted)
{
    world_open("topk:64/4096+sign", "auto");
    uint64_t n = w.layout.n_params, chunks = 66 + 1 + 13, vectors = 2 * (384 + 77);
    for (uint64_t i = 0; i < n; i++) w.outer.acc[i] = -0.0f; /* empty: a scale of 24 bits per chunk */
    uint64_t full_groups = chunks / 32, rest = chunks % 32;
    assert_int_equal(union_bytes(&w.layout, 0, w.outer.acc, NULL),
                     vectors + 4 * full_groups + full_groups * (2 + 96) + 2 + 3 * rest);
    for (uint64_t i = 0; i < n; i++) w.outer.acc[i] = i % 2 ? 1.0f : -1.0f; /* full */
    uint64_t counted = union_bytes(&w.layout, 0, w.outer.acc, NULL), encoded = encode_union(0);
    assert_true(counted > encoded - encoded / 300 && counted < encoded + encoded / 300);
    world_close();
}

/* The coordinator sends the form with fewer bytes to all workers, each without its own delta. */
TEST(test_smaller_form_is_sent)
{
    static const float shared[] = {0, 0.3f, 0.6f, 0.8f, 0.95f};
    int relayed = 0, joined = 0, close = 0;
    printf("bytes a worker, relayed / union:\n");
    for (uint32_t n = 2; n <= R; n += n < 4 ? 1 : n) {
        printf("%2u workers:", n);
        for (size_t s = 0; s < sizeof shared / sizeof *shared; s++) {
            world_open("topk:64/4096+sign", "auto");
            for (uint64_t round = 0; round < ROUNDS; round++) {
                struct outer_ways ways = {.named = n, .members = n, .head = 100};
                uint64_t head = 100 + strlen("relay") + relay_head_size(n);
                ways.deltas = merge_round(n, shared[s], round);
                bool relay = outer_state_relays(&w.outer, &ways);
                uint64_t encoded = encode_union(round) + 100 + strlen("topk:4095/4096+sign"), got = 0;
                for (uint32_t i = 0; i < n; i++) got += head + ways.deltas - w.deltas[i].size + 64;
                assert_int_equal(ways.relay_bytes, got);
                bool near = fabs((double)got - (double)(n * encoded)) < 0.003 * (double)got;
                close += near;
                if (!near && relay != (got < n * encoded))
                    fail_msg("%u workers, %.2f shared: relayed %llu, union %llu, relay is %d", n, (double)shared[s],
                             (unsigned long long)got, (unsigned long long)(n * encoded), relay);
                relayed += relay;
                joined += !relay;
                if (round + 1 == ROUNDS)
                    printf("  %llu / %llu%s", (unsigned long long)(got / n), (unsigned long long)encoded,
                           relay ? " relay" : " union");
            }
            world_close();
        }
        printf("\n");
    }
    assert_true(relayed > 10 && joined > 10 && close < 10);
}

/* Workers without a delta in the update get all deltas. */
TEST(test_members_without_delta_count_all_bytes)
{
    world_open("topk:64/4096+sign", "auto");
    struct outer_ways ways = {.named = 2, .members = 7, .head = 100, .deltas = merge_round(2, 0, 0)};
    (void)outer_state_relays(&w.outer, &ways);
    uint64_t relay = 100 + 5 + 16 + ways.deltas;
    assert_int_equal(ways.relay_bytes, 7 * relay - ways.deltas + 2 * 64);
    struct outer_ways fewer = ways;
    fewer.members = 1; /* one of the two has left meanwhile */
    (void)outer_state_relays(&w.outer, &fewer);
    assert_int_equal(fewer.relay_bytes, 2 * relay - ways.deltas + 2 * 64);
    world_close();
}

/* Every delta carries 1-D tensors densely. The union sends them in 16 bits per value; the rounding error stays in
 * the residual. */
TEST(test_vectors_are_followed_exactly)
{
    world_open("topk:64/4096+sign", "union");
    const struct tensor *bias = &w.layout.tensors[1];
    double *ideal = mem_alloc(bias->count, sizeof *ideal);
    for (uint64_t i = 0; i < bias->count; i++) ideal[i] = (double)w.outer.theta[bias->offset + i];
    for (uint64_t round = 0; round < MOST_ROUNDS; round++) {
        merge_round(4, 0.5f, round);
        for (uint64_t i = 0; i < bias->count; i++) {
            ideal[i] -= w.config.outer.learning_rate * (double)w.outer.acc[bias->offset + i];
            assert_true(w.outer.acc[bias->offset + i] != 0);
        }
        encode_union(round);
        const float *owed = w.outer.fragments[0].residual.residual;
        for (uint64_t i = 0; i < bias->count; i++) {
            double theta = (double)w.outer.theta[bias->offset + i];
            assert_true(fabs(theta - ideal[i]) < 1e-3); /* bf16 of steps around 0.02 */
            assert_true(fabs(theta + (double)owed[bias->offset + i] - ideal[i]) < 1e-5);
        }
    }
    mem_free(ideal);
    world_close();
}

TEST_MAIN(NULL, NULL)
