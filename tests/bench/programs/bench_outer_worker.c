/* One worker of `./run bench outer-step`: it replaces training with noise, so that the outer step dominates a round.
 * Link, outer loop, codecs, state files and the protocol are the worker's own.
 *
 * Usage: bench_outer_worker --join LINE --barrier FILE --workers N --index I --rounds N --report FILE [--save DIR]
 *        [--device NAME] [--section.key=value ...]
 *
 * Every worker makes its delta and then waits at a barrier in shared memory. No outer step waits for another worker's
 * noise. The caller creates the barrier FILE, empty or filled with zeros.
 *
 * The report has one JSON object per round and line, times from CLOCK_MONOTONIC in microseconds:
 * - `ready`: the barrier opened, and the parameters after the last inner step exist.
 * - `applied`: theta includes the update, and its hash is verified.
 * - `placed`: theta is copied to the training parameters of the next round.
 * - `bytes_up`, `bytes_down`: bytes of the network interface from one barrier to the next. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "wire/transport.h"
#include "worker/link/link.h"
#include "worker/model/model.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/state_dir.h"

enum { ROUNDS_MAX = 1000, NOISE = 6 << 20, SHIFT = 99991, WAIT_US = 100000, LOOK_US = 200, GIVE_UP_US = 300000000 };

/* Times and counters of one round of this worker. */
struct round_times {
    uint64_t ready, applied, placed;
    uint64_t tx, rx; /* counters of the network interface just before `ready`, bytes */
    double cpu;      /* CPU seconds from `ready` to `applied`, summed over the threads */
    struct outer_times parts;
};

struct bench {
    const char *join, *barrier_path, *report_path, *save_dir, *device;
    uint64_t workers, index, rounds;
    struct config config;
    struct config_sources sources;
    struct layout layout;
    char model_text[8192];
    atomic_uint *barrier; /* [ROUNDS_MAX + 1]: workers that arrived */
    float *live, *noise;
    struct outer_loop *loop;
    struct link *link;
    struct msg in;
    struct state_dir dir;
    uint64_t round; /* deltas made so far */
    struct round_times times[ROUNDS_MAX + 1];
};

static void die(const char *what)
{
    fprintf(stderr, "bench_outer_worker: %s\n", what);
    exit(EXIT_FAILED);
}

/* ---- host of the outer loop -------------------------------------------------------------------------------------- */

static enum status send_message(void *ctx, enum wire_lane lane, const struct msg *m)
{
    struct bench *b = ctx;
    return link_send(b->link, lane, m);
}

/* A worker saves AdamW's moments, too. `live` stands in for both: it has the same size. */
static size_t inner_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    struct bench *b = ctx;
    size_t bytes = b->layout.n_params * sizeof *b->live;
    if (cap < 2) return 0;
    parts[0] = parts[1] = (struct outer_part){.data = b->live, .size = bytes};
    return 2;
}

static enum status on_config(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    struct bench *b = ctx;
    TRY(config_parse(&b->config, &b->sources, m->text, strlen(m->text), "configuration of the run", CONFIG_COORDINATOR,
                     err));
    TRY(config_resolve(&b->config, &b->sources, err));
    const struct model_family *family = model_family_find(b->config.model.family);
    if (!family) return err_set(err, STATUS_UNSUPPORTED, "unknown model family");
    struct model_config shape = model_config_of(&b->config);
    TRY(family->layout(&shape, &b->layout, err));
    TRY(model_split_fragments(&b->config, &b->layout, err));
    TRY(family->config_json(&shape, b->model_text, sizeof b->model_text));
    b->live = mem_alloc(b->layout.n_params, sizeof *b->live);
    b->noise = mem_alloc(NOISE, sizeof *b->noise);
    if (!b->live || !b->noise) return err_set(err, STATUS_NOMEM, "no memory for the parameters");
    rng_normal_fill(1 + b->index, RNG_TEST, 0, 1e-3f, b->noise, NOISE);
    *model = (struct outer_model){.config = &b->config,
                                  .layout = &b->layout,
                                  .train_hash = 1,
                                  .val_hash = 2,
                                  .train_samples = 1000000,
                                  .val_samples = 1000,
                                  .ranks = 1,
                                  .devices = "none",
                                  .sample_tokens = b->config.model.block_size,
                                  .model_config = b->model_text,
                                  .inner = {.ctx = b, .parts = inner_parts}};
    return STATUS_OK;
}

static uint64_t stopwatch(void)
{
    return clock_monotonic_us();
}

static void pump(struct bench *b, uint64_t most_us)
{
    uint64_t now = clock_monotonic_us(), due = outer_loop_deadline_us(b->loop);
    uint64_t wait = due <= now ? 0 : due - now < most_us ? due - now : most_us;
    enum wire_lane lane;
    enum status status = link_recv(b->link, wait, &lane, &b->in);
    while (status != STATUS_AGAIN) {
        if (status == STATUS_OK) outer_loop_on_message(b->loop, lane, &b->in, clock_monotonic_us());
        status = link_recv(b->link, 0, &lane, &b->in);
    }
    outer_loop_tick(b->loop, clock_monotonic_us());
}

/* ---- a round ----------------------------------------------------------------------------------------------------- */

/* Wait until all workers arrived at barrier `n`. Messages stay queued, as in a training step; the link thread goes on
 * sending heartbeats. */
static void meet(struct bench *b, uint64_t n)
{
    uint64_t since = clock_monotonic_us();
    atomic_fetch_add(&b->barrier[n], 1);
    while (atomic_load(&b->barrier[n]) < b->workers) {
        if (clock_monotonic_us() - since > GIVE_UP_US) die("timeout: the other workers did not arrive at the barrier");
        usleep(LOOK_US);
    }
}

static uint64_t counter(const struct bench *b, const char *name)
{
    char path[160];
    unsigned long long value = 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/%s", b->device, name);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%llu", &value) != 1) die("cannot read the counters of the network interface");
    fclose(f);
    return value;
}

static double cpu_seconds(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t)) die("cannot read the CPU clock");
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void make_delta(struct bench *b)
{
    uint64_t at = b->round * SHIFT % NOISE;
    for (uint64_t i = 0; i < b->layout.n_params;) {
        uint64_t n = NOISE - at < b->layout.n_params - i ? NOISE - at : b->layout.n_params - i;
        for (uint64_t k = 0; k < n; k++) b->live[i + k] += b->noise[at + k];
        i += n;
        at = 0;
    }
}

static bool all_at(const struct bench *b, uint64_t version)
{
    for (uint32_t f = 0; f < b->layout.n_fragments; f++)
        if (outer_loop_version(b->loop, f) < version) return false;
    return true;
}

static bool over(const struct bench *b)
{
    enum outer_want want = outer_loop_want(b->loop);
    return want == OUTER_DONE || want == OUTER_FAILED;
}

/* Run one outer step. Returns false after the last round. */
static bool outer_step(struct bench *b)
{
    struct round_times *t = &b->times[b->round];
    uint64_t version = outer_loop_version(b->loop, 0) + 1;
    outer_loop_train_begin(b->loop, clock_monotonic_us());
    memcpy(b->live, outer_loop_params(b->loop), b->layout.n_params * sizeof *b->live);
    if (b->round) t[-1].placed = clock_monotonic_us();
    make_delta(b);
    if (!b->index && !b->round) sync(); /* flush the run's first checkpoint before the measurement */
    meet(b, b->round);
    t->tx = counter(b, "tx_bytes");
    t->rx = counter(b, "rx_bytes");
    if (b->round == b->rounds) return false;
    const struct msg_assign *task = outer_loop_assignment(b->loop);
    if (!task) die("the coordinator withdrew the assignment");
    const struct config *c = &b->config;
    uint64_t tokens = (uint64_t)task->steps * c->train.batch_size * c->train.grad_accum * c->model.block_size;
    struct outer_result result = {.values = b->live, .tokens = tokens, .steps = task->steps, .loss_sum = 5000};
    t->ready = clock_monotonic_us();
    t->cpu = -cpu_seconds();
    if (outer_loop_train_done(b->loop, &result, t->ready) != STATUS_OK) die("cannot encode the delta");
    while (!all_at(b, version) && !over(b)) {
        if (clock_monotonic_us() - t->ready > GIVE_UP_US) die("timeout: no update from the coordinator");
        if (outer_loop_want(b->loop) == OUTER_TRAIN) die("the coordinator refused the delta: its log says why");
        pump(b, WAIT_US);
    }
    t->applied = clock_monotonic_us();
    t->cpu += cpu_seconds();
    t->parts = *outer_loop_times(b->loop);
    b->round++;
    return true;
}

static void run(struct bench *b)
{
    for (;;) {
        switch (outer_loop_want(b->loop)) {
        case OUTER_WAIT: pump(b, WAIT_US); break;
        case OUTER_TRAIN:
            if (!outer_step(b)) return;
            break;
        case OUTER_EVAL: die("the benchmark has no evaluation: set train.eval_every=0"); break;
        case OUTER_DONE:
        case OUTER_FAILED: die(outer_loop_text(b->loop, clock_monotonic_us()));
        }
    }
}

static void report(const struct bench *b)
{
    FILE *f = fopen(b->report_path, "w");
    if (!f) die("cannot write the report");
    for (uint64_t i = 0; i < b->rounds; i++) {
        const struct round_times *t = &b->times[i];
        fprintf(f,
                "{\"worker\": %" PRIu64 ", \"round\": %" PRIu64 ", \"params\": %" PRIu64 ", \"fragments\": %u, "
                "\"ready\": %" PRIu64 ", \"applied\": %" PRIu64 ", \"placed\": %" PRIu64 ", \"bytes_up\": %" PRIu64
                ", \"bytes_down\": %" PRIu64 ", \"compress_s\": %.6f, \"send_s\": %.6f, \"wait_s\": %.6f, "
                "\"apply_s\": %.6f, \"cpu_s\": %.6f}\n",
                b->index, i, b->layout.n_params, b->layout.n_fragments, t->ready, t->applied, t->placed,
                t[1].tx - t->tx, t[1].rx - t->rx, t->parts.compress_s, t->parts.send_s, t->parts.wait_s,
                t->parts.apply_s, t->cpu);
    }
    if (fclose(f)) die("cannot write the report");
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

static void open_barrier(struct bench *b)
{
    int fd = open(b->barrier_path, O_RDWR | O_CLOEXEC);
    size_t bytes = (ROUNDS_MAX + 1) * sizeof *b->barrier;
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) die("cannot open the barrier's file");
    b->barrier = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (b->barrier == MAP_FAILED) die("cannot map the barrier's file");
}

static void start(struct bench *b)
{
    struct transport_address address;
    struct transport *transport;
    struct err err = {0};
    struct outer_setup setup = {
        .io_ctx = b, .send = send_message, .host_ctx = b, .on_config = on_config, .stopwatch_us = stopwatch};
    struct transport_worker self = {.fresh = true};
    if (transport_key_make(&self.key, &err) != STATUS_OK) die(err.msg);
    memcpy(setup.uuid, self.key.public_key, sizeof setup.uuid);
    snprintf(setup.name, sizeof setup.name, "worker-%u", (unsigned)b->index);
    memcpy(self.name, setup.name, sizeof self.name);
    if (b->save_dir) {
        state_dir_init(&b->dir, b->save_dir);
        state_dir_attach(&b->dir, &setup);
    }
    open_barrier(b);
    layout_init(&b->layout);
    if (transport_address_parse(&address, b->join, &err) != STATUS_OK ||
        outer_loop_create(&b->loop, &setup, clock_monotonic_us()) != STATUS_OK ||
        transport_zmq_dial(&transport, &address, &self, &err) != STATUS_OK ||
        link_open(&b->link, transport, outer_loop_heartbeat(b->loop), &err) != STATUS_OK)
        die(err.msg[0] ? err.msg : "no memory");
}

static enum status parse(struct bench *b, int argc, char **argv, struct err *err)
{
    const struct option_spec specs[] = {
        {"join", OPTION_TEXT, &b->join, "LINE", "the coordinator's join line"},
        {"barrier", OPTION_TEXT, &b->barrier_path, "FILE", "empty file, shared by all workers of the run"},
        {"workers", OPTION_COUNT, &b->workers, "N", "number of workers in the run"},
        {"index", OPTION_COUNT, &b->index, "I", "index of this worker, from 0"},
        {"rounds", OPTION_COUNT, &b->rounds, "N", "number of outer steps (10)"},
        {"report", OPTION_TEXT, &b->report_path, "FILE", "output file for the times"},
        {"save", OPTION_TEXT, &b->save_dir, "DIR", "save the worker's state there, as configured"},
        {"device", OPTION_TEXT, &b->device, "NAME", "network interface to count bytes on (eth0)"},
    };
    struct options options = {.program = "bench_outer_worker",
                              .usage = "[options]",
                              .specs = specs,
                              .about = "A worker that trains on noise; see tests/bench/outer-step.",
                              .n_specs = sizeof specs / sizeof *specs,
                              .settings_allowed = true};
    TRY(options_parse(&options, argc, argv, err));
    if (!b->join || !b->barrier_path || !b->report_path || !b->workers || b->index >= b->workers)
        return err_set(err, STATUS_INVALID, "--join, --barrier, --report, --workers and --index are required");
    if (!b->rounds || b->rounds > ROUNDS_MAX) return err_set(err, STATUS_INVALID, "--rounds: 1 to %d", ROUNDS_MAX);
    config_defaults(&b->config, &b->sources);
    for (size_t i = 0; i < options.n_settings; i++)
        TRY(config_set(&b->config, &b->sources, options.settings[i], CONFIG_FLAG, err));
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    static struct bench b = {.rounds = 10, .device = "eth0"};
    struct err err = {0};
    enum status status = parse(&b, argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_outer_worker", &err);
    start(&b);
    run(&b);
    report(&b);
    link_close(b.link, 0);
    outer_loop_destroy(b.loop);
    layout_finish(&b.layout);
    mem_free(b.live);
    mem_free(b.noise);
    return EXIT_DONE;
}
