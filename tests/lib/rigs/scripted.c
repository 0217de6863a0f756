#include "tests/lib/rigs/scripted.h"
#include "tests/lib/test.h"

#include <math.h>

#include "common/base/mem.h"
#include "tests/lib/rigs/scripted_coordinator.h"
#include "tests/lib/store/save_image.h"

struct scripted scripted;
static struct scripted *const s = &scripted;

/* ---- the worker ---------------------------------------------------------------------------------------------------
 */

/* Storage in memory: two generations. A save ends at the first poll after its duration. */

static void store_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n)
{
    (void)ctx;
    assert_int_equal(s->save_end, 0); /* one save at a time */
    s->save_bytes = save_image(state, body, n, &s->save_size);
    s->save_body = body;
    s->save_parts = n;
    s->save_end = s->now + s->save_us + 1;
}

static void store_forget(void)
{
    mem_free(s->save_bytes);
    s->save_bytes = NULL;
    s->save_end = 0;
}

/* Lets the save in progress reach the disk, without notice to the worker. */
static void save_ends(void)
{
    if (!s->save_bytes) return;
    if (!save_image_holds(s->save_bytes, s->save_size, s->save_body, s->save_parts))
        fail_msg("the state changed while it was saved");
    if (s->save_fails) return;
    mem_free(s->stored[1]);
    s->stored[1] = s->stored[0];
    s->stored_size[1] = s->stored_size[0];
    s->stored[0] = s->save_bytes;
    s->stored_size[0] = s->save_size;
    s->save_bytes = NULL;
    s->saves++;
}

static enum status store_poll(void *ctx, bool wait, struct err *err)
{
    (void)ctx;
    if (!s->save_end) return STATUS_OK;
    if (!wait && s->now + 1 < s->save_end) return STATUS_AGAIN;
    save_ends();
    store_forget();
    return s->save_fails ? err_set(err, STATUS_IO, "the test's disk is full") : STATUS_OK;
}

static enum status store_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    (void)ctx;
    (void)err;
    if (!s->stored[age]) return STATUS_NOTFOUND;
    *data_p = s->stored[age];
    *size_p = s->stored_size[age];
    return STATUS_OK;
}

static void store_release(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    (void)data;
    (void)size;
}

static enum status to_coordinator(void *ctx, enum wire_lane lane, const struct msg *m)
{
    (void)ctx;
    assert_int_equal(lane == WIRE_BULK, m->type == MSG_CHUNK || m->type == MSG_BIND);
    if (m->type == MSG_CHUNK && scripted_chance(s->loss)) return STATUS_AGAIN;
    if (!scripted_chance(s->loss)) scripted_take(m);
    if (scripted_chance(s->loss / 2)) scripted_take(m);
    return STATUS_OK;
}

static size_t inner_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    (void)ctx;
    assert_true(cap >= 1);
    parts[0] = (struct outer_part){.data = s->inner, .size = sizeof s->inner};
    return 1;
}

static enum status inner_load(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    memset(s->inner, 0, sizeof s->inner);
    if (!data) return STATUS_OK;
    if (size != sizeof s->inner) return STATUS_MISMATCH;
    memcpy(s->inner, data, size);
    return STATUS_OK;
}

static enum status on_config(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    (void)ctx;
    assert_string_equal(m->text, s->config_text);
    (void)err;
    *model = (struct outer_model){.config = &s->config,
                                  .layout = &s->layout,
                                  .sample_tokens = 8,
                                  .ranks = 1,
                                  .devices = "test",
                                  .model_config = "{}",
                                  .initial = s->initial,
                                  .inner = {.parts = inner_parts, .load = inner_load},
                                  .device = s->device,
                                  .device_theta = s->device_theta};
    return STATUS_OK;
}

void scripted_worker_up(void)
{
    memset(s->inner, 0, sizeof s->inner);
    assert_int_equal(outer_loop_create(&s->loop, &s->setup, s->now), STATUS_OK);
}

void scripted_worker_kill(void)
{
    store_forget();
    outer_loop_destroy(s->loop);
    s->loop = NULL;
    scripted_lose_answers();
}

/* The device's theta must equal theta. */
static void check_device(void)
{
    static float seen[SCRIPTED_N];
    const float *there = outer_loop_device_params(s->loop);
    struct err err = {0};
    if (!s->device) return;
    assert_non_null(there);
    s->device->ops->download(s->device, seen, there, sizeof seen);
    if (s->device->ops->sync(s->device, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_memory_equal(seen, outer_loop_params(s->loop), sizeof seen);
}

/* Deterministic "training": depends on parameters, round and inner state, like the real one. */
void scripted_train(void)
{
    uint64_t round = outer_loop_assignment(s->loop)->round;
    outer_loop_train_begin(s->loop, s->now);
    check_device();
    const float *theta = outer_loop_params(s->loop);
    for (int i = 0; i < SCRIPTED_N; i++) {
        float step = 0.01f * (float)sin((double)(i * 7 + (int)round * 13)) + 0.001f * s->inner[0];
        s->params[i] = theta[i] - step;
        s->computed[i] += (float)((double)theta[i] - s->params[i]);
    }
    s->inner[0] += 1;
}

void scripted_train_done(void)
{
    if (s->device) s->device->ops->upload(s->device, s->device_theta, s->params, sizeof s->params);
    struct outer_result r = {.tokens = 32, .steps = 4, .loss_sum = 3, .compute_us = 1000};
    if (!s->device) r.values = s->params;
    assert_int_equal(outer_loop_train_done(s->loop, &r, s->now), STATUS_OK);
}

static void deliver(void)
{
    struct msg m;
    while (scripted_next_answer(&m)) outer_loop_on_message(s->loop, msg_lane(m.type), &m, s->now);
}

/* Lets time pass: messages, timers, heartbeats (their only effect here: a READY worker gets its assignment again). */
void scripted_pass(uint64_t us)
{
    uint64_t until = s->now + us;
    struct msg beat;
    while (s->now < until) {
        outer_loop_tick(s->loop, s->now);
        deliver();
        outer_loop_tick(s->loop, s->now);
        bool sent = heartbeat_take(outer_loop_heartbeat(s->loop), s->now, &beat);
        if (sent && !s->mute && !s->no_work && !scripted_chance(s->loss)) {
            if (beat.heartbeat.session != s->session)
                scripted_refuse(REFUSE_UNKNOWN_SESSION);
            else if (beat.heartbeat.state == WORKER_READY)
                scripted_give_work();
        }
        if (!scripted_answers_wait()) s->now += 50000;
    }
}

/* Runs until the worker wants to train; false if it never does. */
bool scripted_until_training(void)
{
    for (int i = 0; i < 4000; i++) {
        if (outer_loop_want(s->loop) == OUTER_TRAIN) return true;
        scripted_pass(50000);
    }
    return false;
}

void scripted_rounds(int n)
{
    for (int i = 0; i < n; i++) {
        if (!scripted_until_training())
            fail_msg("round %d of %d: no assignment: %s", i, n, outer_loop_text(s->loop, s->now));
        scripted_train();
        scripted_train_done();
    }
    for (int i = 0; i < 4000 && (outer_loop_want(s->loop) != OUTER_TRAIN || s->loop->sync.state != WORKER_READY); i++)
        scripted_pass(50000);
}

void scripted_check_theta(void)
{
    for (uint32_t f = 0; f < SCRIPTED_F; f++) {
        assert_int_equal(outer_loop_version(s->loop, f), s->top[f]);
        assert_memory_equal(outer_loop_params(s->loop) + s->layout.fragments[f].offset, s->theta[f][s->top[f]],
                            4 * scripted_count(f));
    }
}

/* merged + residual = computed, within rounding. */
void scripted_check_nothing_lost(void)
{
    for (uint32_t f = 0; f < SCRIPTED_F; f++)
        for (size_t i = 0; i < scripted_count(f); i++) {
            size_t at = s->layout.fragments[f].offset + i;
            if (i == 0) assert_int_equal(outer_residual_read(s->loop, f), STATUS_OK);
            double kept = s->loop->f[f].fb.residual ? s->loop->f[f].fb.residual[i] : 0;
            if (fabs((double)s->received[at] + kept - s->computed[at]) > 2e-5)
                fail_msg("element %zu: merged %g, kept %g, computed %g", at, s->received[at], kept, s->computed[at]);
        }
}

/* ---- fixture ------------------------------------------------------------------------------------------------------
 */

void scripted_begin(const char *codec)
{
    scripted_begin_on(codec, codec, NULL);
}

static void begin(const char *codec_up, const char *codec_down, struct device *device, bool async)
{
    struct config_sources sources;
    uint64_t shape[2] = {20, 100};
    memset(s, 0, sizeof *s);
    scripted_lose_answers();
    config_defaults(&s->config, &sources);
    if (async) s->config.train.method = METHOD_ASYNC;
    snprintf(s->config.codec.up, sizeof s->config.codec.up, "%s", codec_up);
    snprintf(s->config.codec.down, sizeof s->config.codec.down, "%s", codec_down);
    assert_int_equal(config_resolve(&s->config, &sources, NULL), STATUS_OK);
    layout_init(&s->layout);
    assert_int_equal(layout_add(&s->layout, "a", 2, shape, LAYOUT_INIT_NORMAL, 0.02f, true), STATUS_OK);
    shape[0] = 1000;
    assert_int_equal(layout_add(&s->layout, "b", 1, shape, LAYOUT_INIT_NORMAL, 0.02f, false), STATUS_OK);
    assert_int_equal(layout_split(&s->layout, SCRIPTED_F), STATUS_OK);
    assert_int_equal(s->layout.n_params, SCRIPTED_N);
    assert_int_equal(s->layout.n_fragments, SCRIPTED_F);
    scripted_coordinator_begin();
    s->now = 1000000;
    s->device = device;
    if (device) s->device_theta = device->ops->alloc(device, SCRIPTED_N * sizeof *s->device_theta);
    s->setup = (struct outer_setup){.name = "w",
                                    .send = to_coordinator,
                                    .on_config = on_config,
                                    .save_begin = store_begin,
                                    .save_poll = store_poll,
                                    .load = store_load,
                                    .release = store_release};
    memset(s->setup.uuid, 7, WIRE_UUID);
    scripted_worker_up();
}

void scripted_begin_on(const char *codec_up, const char *codec_down, struct device *device)
{
    begin(codec_up, codec_down, device, false);
}

void scripted_begin_async(const char *codec_up, const char *codec_down, struct device *device)
{
    begin(codec_up, codec_down, device, true);
}

void scripted_end(void)
{
    store_forget();
    outer_loop_destroy(s->loop);
    s->loop = NULL;
    scripted_coordinator_end();
    if (s->device) s->device->ops->release(s->device, s->device_theta);
    layout_finish(&s->layout);
    for (int i = 0; i < 2; i++) {
        mem_free(s->stored[i]);
        s->stored[i] = NULL;
    }
}

int scripted_teardown(void **state)
{
    (void)state;
    scripted_end();
    return 0;
}
