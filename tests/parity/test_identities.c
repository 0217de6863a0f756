/* Tests the identities of distributed training, with the real engine, worker and model in one process. Messages are
 * handed over in memory.
 * - One worker, outer SGD at rate 1, no codec, equals plain training bit for bit.
 * - H = 1, inner SGD, outer rate 1, equals DDP.
 * - Local SGD equals the mean of the parameters.
 * - DDP of two workers equals one worker with twice the batch.
 * The last three hold up to the rounding of fp32 sums in another order. */
#include <math.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "coordinator/engine/engine.h"
#include "tests/lib/rigs/engine_view.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/train_impl.h"

enum { WORKERS_MAX = 2, QUEUE = 1024, SAMPLES_MAX = 64 };

/* ---- messages ---------------------------------------------------------------------------------------------------- */

struct letter {
    int to; /* worker; -1: the engine */
    int from;
    enum wire_lane lane;
    struct msg m;
    uint8_t *data; /* owned copy of what m borrows */
};

static struct letter box[QUEUE];
static size_t head, tail;

static const void *keep(struct letter *l, const void *data, size_t size)
{
    l->data = mem_alloc(1, size);
    assert_non_null(l->data);
    memcpy(l->data, data, size);
    return l->data;
}

static void post(int from, int to, enum wire_lane lane, const struct msg *m)
{
    assert_true(tail - head < QUEUE);
    struct letter *l = &box[tail++ % QUEUE];
    *l = (struct letter){.from = from, .to = to, .lane = lane, .m = *m};
    if (m->type == MSG_CHUNK) l->m.chunk.data = keep(l, m->chunk.data, m->chunk.size);
    if (m->type == MSG_CONFIG) l->m.config.text = keep(l, m->config.text, strlen(m->config.text) + 1);
}

/* ---- a cluster --------------------------------------------------------------------------------------------------- */

struct node {
    int index;
    struct train_options options;
    struct config local;
    struct config_sources sources;
    struct trainer t;
};

static struct node nodes[WORKERS_MAX];
static int n_nodes;
static struct engine *engine;
static struct store *store;
static struct config config;
static uint64_t now;

static enum status engine_send(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    (void)ctx;
    post(-1, (int)(peer / 2), lane, m);
    return STATUS_OK;
}

static enum status worker_send(void *ctx, enum wire_lane lane, const struct msg *m)
{
    const struct node *node = ctx;
    assert_int_equal(msg_lane(m->type), lane);
    if (m->type == MSG_JOIN) { /* borrows several buffers, so the engine gets it at once */
        assert_int_equal(engine_on_message(engine, (uint64_t)node->index * 2 + lane, lane, m, now, NULL), STATUS_OK);
        return STATUS_OK;
    }
    post(node->index, -1, lane, m);
    return STATUS_OK;
}

static enum status node_config(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    struct node *node = ctx;
    return train_on_config(&node->t, m, model, err);
}

static void set(struct config *c, struct config_sources *sources, const char *assignment)
{
    struct err err = {0};
    if (config_set(c, sources, assignment, CONFIG_FLAG, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void cluster_start(int workers, const char *const *settings)
{
    struct config_sources sources;
    struct err err = {0};
    char train[128];
    static const char *const common[] = {"model.n_layer=2",     "model.n_head=2",       "model.n_embd=32",
                                         "model.block_size=16", "model.vocab_size=256", "train.batch_size=4",
                                         "codec.up=fp32",       "codec.down=fp32",      "train.eval_every=0",
                                         "train.fragments=2",   "inner.warmup_steps=3", NULL};
    config_defaults(&config, &sources);
    for (int i = 0; common[i]; i++) set(&config, &sources, common[i]);
    for (int i = 0; settings[i]; i++) set(&config, &sources, settings[i]);
    config.coordinator.min_workers = (uint32_t)workers;
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    head = tail = 0;
    now = 1000000;
    n_nodes = workers;
    assert_int_equal(store_mem_create(&store), STATUS_OK);
    struct engine_options options = {.config = &config, .entropy = 5};
    struct engine_io io = {.send = engine_send};
    if (engine_create(&engine, &options, store, &io, now, &err) != STATUS_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < workers; i++) {
        struct node *node = &nodes[i];
        memset(node, 0, sizeof *node);
        node->index = i;
        config_defaults(&node->local, &node->sources);
        snprintf(train, sizeof train, "data.train=%s/train_*.bin", tmpdir);
        set(&node->local, &node->sources, train);
        set(&node->local, &node->sources, "train.devices=cpu");
        node->options = (struct train_options){.local = &node->local, .sources = &node->sources};
        train_setup_init(&node->t, &node->options);
        struct outer_setup setup = {.io_ctx = node, .send = worker_send, .host_ctx = node, .on_config = node_config};
        memset(setup.uuid, i + 1, WIRE_UUID);
        snprintf(setup.name, sizeof setup.name, "w%d", i);
        assert_int_equal(outer_loop_create(&node->t.loop, &setup, now), STATUS_OK);
    }
}

static void cluster_stop(void)
{
    for (int i = 0; i < n_nodes; i++) {
        data_hash_stop(&nodes[i].t.data_hash);
        outer_loop_destroy(nodes[i].t.loop);
        train_setup_finish(&nodes[i].t);
    }
    engine_destroy(engine);
    store_mem_destroy(store);
    for (; head < tail; head++) mem_free(box[head % QUEUE].data);
    engine = NULL;
}

static void deliver(void)
{
    struct err err = {0};
    while (head < tail) {
        struct letter l = box[head++ % QUEUE];
        if (l.to >= 0)
            outer_loop_on_message(nodes[l.to].t.loop, l.lane, &l.m, now);
        else if (engine_on_message(engine, (uint64_t)l.from * 2 + l.lane, l.lane, &l.m, now, &err) != STATUS_OK)
            fail_msg("engine: %s", err.msg);
        mem_free(l.data);
    }
}

/* One round, in the steps of worker/train.c. */
static void train(struct trainer *t)
{
    struct err err = {0};
    outer_loop_train_begin(t->loop, now);
    const struct msg_assign *task = outer_loop_assignment(t->loop);
    struct outer_result r = {.values = replica_params(t->replica), .steps = task->steps};
    uint32_t n = replica_step_samples(t->replica);
    memcpy(replica_params(t->replica), outer_loop_params(t->loop), t->layout.n_params * sizeof(float));
    for (uint32_t i = 0; i < task->steps; i++) {
        struct step_result step;
        double lr = lr_schedule_at(&t->schedule, task->step0 + i * task->step_rate);
        assert_true(train_fill_counters(task, (uint64_t)i * n, t->counters, n));
        enum status status = t->config.train.method == METHOD_DDP
                                 ? replica_gradient(t->replica, t->counters, n, &r.values, &step, &err)
                                 : replica_train_step(t->replica, t->counters, n, lr, &step, &err);
        if (status != STATUS_OK) fail_msg("%s", err.msg);
        r.loss_sum += step.loss_sum;
        r.tokens += step.tokens;
    }
    assert_int_equal(outer_loop_train_done(t->loop, &r, now), STATUS_OK);
}

static void evaluate(struct trainer *t)
{
    double loss = 0, sums[256];
    struct wire_part parts[WIRE_PARTS_MAX] = {0};
    uint64_t tokens = 0, batch = t->config.train.batch_size;
    outer_loop_eval_begin(t->loop, now);
    const struct msg_eval *task = outer_loop_evaluation(t->loop);
    assert_true(task->count <= 256 * batch);
    assert_int_equal(replica_set_params(t->replica, outer_loop_params(t->loop), NULL), STATUS_OK);
    assert_int_equal(replica_eval(t->replica, &t->val, task->start, task->count, &loss, &tokens, sums, NULL),
                     STATUS_OK);
    for (uint64_t i = 0; i * batch < task->count; i++) {
        uint64_t left = task->count - i * batch;
        parts[i * batch / task->part].sum += sums[i];
        parts[i * batch / task->part].tokens += tokens / task->count * (left < batch ? left : batch);
    }
    outer_loop_eval_done(t->loop, loss, parts, now);
}

static bool node_run(struct node *node)
{
    struct msg beat;
    enum outer_want want;
    while ((want = outer_loop_want(node->t.loop)) == OUTER_TRAIN || want == OUTER_EVAL) {
        if (want == OUTER_TRAIN)
            train(&node->t);
        else
            evaluate(&node->t);
    }
    if (want == OUTER_FAILED) fail_msg("worker %d: %s", node->index, outer_loop_text(node->t.loop, now));
    outer_loop_tick(node->t.loop, now);
    if (heartbeat_take(outer_loop_heartbeat(node->t.loop), now, &beat)) post(node->index, -1, WIRE_CONTROL, &beat);
    return want == OUTER_DONE;
}

static void cluster_run(void)
{
    struct err err = {0};
    int done = 0;
    for (int i = 0; done < n_nodes; i++) {
        if (i > 100000) fail_msg("the run does not end: worker 0 waits for %s", outer_loop_text(nodes[0].t.loop, now));
        done = 0;
        for (int w = 0; w < n_nodes; w++) done += node_run(&nodes[w]);
        deliver();
        if (engine_tick(engine, now, &err) != STATUS_OK) fail_msg("engine: %s", err.msg);
        if (head == tail) now += 10000;
    }
}

/* Run to the end and return theta[*n_p]; the caller frees it. */
static float *run(int workers, const char *const *settings, uint64_t *n_p)
{
    cluster_start(workers, settings);
    cluster_run();
    struct err err = {0};
    if (engine_check(engine, &err) != STATUS_OK) fail_msg("%s", err.msg);
    *n_p = engine_layout(engine)->n_params;
    float *theta = mem_alloc(*n_p, sizeof *theta);
    assert_non_null(theta);
    memcpy(theta, engine_theta(engine), *n_p * sizeof *theta);
    return theta;
}

/* ---- plain training ---------------------------------------------------------------------------------------------- */

/* Plain training with the replica of node 0 from theta_0 and a new optimizer: `steps` steps on consecutive samples from
 * `first`. */
static void plain_start(struct trainer *t)
{
    struct inner_opt *opt = replica_optimizer(t->replica);
    for (uint32_t f = 0; f < t->layout.n_fragments; f++)
        layout_fill(&t->layout, f, t->config.run.seed, replica_params(t->replica) + t->layout.fragments[f].offset);
    opt->steps = opt->skipped = 0;
    assert_int_equal(inner_opt_write(opt, NULL, NULL, NULL), STATUS_OK);
}

static void plain_steps(struct trainer *t, uint64_t first, uint32_t step0, uint32_t steps)
{
    struct step_result result;
    uint32_t n = replica_step_samples(t->replica);
    for (uint32_t i = 0; i < steps; i++) {
        for (uint32_t k = 0; k < n; k++) t->counters[k] = first + (uint64_t)i * n + k;
        assert_int_equal(
            replica_train_step(t->replica, t->counters, n, lr_schedule_at(&t->schedule, step0 + i), &result, NULL),
            STATUS_OK);
    }
}

/* Check that the relative distance of two results is below `limit` and, more strictly, below ten times `limit` relative
 * to the distance from theta_0. */
static void assert_close(const float *a, const float *b, const struct trainer *t, double limit)
{
    float *start = mem_alloc(t->layout.n_params, sizeof *start);
    double difference = 0, way = 0, whole = 0;
    assert_non_null(start);
    for (uint32_t f = 0; f < t->layout.n_fragments; f++)
        layout_fill(&t->layout, f, t->config.run.seed, start + t->layout.fragments[f].offset);
    for (uint64_t i = 0; i < t->layout.n_params; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        way += ((double)a[i] - start[i]) * ((double)a[i] - start[i]);
        whole += (double)a[i] * a[i];
    }
    mem_free(start);
    assert_true(way > 1e-4); /* the training moved theta */
    if (!(sqrt(difference / whole) < limit) || !(sqrt(difference / way) < 10 * limit))
        fail_msg("relative distance %g, %g of the distance from theta_0", sqrt(difference / whole),
                 sqrt(difference / way));
}

/* ---- the identities ---------------------------------------------------------------------------------------------- */

static void check_plain_training(const char *optimizer)
{
    const char *const settings[] = {"train.method=local-sgd",
                                    "train.max_steps=23",
                                    "train.sync_every=5",
                                    "inner.learning_rate=3e-3",
                                    optimizer,
                                    NULL};
    uint64_t n;
    float *theta = run(1, settings, &n);
    struct trainer *t = &nodes[0].t;
    plain_start(t);
    plain_steps(t, 0, 0, 23);
    const float *plain = replica_params(t->replica);
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&theta[i], &plain[i], sizeof *plain))
            fail_msg("parameter %llu of %llu: %a, plain training has %a", (unsigned long long)i, (unsigned long long)n,
                     theta[i], plain[i]);
    mem_free(theta);
    cluster_stop();
}

TEST(test_one_worker_is_plain_training_bit_for_bit)
{
    check_plain_training("inner.optimizer=adamw");
    check_plain_training("inner.optimizer=muon");
}

TEST(test_every_step_with_sgd_is_ddp)
{
    static const char *const local[] = {"train.method=local-sgd",
                                        "train.max_steps=12",
                                        "train.sync_every=1",
                                        "inner.optimizer=sgd",
                                        "inner.learning_rate=0.5",
                                        "inner.grad_clip=0",
                                        NULL};
    static const char *const ddp[] = {"train.method=ddp",        "train.max_steps=12", "inner.optimizer=sgd",
                                      "inner.learning_rate=0.5", "inner.grad_clip=0",  NULL};
    uint64_t n;
    float *a = run(2, local, &n);
    cluster_stop();
    float *b = run(2, ddp, &n);
    assert_close(b, a, &nodes[0].t, 1e-6);
    mem_free(a);
    mem_free(b);
    cluster_stop();
}

TEST(test_local_sgd_is_the_mean_of_the_parameters)
{
    enum { H = 5, ROUNDS = 3, B = 4 };
    static const char *const settings[] = {"train.method=local-sgd", "train.max_steps=15", "train.sync_every=5",
                                           "inner.learning_rate=3e-3", NULL};
    uint64_t n;
    float *theta = run(2, settings, &n), *mean = mem_alloc(n, sizeof *mean);
    assert_non_null(mean);
    /* Train both replicas separately from the same start, with their own moments and samples; then average. */
    for (int w = 0; w < 2; w++) plain_start(&nodes[w].t);
    for (int r = 0; r < ROUNDS; r++) {
        for (int w = 0; w < 2; w++) plain_steps(&nodes[w].t, (uint64_t)(2 * r + w) * H * B, (uint32_t)r * H, H);
        for (uint64_t i = 0; i < n; i++)
            mean[i] =
                (float)(((double)replica_params(nodes[0].t.replica)[i] + replica_params(nodes[1].t.replica)[i]) / 2);
        for (int w = 0; w < 2; w++) memcpy(replica_params(nodes[w].t.replica), mean, n * sizeof *mean);
    }
    assert_close(mean, theta, &nodes[0].t, 1e-6);
    mem_free(theta);
    mem_free(mean);
    cluster_stop();
}

TEST(test_ddp_of_two_is_one_with_twice_the_batch)
{
    /* eps 1e-6: AdamW divides by the gradient's size, so without it rounding noise in a gradient becomes a full step.
     */
    static const char *const two[] = {"train.method=ddp", "train.max_steps=12", "inner.learning_rate=3e-3",
                                      "inner.eps=1e-6", NULL};
    static const char *const one[] = {"train.method=ddp", "train.max_steps=12", "inner.learning_rate=3e-3",
                                      "inner.eps=1e-6",   "train.batch_size=8", NULL};
    uint64_t n;
    float *a = run(2, two, &n);
    cluster_stop();
    float *b = run(1, one, &n);
    assert_close(b, a, &nodes[0].t, 1e-6);
    mem_free(a);
    mem_free(b);
    cluster_stop();
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static int make_data(void **state)
{
    static const char *const names[] = {"train", "val"};
    uint32_t last = 0;
    log_set_level(LOG_WARN);
    if (tmpdir_make(state) != 0) return -1;
    for (int i = 0; i < 2; i++) {
        struct token_writer w;
        if (token_writer_open(&w, tmpdir, names[i], 2, 0, NULL) != STATUS_OK) return -1;
        for (uint64_t k = 0; k < (i ? 600 : 12000); k++) {
            uint64_t r = rng_u64(3, RNG_TEST, k + (uint64_t)i * 100000);
            last = r % 4 ? (last * 5 + 3) % 64 : (uint32_t)(r >> 32) % 64; /* something to learn */
            if (token_writer_put(&w, &last, 1, NULL) != STATUS_OK) return -1;
        }
        if (token_writer_close(&w, NULL) != STATUS_OK) return -1;
    }
    return 0;
}

TEST_MAIN(make_data, tmpdir_remove)
