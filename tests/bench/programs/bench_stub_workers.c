/* Stub workers (tests/lib/net/stub_worker.h) in one process, for `./run bench many` and `./run bench pause`.
 *
 * Usage: bench_stub_workers --join LINE [--workers N] [--step-ms MS] [--beat-ms MS] [--report FILE]
 *
 * It fails if two workers saw different updates. The report has one JSON object per line, times from CLOCK_MONOTONIC in
 * microseconds:
 * - of a round and worker: `begun` and `trained`: its steps; `delivered`: the coordinator has all bytes; `applied`: all
 *   updates are there; `beats`: HEARTBEAT_ACK that arrived from begun to trained.
 * - of a worker: `joined`: from the start to WELCOME; `gap`: the longest time between two HEARTBEAT_ACK; `wait`: the
 *   longest time from a HEARTBEAT to the next HEARTBEAT_ACK, and `wait_at`, its end. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

#include "common/base/mem.h"
#include "common/config/options.h"
#include "tests/lib/net/stub_worker.h"

static struct {
    const char *join, *report;
    uint64_t workers, step_ms, beat_ms;
} given = {.workers = 2, .step_ms = 100};
static struct stub_model model = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void report(const struct stub_worker *stubs)
{
    FILE *f = fopen(given.report, "w");
    if (!f) stub_die("cannot write the report");
    for (uint32_t i = 0; i < given.workers; i++) {
        const struct stub_worker *s = &stubs[i];
        for (uint64_t r = 0; r < model.rounds; r++) {
            const struct stub_round *t = &s->rounds[r];
            fprintf(f,
                    "{\"worker\": %u, \"round\": %" PRIu64 ", \"begun\": %" PRIu64 ", \"trained\": %" PRIu64
                    ", \"delivered\": %" PRIu64 ", \"applied\": %" PRIu64 ", \"beats\": %u}\n",
                    i, r, t->begun, t->trained, t->delivered, t->applied, t->beats);
        }
        fprintf(f,
                "{\"worker\": %u, \"joined\": %" PRIu64 ", \"gap\": %" PRIu64 ", \"wait\": %" PRIu64
                ", \"wait_at\": %" PRIu64 ", \"beats\": %u}\n",
                i, s->joined_us - s->started_us, s->gap_us, s->wait_us, s->wait_at_us, atomic_load(&s->beats));
    }
    fprintf(f, "{\"params\": %" PRIu64 ", \"fragments\": %u, \"delta_bytes\": %" PRIu64 "}\n",
            (uint64_t)model.layout.n_params, model.layout.n_fragments, stub_model_bytes(&model, 0));
    if (fclose(f)) stub_die("cannot write the report");
}

static enum status parse(int argc, char **argv, struct err *err)
{
    const struct option_spec specs[] = {
        {"join", OPTION_TEXT, &given.join, "LINE", "the coordinator's join line"},
        {"workers", OPTION_COUNT, &given.workers, "N", "number of workers (2)"},
        {"step-ms", OPTION_COUNT, &given.step_ms, "MS", "time of an inner step (100)"},
        {"beat-ms", OPTION_COUNT, &given.beat_ms, "MS", "between two heartbeats (as the coordinator says)"},
        {"report", OPTION_TEXT, &given.report, "FILE", "output file for the times"},
    };
    struct options options = {.program = "bench_stub_workers",
                              .usage = "[options]",
                              .about = "Workers that do not train; see tests/bench/many.",
                              .specs = specs,
                              .n_specs = sizeof specs / sizeof *specs};
    TRY(options_parse(&options, argc, argv, err));
    if (!given.join || !given.workers) return err_set(err, STATUS_INVALID, "--join and --workers are required");
    return STATUS_OK;
}

/* A worker has some ten descriptors. */
static void raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
    struct transport_address address;
    struct err err = {0};
    enum status status = parse(argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_stub_workers", &err);
    if (transport_address_parse(&address, given.join, &err) != STATUS_OK) stub_die(err.msg);
    raise_files();
    struct stub_worker *stubs = mem_alloc(given.workers, sizeof *stubs);
    if (!stubs) stub_die("no memory");
    model.workers = (uint32_t)given.workers;
    for (uint32_t i = 0; i < given.workers; i++) {
        stubs[i].index = i;
        stubs[i].model = &model;
        stubs[i].step_us = given.step_ms * 1000;
        stubs[i].beat_us = given.beat_ms * 1000;
        stub_worker_start(&stubs[i], &address);
    }
    bool same = true;
    for (uint32_t i = 0; i < given.workers; i++) {
        if (!stub_worker_join(&stubs[i])) stub_die("a worker did not finish");
        same = same && stubs[i].seen == stubs[0].seen;
    }
    if (!same) stub_die("two workers saw different updates");
    if (given.report) report(stubs);
    for (uint32_t i = 0; i < given.workers; i++) mem_free(stubs[i].rounds);
    mem_free(stubs);
    stub_model_finish(&model);
    return EXIT_DONE;
}
