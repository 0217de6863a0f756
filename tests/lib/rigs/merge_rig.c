#include "tests/lib/rigs/merge_rig.h"
#include "tests/lib/test.h"

#include "common/base/mem.h"

static void configure(struct config *config, const char *up, const char *down)
{
    struct config_sources sources;
    struct err err = {0};
    char text[3][80] = {"train.method=local-sgd"};
    snprintf(text[1], sizeof text[1], "codec.up=%s", up);
    snprintf(text[2], sizeof text[2], "codec.down=%s", down);
    config_defaults(config, &sources);
    for (int i = 0; i < 3; i++) assert_int_equal(config_set(config, &sources, text[i], CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

void merge_rig_open(struct merge_rig *rig, const char *up, const char *down, const struct merge_rig_tensor *tensors,
                    int n_tensors)
{
    struct err err = {0};
    memset(rig, 0, sizeof *rig);
    configure(&rig->config, up, down);
    layout_init(&rig->layout);
    for (int i = 0; i < n_tensors; i++) {
        const struct merge_rig_tensor *t = &tensors[i];
        uint64_t shape[2] = {t->rows, t->cols};
        uint8_t ndim = t->cols ? 2 : 1;
        assert_int_equal(layout_add(&rig->layout, t->name, ndim, shape, LAYOUT_INIT_NORMAL, 1.0f, ndim > 1), STATUS_OK);
    }
    assert_int_equal(layout_split(&rig->layout, 1), STATUS_OK);
    if (outer_state_init(&rig->outer, &rig->config, &rig->layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(outer_state_fill(&rig->outer, NULL, &err), STATUS_OK);
    const struct codec *codec = rig->outer.fragments[0].up;
    for (uint64_t i = 0; i < MERGERIG_WORKERS; i++) {
        rig->deltas[i].payload = mem_alloc(1, codec_bound(codec));
        rig->deltas[i].room = mem_alloc(1, codec_open_room(codec));
        rig->tokens[i] = rig->deltas[i].tokens = 100 + 7 * i;
    }
    rig->x = mem_alloc(rig->layout.n_params, sizeof *rig->x);
    assert_non_null(rig->x);
}

void merge_rig_encode(struct merge_rig *rig, uint32_t worker)
{
    struct codec *codec = rig->outer.fragments[0].up;
    struct merge_delta *delta = &rig->deltas[worker];
    assert_int_equal(
        codec_encode(codec, rig->x, (uint8_t *)(uintptr_t)delta->payload, codec_bound(codec), &delta->size, NULL),
        STATUS_OK);
}

void merge_rig_merge(struct merge_rig *rig, uint32_t n)
{
    struct merge merge;
    struct outer_state *outer = &rig->outer;
    struct codec *codec = outer->fragments[0].up;
    for (uint32_t i = 0; i < n; i++) assert_int_equal(merge_open(codec, &rig->deltas[i]), STATUS_OK);
    assert_int_equal(
        merge_start(&merge, &outer->merger, &rig->layout, 0, codec, outer->theta, outer->acc, rig->tokens, n),
        STATUS_OK);
    if (merge_needs_norms(&merge)) merge_compute_norms(&merge, rig->deltas, n);
    merge_add(&merge, rig->deltas, n);
}

void merge_rig_close(struct merge_rig *rig)
{
    for (int i = 0; i < MERGERIG_WORKERS; i++) {
        mem_free((void *)(uintptr_t)rig->deltas[i].payload);
        mem_free(rig->deltas[i].room);
    }
    mem_free(rig->x);
    outer_state_finish(&rig->outer);
    layout_finish(&rig->layout);
    assert_int_equal(mem_live_bytes(), 0);
}
