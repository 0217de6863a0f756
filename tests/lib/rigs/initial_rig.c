#include "tests/lib/rigs/initial_rig.h"

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

struct initial_rig up;

static const struct outer_file files[] = {{"config.json", "{\"model_type\": \"mine\"}", 22},
                                          {"tokenizer.json", "{\"model\": {}}", 13}};

void initial_object(struct outer_model model, size_t step)
{
    struct outer_initial *initial;
    struct err err = {0};
    model.layout = &up.rig.layout;
    model.initial = up.theta;
    rng_normal_fill(7, RNG_TEST, 0, 1.0f, up.theta, RIG_PARAMS);
    if (outer_initial_open(&initial, &model, &err) != STATUS_OK) fail_msg("%s", err.msg);
    up.size = outer_initial_total(initial);
    assert_true(up.size <= sizeof up.object);
    for (size_t at = 0; at < up.size; at += step) {
        size_t n = up.size - at < step ? up.size - at : step;
        const uint8_t *bytes = outer_initial_read(initial, at, n, &err);
        assert_non_null(bytes);
        memcpy(up.object + at, bytes, n);
    }
    outer_initial_close(initial);
}

void initial_plain_object(void)
{
    initial_object((struct outer_model){.files = files, .n_files = 2}, 1000);
}

static bool find_peer(void *ctx, uint64_t peer, struct engine_peer *out)
{
    (void)ctx;
    return rig_find_worker(&up.rig, peer, out);
}

void initial_open(void)
{
    static const char *const settings[] = {"model.family=external", "coordinator.min_workers=1", NULL};
    static const struct rig_access access = {.peer = find_peer};
    rig_access = &access;
    rig_open(&up.rig, settings);
    store_mem_keep_init(up.rig.store, tmpdir);
    for (int i = 0; i < RIG_WORKERS; i++) up.rig.workers[i].blind = true;
    initial_plain_object();
}

void initial_close(void)
{
    if (file_exists(tmpdir_path("init"))) tmpdir_clear(tmpdir_path("init"));
    rig_close(&up.rig);
    rig_access = NULL;
}

struct msg_upload initial_uploads(int worker)
{
    struct msg m, next;
    rig_expect(&up.rig, worker, MSG_UPLOAD, &m);
    while (rig_take(&up.rig, worker, MSG_UPLOAD, &next)) m = next;
    return m.upload;
}

void initial_send(uint64_t peer, uint64_t id, size_t offset, size_t n)
{
    struct msg m = {.type = MSG_CHUNK,
                    .chunk = {.kind = OBJECT_INITIAL,
                              .key = id,
                              .offset = offset,
                              .total = up.size,
                              .data = up.object + offset,
                              .size = n,
                              .crc = crc32c(0, up.object + offset, n)}};
    rig_say(&up.rig, peer, &m);
}

void initial_send_all(int worker, uint64_t id, size_t from, size_t step)
{
    for (size_t at = from; at < up.size; at += step)
        initial_send(up.rig.workers[worker].bulk, id, at, up.size - at < step ? up.size - at : step);
}

void initial_expect_theta(void)
{
    const float *run = engine_theta(up.rig.engine);
    assert_non_null(run);
    assert_memory_equal(run, up.theta, sizeof up.theta);
}
