/* Relayed deltas: bytes, refusals, and that who merges them gets what the coordinator has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/apply.h"
#include "common/layout.h"
#include "common/mem.h"
#include "common/rng.h"
#include "compress/relay.h"
#include "coordinator/outer_state.h"

enum { ROWS = 40, COLS = 1000, N = ROWS * COLS, R = 4 };

struct world {
    struct config config;
    struct layout layout;
    struct outer_state outer;
    struct merge_delta deltas[R];
    uint64_t tokens[R];
    float x[N];
};

static struct world w;

static void world_open(const char *up, const char *down)
{
    struct config_sources sources;
    struct err err = {0};
    char text[2][80];
    uint64_t shape[2] = {ROWS, COLS};
    memset(&w, 0, sizeof w);
    config_defaults(&w.config, &sources);
    snprintf(text[0], sizeof text[0], "codec.up=%s", up);
    snprintf(text[1], sizeof text[1], "codec.down=%s", down);
    assert_int_equal(config_set(&w.config, &sources, "train.method=local-sgd", CONFIG_FLAG, &err), STATUS_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(config_set(&w.config, &sources, text[i], CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(&w.config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    layout_init(&w.layout);
    assert_int_equal(layout_add(&w.layout, "t", 2, shape, LAYOUT_INIT_NORMAL, 1.0f, true), STATUS_OK);
    assert_int_equal(layout_split(&w.layout, 1), STATUS_OK);
    if (outer_state_init(&w.outer, &w.config, &w.layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(outer_state_fill(&w.outer, NULL, &err), STATUS_OK);
    for (int i = 0; i < R; i++) {
        struct codec *codec = w.outer.fragments[0].up;
        uint8_t *payload = mem_alloc(1, codec_bound(codec));
        rng_normal_fill(5, RNG_TEST, (uint64_t)i << 30, 0.1f, w.x, N);
        assert_int_equal(codec_encode(codec, w.x, payload, codec_bound(codec), &w.deltas[i].size, NULL), STATUS_OK);
        w.deltas[i].payload = payload;
        w.deltas[i].room = mem_alloc(1, codec_open_room(codec));
        w.tokens[i] = w.deltas[i].tokens = 100 + 7 * (uint64_t)i;
    }
}

static void world_close(void)
{
    for (int i = 0; i < R; i++) {
        mem_free((void *)(uintptr_t)w.deltas[i].payload);
        mem_free(w.deltas[i].room);
    }
    outer_state_finish(&w.outer);
    layout_finish(&w.layout);
    assert_int_equal(mem_live_bytes(), 0);
}

static void merge_now(uint32_t n)
{
    struct merge merge;
    struct codec *up = w.outer.fragments[0].up;
    for (uint32_t i = 0; i < n; i++) assert_int_equal(merge_open(up, &w.deltas[i]), STATUS_OK);
    assert_int_equal(merge_start(&merge, &w.outer.merger, &w.layout, 0, up, w.outer.theta, w.outer.acc, w.tokens, n),
                     STATUS_OK);
    merge_add(&merge, w.deltas, n);
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

static void test_bytes(void **state)
{
    (void)state;
    const uint8_t payload[3] = {7, 8, 9};
    const struct merge_delta deltas[2] = {{.payload = payload, .size = 2}, {.payload = payload + 2, .size = 0x10203}};
    const uint8_t expect[16] = {2, 0, 0, 0, 0, 0, 0, 0, 3, 2, 1};
    uint8_t head[16];
    assert_int_equal(relay_head_size(2), 16);
    relay_head_write(deltas, 2, head);
    assert_memory_equal(head, expect, 16);
}

static void test_split(void **state)
{
    (void)state;
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
    memset(bytes + 8, 0xff, 8); /* a huge size */
    assert_int_equal(relay_split(out, R, bytes, size), STATUS_CORRUPT);
    mem_free(bytes);
    world_close();
}

/* Where one of them lies, from the sizes alone. */
static void test_range(void **state)
{
    (void)state;
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
    memset(bytes + 8, 0xff, 8); /* sizes that wrap around */
    assert_int_equal(relay_range(bytes, size, R, 0, &from, &to), STATUS_OK);
    assert_int_equal(relay_range(bytes, size, R, 1, &from, &to), STATUS_CORRUPT);
    mem_free(bytes);
    world_close();
}

/* What a worker makes of it is what the coordinator has, for any codec of deltas. */
static void test_worker_equals_coordinator(void **state)
{
    (void)state;
    const char *const specs[] = {"topk:64/4096+sign", "int8:256", "fp32", "bf16+lz4", "topk:32/1024+int8"};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct merge_delta out[R];
        struct merge merge;
        struct outer_step step = {.version = 1, .relay = true};
        size_t size, unused = 0;
        world_open(specs[s], "relay");
        bool parameters = w.outer.merger.parameters;
        uint8_t *bytes = relayed(&size);
        memcpy(w.x, w.outer.theta, sizeof w.x); /* the worker's theta */
        assert_null(w.outer.fragments[0].down);
        merge_now(R);
        assert_int_equal(outer_state_step(&w.outer, &step, 0, &unused), STATUS_OK);

        float *got = mem_alloc(N, sizeof *got);
        assert_int_equal(relay_split(out, R, bytes, size), STATUS_OK);
        for (int i = 0; i < R; i++) out[i].tokens = w.tokens[i];
        assert_int_equal(merge_start(&merge, &w.outer.merger, &w.layout, 0, w.outer.fragments[0].up, w.x, got, w.tokens,
                                     R), STATUS_OK);
        assert_int_equal(relay_merge(&merge, out), STATUS_OK);
        apply_sgd(w.x, got, N, w.config.outer.learning_rate, parameters, !parameters);
        apply_update(w.x, parameters, got, N);
        assert_memory_equal(w.x, w.outer.theta, sizeof w.x);
        bytes[relay_head_size(R)] ^= 0xff;
        bytes[size - 1] ^= 0xff;
        out[0].size--;
        assert_int_not_equal(relay_merge(&merge, out), STATUS_OK);
        mem_free(got);
        mem_free(bytes);
        world_close();
    }
}

/* A union publishes what was sent by anybody; what its codec loses, and what nobody sent, is owed. */
static void test_union(void **state)
{
    (void)state;
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
        merge_now((uint32_t)version);
        memcpy(w.x, w.outer.acc, sizeof w.x);
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
    world_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_worker_equals_coordinator),
        cmocka_unit_test(test_union),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
