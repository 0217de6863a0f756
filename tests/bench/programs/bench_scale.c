/* Benchmark of the coordinator's engine by number of workers and fragments: CPU time of each message, without sockets,
 * with a store in memory and a model of 512 parameters per fragment.
 *
 * Usage: bench_scale [--workers N] [--fragments F] [--rounds R] [--json FILE]
 *
 * Without --workers it measures 128, 512, 1,024 and 2,000 workers with 8 fragments, and 256 workers with 1, 64 and 256.
 *
 * Columns, in microseconds of the thread's CPU time (other load on the machine changes them less than wall time):
 * - "beat": HEARTBEAT of a training worker, with its answer. Between two beats pass 1 / workers seconds.
 * - "due": engine_next_deadline_us. The server calls it once per turn; here once per message is counted.
 * - "tick": engine_tick, called when it is due.
 * - "load": beats, deadlines and ticks of one second, as a share of one core.
 * - "offer", "part", "last": OFFER; the first half of a delta; its second half, with the check and the journal record.
 *   "last" leaves out the chunks that close a fragment.
 * - "close": merge, outer step and update of one fragment, per worker.
 * - "steps": METRICS of a training worker, with one step.
 * - "eval": HEARTBEAT of a worker that evaluates its share, as all others do. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "compress/codec.h"
#include "coordinator/engine/engine.h"
#include "tests/bench/lib/machine.h"
#include "tests/lib/store/store_mem.h"

enum { COUNT = 512, BEATS_MIN = 500 };

struct bench {
    uint32_t workers, fragments, rounds, evals;
    struct config config;
    struct layout layout;
    struct store *store;
    struct engine *engine;
    uint64_t now_us, session; /* of the last WELCOME */
    uint64_t *sessions;       /* [workers] */
    struct msg_assign task;   /* the last one */
    uint8_t layout_bytes[1 << 20], delta[64 << 10];
    size_t layout_size, delta_size;
    json_t *rows;
};

static struct bench b;
static struct msg m;

static void die(const char *what)
{
    fprintf(stderr, "bench_scale: %s\n", what);
    exit(1);
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void log_quiet(void *ctx, enum log_level level, const char *text)
{
    (void)ctx;
    if (level <= LOG_ERROR) die(text);
}

static enum status io_send(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *sent)
{
    (void)ctx, (void)peer, (void)lane;
    if (sent->type == MSG_WELCOME) b.session = sent->welcome.session;
    if (sent->type == MSG_ASSIGN) b.task = sent->assign;
    b.evals += sent->type == MSG_EVAL;
    if (sent->type == MSG_REFUSE) die(sent->refuse.text);
    if (sent->type == MSG_REJECT) die(sent->reject.text);
    return STATUS_OK;
}

/* Returns the CPU time of one message. */
static double say(uint64_t peer)
{
    struct err err = {0};
    double from = cpu_us();
    if (engine_on_message(b.engine, peer, msg_lane(m.type), &m, b.now_us, &err) != STATUS_OK) die(err.msg);
    return cpu_us() - from;
}

static uint64_t control_of(uint32_t worker)
{
    return 2 * (uint64_t)worker + 1;
}

/* --- setup -------------------------------------------------------------------------------------------------------- */

static void set(struct config_sources *sources, const char *key, const char *value)
{
    char text[160];
    struct err err = {0};
    snprintf(text, sizeof text, "%s=%s", key, value);
    if (config_set(&b.config, sources, text, CONFIG_FLAG, &err) != STATUS_OK) die(err.msg);
}

static void set_number(struct config_sources *sources, const char *key, uint32_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%u", value);
    set(sources, key, text);
}

static void make_config(void)
{
    static const char *const values[][2] = {
        {"train.max_steps", "2000"}, {"train.sync_every", "20"},   {"train.batch_size", "1"},
        {"model.block_size", "8"},   {"codec.up", "int8:256"},     {"codec.down", "int8:256"},
        {"inner.warmup_steps", "1"}, {"coordinator.threads", "1"},
    };
    struct config_sources sources;
    struct err err = {0};
    config_defaults(&b.config, &sources);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) set(&sources, values[i][0], values[i][1]);
    set_number(&sources, "train.fragments", b.fragments);
    set_number(&sources, "train.eval_every", b.rounds + 1);
    set_number(&sources, "coordinator.max_workers", b.workers);
    set_number(&sources, "coordinator.min_workers", b.workers);
    if (config_resolve(&b.config, &sources, &err) != STATUS_OK) die(err.msg);
}

static void make_layout(void)
{
    uint64_t shape[2] = {8, COUNT / 8};
    float values[COUNT];
    struct codec *codec;
    struct writer w = writer_of(b.layout_bytes, sizeof b.layout_bytes);
    layout_init(&b.layout);
    for (uint32_t f = 0; f < b.fragments; f++) {
        char name[24];
        snprintf(name, sizeof name, "tensor.%u", f);
        if (layout_add(&b.layout, name, 2, shape, LAYOUT_INIT_NORMAL, 0.5f, LAYOUT_DECAY)) die("no memory");
    }
    if (layout_split(&b.layout, b.fragments)) die("no memory");
    layout_encode(&b.layout, &w);
    b.layout_size = w.pos;
    for (uint32_t i = 0; i < COUNT; i++) values[i] = 0.001f * (float)(i % 7 + 1);
    if (codec_create_for_fragment(&codec, "int8:256", &b.layout, 0, NULL) ||
        codec_encode(codec, values, b.delta, sizeof b.delta, &b.delta_size, NULL))
        die("cannot encode the delta");
    codec_destroy(codec);
}

/* One beat of each worker: it is idle with the newest versions, or trains. Returns the CPU time. */
static double beat(uint32_t worker, uint8_t state, uint64_t version)
{
    bool training = state == WORKER_TRAINING;
    m.type = MSG_HEARTBEAT;
    m.heartbeat = (struct msg_heartbeat){.session = b.sessions[worker],
                                         .state = state,
                                         .round = training ? b.task.round : UINT64_MAX,
                                         .step = training,
                                         .steps = training ? b.task.steps : 0,
                                         .n_fragments = b.fragments,
                                         .workers = 1};
    for (uint32_t f = 0; f < b.fragments; f++) m.heartbeat.versions[f] = version;
    return say(control_of(worker));
}

static void join(uint32_t worker)
{
    m.type = MSG_JOIN;
    m.join = (struct msg_join){.config_hash = config_run_hash(&b.config),
                               .layout_hash = layout_hash(&b.layout),
                               .train_hash = 11,
                               .val_hash = 12,
                               .train_samples = 50,
                               .val_samples = 2 * b.workers,
                               .sample_tokens = 8,
                               .ranks = 1,
                               .layout = b.layout_bytes,
                               .layout_size = b.layout_size,
                               .model_config = "{\"model_type\": \"gpt2\"}",
                               .round = UINT64_MAX};
    memcpy(m.join.uuid, &worker, sizeof worker);
    m.join.uuid[WIRE_UUID - 1] = 1;
    snprintf(m.join.name, sizeof m.join.name, "worker-%04u", worker);
    say(control_of(worker));
    b.sessions[worker] = b.session;
    m.type = MSG_BIND;
    m.bind = (struct msg_bind){.session = b.session};
    say(control_of(worker) + 1);
}

static void start(void)
{
    struct err err = {0};
    struct engine_options options = {.config = &b.config, .entropy = 99};
    struct engine_io io = {.send = io_send};
    make_config();
    make_layout();
    b.now_us = 1000000;
    b.sessions = mem_alloc(b.workers, sizeof *b.sessions);
    if (!b.sessions || store_mem_create(&b.store)) die("no memory");
    if (engine_create(&b.engine, &options, b.store, &io, b.now_us, &err) != STATUS_OK) die(err.msg);
    for (uint32_t i = 0; i < b.workers; i++) join(i);
    for (uint32_t i = 0; i < b.workers; i++) beat(i, WORKER_READY, 0);
}

static void finish(void)
{
    engine_destroy(b.engine);
    b.store->ops->close(b.store);
    layout_finish(&b.layout);
    mem_free(b.sessions);
}

/* --- measurement -------------------------------------------------------------------------------------------------- */

struct costs {
    double beat, due, tick, load, offer, part, last, close, steps, eval;
};

static double tick(void)
{
    struct err err = {0};
    double from = cpu_us();
    if (engine_tick(b.engine, b.now_us, &err) != STATUS_OK) die(err.msg);
    return cpu_us() - from;
}

/* Seconds of training without a delta: one beat of each worker per second, at least BEATS_MIN, and ticks when due. */
static void measure_idle(struct costs *c, uint64_t version)
{
    uint32_t n = (BEATS_MIN + b.workers - 1) / b.workers * b.workers, ticks = 1;
    double beats = 0, due = 0, all = tick();
    for (uint32_t i = 0; i < n; i++) {
        b.now_us += 1000000 / b.workers;
        beats += beat(i % b.workers, WORKER_TRAINING, version);
        double from = cpu_us();
        bool at_once = engine_next_deadline_us(b.engine) <= b.now_us;
        due += cpu_us() - from;
        if (!at_once) continue;
        all += tick();
        ticks++;
    }
    c->beat = beats / n;
    c->due = due / n;
    c->tick = all / ticks;
    c->load = (beats + due + all) / ((double)n / b.workers) * 1e-6;
}

static double offer(uint32_t worker, uint32_t fragment)
{
    m.type = MSG_OFFER;
    m.offer = (struct msg_offer){.session = b.sessions[worker],
                                 .round = b.task.round,
                                 .fragment = fragment,
                                 .steps = b.task.steps,
                                 .form = DELTA_PSEUDO_GRADIENT,
                                 .base_version = b.task.versions[fragment],
                                 .bytes = b.delta_size,
                                 .crc = crc32c(0, b.delta, b.delta_size),
                                 .tokens = (uint64_t)b.task.steps * 8,
                                 .loss_sum = 10,
                                 .compute_us = 5000};
    return say(control_of(worker));
}

static double chunk(uint32_t worker, uint32_t fragment, bool last)
{
    size_t at = last ? b.delta_size / 2 : 0, size = last ? b.delta_size - at : b.delta_size / 2;
    m.type = MSG_CHUNK;
    m.chunk = (struct msg_chunk){.kind = OBJECT_DELTA,
                                 .fragment = fragment,
                                 .key = b.task.round,
                                 .offset = at,
                                 .total = b.delta_size,
                                 .crc = crc32c(0, b.delta + at, size),
                                 .data = b.delta + at,
                                 .size = size};
    return say(control_of(worker) + 1);
}

/* All deltas of one round. */
static void deliver(struct costs *c)
{
    double n = (double)b.workers * b.fragments;
    c->offer = c->part = c->last = c->close = 0;
    for (uint32_t f = 0; f < b.fragments; f++) {
        for (uint32_t i = 0; i < b.workers; i++) c->offer += offer(i, f) / n;
        for (uint32_t i = 0; i < b.workers; i++) {
            bool closes = i + 1 == b.workers;
            b.now_us++;
            c->part += chunk(i, f, false) / n;
            *(closes ? &c->close : &c->last) += chunk(i, f, true) / n;
        }
    }
}

/* One step of each worker. */
static void measure_steps(struct costs *c)
{
    c->steps = 0;
    for (uint32_t i = 0; i < b.workers; i++) {
        b.now_us += 1000000 / b.workers;
        m.type = MSG_METRICS;
        m.metrics = (struct msg_metrics){.session = b.sessions[i], .round = UINT64_MAX, .n_steps = 1};
        m.metrics.steps[0] = (struct metrics_step){.round = b.task.round,
                                                   .position = b.task.step0,
                                                   .loss = 2,
                                                   .lr = 1e-3f,
                                                   .grad_norm = 1,
                                                   .tokens = 8,
                                                   .step_us = 1000};
        c->steps += say(control_of(i)) / b.workers;
    }
}

/* A beat of each worker while all evaluate. */
static void measure_eval(struct costs *c, uint64_t version)
{
    c->eval = 0;
    for (uint32_t i = 0; i < b.workers; i++) beat(i, WORKER_EVALUATING, version);
    for (uint32_t i = 0; i < b.workers; i++) {
        b.now_us += 1000000 / b.workers;
        c->eval += beat(i, WORKER_EVALUATING, version) / b.workers;
    }
    if (b.evals < b.workers) die("not all workers evaluate");
}

static void add_row(const struct costs *c)
{
    printf("%7u %9u %8.1f %8.1f %8.0f %7.1f%% %8.1f %8.1f %8.1f %8.1f %8.1f %8.1f\n", b.workers, b.fragments, c->beat,
           c->due, c->tick, 100 * c->load, c->offer, c->part, c->last, c->close, c->steps, c->eval);
    fflush(stdout);
    json_array_append_new(b.rows, json_pack("{s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "workers",
                                            (json_int_t)b.workers, "fragments", (json_int_t)b.fragments, "beat_us",
                                            c->beat, "due_us", c->due, "tick_us", c->tick, "load", c->load, "offer_us",
                                            c->offer, "part_us", c->part, "last_us", c->last, "close_us", c->close,
                                            "steps_us", c->steps, "eval_us", c->eval));
}

static void bench_one(uint32_t workers, uint32_t fragments, uint32_t rounds)
{
    struct costs costs;
    b.workers = workers;
    b.fragments = fragments;
    b.rounds = (uint32_t)rounds;
    b.evals = 0;
    start();
    for (uint32_t r = 0; r < rounds; r++) {
        deliver(&costs);
        b.now_us += 1000000;
        for (uint32_t i = 0; i < workers; i++) beat(i, WORKER_READY, r + 1);
    }
    measure_idle(&costs, rounds);
    measure_steps(&costs);
    struct costs last;
    deliver(&last);
    for (uint32_t i = 0; i < workers; i++) beat(i, WORKER_READY, rounds + 1);
    measure_eval(&costs, rounds + 1);
    add_row(&costs);
    finish();
}

int main(int argc, char **argv)
{
    static const uint32_t table[][2] = {{128, 8}, {512, 8}, {1024, 8}, {2000, 8}, {256, 1}, {256, 64}, {256, 256}};
    uint64_t workers = 0, fragments = 8, rounds = 4;
    const char *json = NULL;
    struct err err = {0};
    const struct option_spec specs[] = {
        {"workers", OPTION_COUNT, &workers, "N", "workers (a fixed list)"},
        {"fragments", OPTION_COUNT, &fragments, "F", "with --workers: fragments (8)"},
        {"rounds", OPTION_COUNT, &rounds, "R", "rounds; from 3 on their time is measured (4)"},
        {"json", OPTION_TEXT, &json, "FILE", "also write the rows as JSON"},
    };
    struct options options = {.program = "bench_scale",
                              .usage = "[options]",
                              .about = "CPU time of the coordinator's engine per message.",
                              .specs = specs,
                              .n_specs = sizeof specs / sizeof *specs};
    enum status status = options_parse(&options, argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_scale", &err);
    if (workers > CONFIG_WORKERS_MAX || !fragments || fragments > LAYOUT_FRAGMENTS_MAX || !rounds)
        die("--workers, --fragments or --rounds is out of range");
    log_set_sink(log_quiet, NULL);
    b.rows = json_array();
    printf("%7s %9s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s\n", "workers", "fragments", "beat", "due", "tick", "load",
           "offer", "part", "last", "close", "steps", "eval");
    for (size_t i = 0; !workers && i < sizeof table / sizeof *table; i++)
        bench_one(table[i][0], table[i][1], (uint32_t)rounds);
    if (workers) bench_one((uint32_t)workers, (uint32_t)fragments, (uint32_t)rounds);
    json_t *out = json_pack("{s:s,s:o,s:o}", "name", "scale", "machine", machine_json(), "rows", b.rows);
    if (!out) die("no memory");
    if (json && json_dump_file(out, json, JSON_INDENT(2) | JSON_REAL_PRECISION(6))) die("cannot write the rows");
    json_decref(out);
    return 0;
}
