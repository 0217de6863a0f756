/* Relayed deltas: bytes, refusals, and that a worker that merges them gets the coordinator's theta. */

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/apply.h"
#include "compress/relay.h"
#include "tests/lib/rigs/merge_rig.h"
#include "tests/lib/test.h"

enum { ROWS = 40, COLS = 1000, N = ROWS * COLS, R = 4 };

static struct merge_rig w;

static void world_open(const char *up, const char *down)
{
    static const struct merge_rig_tensor tensor = {"t", ROWS, COLS};
    merge_rig_open(&w, up, down, &tensor, 1);
    for (uint32_t i = 0; i < R; i++) {
        rng_normal_fill(5, RNG_TEST, (uint64_t)i << 30, 0.1f, w.x, N);
        merge_rig_encode(&w, i);
    }
}

static uint8_t *relayed(size_t *size_p)
{
    size_t at = relay_head_size(R);
    for (int i = 0; i < R; i++) at += w.deltas[i].size;
    uint8_t *bytes = mem_alloc(1, at);
    *size_p = at;
    relay_head_write(w.deltas, R, bytes);
    at = relay_head_size(R);
    for (int i = 0; i < R; i++) {
        memcpy(bytes + at, w.deltas[i].payload, w.deltas[i].size);
        at += w.deltas[i].size;
    }
    return bytes;
}

TEST(test_payload_has_documented_bytes)
{
    const uint8_t payload[3] = {7, 8, 9};
    const struct merge_delta deltas[2] = {{.payload = payload, .size = 2}, {.payload = payload + 2, .size = 0x10203}};
    const uint8_t expect[16] = {2, 0, 0, 0, 0, 0, 0, 0, 3, 2, 1};
    uint8_t head[16];
    assert_int_equal(relay_head_size(2), 16);
    relay_head_write(deltas, 2, head);
    assert_memory_equal(head, expect, 16);
}

TEST(test_invalid_payloads_are_refused)
{
    struct merge_delta out[R];
    size_t size;
    world_open("topk:64/4096+sign", "relay");
    uint8_t *bytes = relayed(&size);
    assert_int_equal(relay_split(out, R, bytes, size), STATUS_OK);
    for (int i = 0; i < R; i++) {
        assert_int_equal(out[i].size, w.deltas[i].size);
        assert_memory_equal(out[i].payload, w.deltas[i].payload, out[i].size);
    }
    assert_int_equal(relay_split(out, R, bytes, size - 1), STATUS_CORRUPT);
    assert_int_equal(relay_split(out, R, bytes, 8 * R - 1), STATUS_CORRUPT);
    assert_int_equal(relay_split(out, R - 1, bytes, size), STATUS_CORRUPT);
    assert_int_equal(relay_split(out, 0, bytes, 0), STATUS_CORRUPT);
    memset(bytes + 8, 0xff, 8); /* an enormous size */
    assert_int_equal(relay_split(out, R, bytes, size), STATUS_CORRUPT);
    mem_free(bytes);
    merge_rig_close(&w);
}

/* Finds the range of one delta from the sizes alone. */
TEST(test_range_is_found_from_sizes)
{
    struct merge_delta out[R];
    size_t size;
    uint64_t from, to;
    world_open("topk:64/4096+sign", "relay");
    uint8_t *bytes = relayed(&size);
    assert_int_equal(relay_split(out, R, bytes, size), STATUS_OK);
    for (uint32_t i = 0; i < R; i++) {
        assert_int_equal(relay_range(bytes, relay_head_size(R), R, i, &from, &to), STATUS_OK);
        assert_ptr_equal(bytes + from, out[i].payload);
        assert_int_equal(to - from, out[i].size);
    }
    assert_int_equal(relay_range(bytes, relay_head_size(R) - 1, R, 0, &from, &to), STATUS_AGAIN);
    assert_int_equal(relay_range(bytes, size, R, R, &from, &to), STATUS_CORRUPT);
    memset(bytes + 8, 0xff, 8); /* sizes that overflow the sum */
    assert_int_equal(relay_range(bytes, size, R, 0, &from, &to), STATUS_OK);
    assert_int_equal(relay_range(bytes, size, R, 1, &from, &to), STATUS_CORRUPT);
    mem_free(bytes);
    merge_rig_close(&w);
}

/* A worker that applies the relayed deltas has the coordinator's theta, for any codec of deltas. */
TEST(test_worker_gets_theta_of_coordinator)
{
    const char *const specs[] = {"topk:64/4096+sign", "int8:256", "fp32", "bf16+lz4", "topk:32/1024+int8"};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct merge_delta out[R];
        struct merge merge;
        struct outer_step step = {.version = 1, .relay = true};
        size_t size, unused = 0;
        world_open(specs[s], "relay");
        bool parameters = w.outer.merger.parameters;
        uint8_t *bytes = relayed(&size);
        memcpy(w.x, w.outer.theta, N * sizeof *w.x); /* the worker's theta */
        assert_null(w.outer.fragments[0].down);
        merge_rig_merge(&w, R);
        assert_int_equal(outer_state_step(&w.outer, &step, 0, &unused), STATUS_OK);

        float *got = mem_alloc(N, sizeof *got);
        assert_int_equal(relay_split(out, R, bytes, size), STATUS_OK);
        for (int i = 0; i < R; i++) out[i].tokens = w.tokens[i];
        assert_int_equal(
            merge_start(&merge, &w.outer.merger, &w.layout, 0, w.outer.fragments[0].up, w.x, got, w.tokens, R),
            STATUS_OK);
        assert_int_equal(relay_merge(&merge, out), STATUS_OK);
        apply_sgd(w.x, got, N, w.config.outer.learning_rate, parameters, !parameters);
        apply_update(w.x, parameters, got, N);
        assert_memory_equal(w.x, w.outer.theta, N * sizeof *w.x);
        bytes[relay_head_size(R)] ^= 0xff;
        bytes[size - 1] ^= 0xff;
        out[0].size--;
        assert_int_equal(
            merge_start(&merge, &w.outer.merger, &w.layout, 0, w.outer.fragments[0].up, w.x, got, w.tokens, R),
            STATUS_OK);
        assert_int_not_equal(relay_merge(&merge, out), STATUS_OK);
        mem_free(got);
        mem_free(bytes);
        merge_rig_close(&w);
    }
}

/* A union publishes the coordinates that any worker sent. The residual keeps the codec's error and the other
 * coordinates. */
TEST(test_union_keeps_rest_in_residual)
{
    static double ideal[N];
    static float before[N], owed[N];
    world_open("topk:64/4096+sign", "union");
    float *residual = w.outer.fragments[0].residual.residual;
    for (int i = 0; i < N; i++) ideal[i] = w.outer.theta[i];
    for (uint64_t version = 1; version <= 4; version++) {
        struct outer_step step = {.version = version};
        size_t size;
        memcpy(before, w.outer.theta, sizeof before);
        memcpy(owed, residual, sizeof owed);
        merge_rig_merge(&w, (uint32_t)version);
        memcpy(w.x, w.outer.acc, N * sizeof *w.x);
        int sent = 0, moved = 0;
        assert_int_equal(outer_state_step(&w.outer, &step, 0, &size), STATUS_OK);
        for (int i = 0; i < N; i++) {
            bool out = w.x[i] == 0;
            ideal[i] -= (double)w.x[i];
            sent += !out;
            moved += before[i] != w.outer.theta[i];
            if (out) assert_true(before[i] == w.outer.theta[i] && owed[i] == residual[i]);
            double all = (double)w.outer.theta[i] + (double)residual[i];
            assert_true(all - ideal[i] < 1e-6 && ideal[i] - all < 1e-6);
        }
        assert_true(sent > N / 70 * (int)version / 2 && moved > sent * 9 / 10);
        assert_true(size * 8 < N);
    }
    merge_rig_close(&w);
}

TEST_MAIN(NULL, NULL)
