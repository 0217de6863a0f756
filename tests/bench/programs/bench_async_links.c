/* async beside diloco where links or speeds differ: seconds to equal tokens and bytes down, in the virtual time of
 * `atoll plan` (cli/plan/plan_rounds.h), which runs the real round machine. No network and no clock: every machine
 * prints the same numbers.
 *
 * Usage: bench_async_links [--small] [--json FILE] [SECTION.KEY=VALUE ...]; the settings are those of async
 *
 * A row: n workers train gpt2 (124 M parameters, int8 both ways, eight fragments, round trip 50 ms), H = 30, 600 steps
 * each. Rates and speeds fall evenly from the best worker to the worst, or one worker is worse ("one").
 *
 * Columns:
 * - "gain": seconds of diloco over those of async. "bytes": bytes down of async over those of diloco.
 * - "most": the largest gain: with transfers that cost nothing, all devices train all the time. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan/plan.h"
#include "common/base/mem.h"
#include "tests/bench/lib/machine.h"

enum { WORKERS_MAX = 16, FRAGMENTS = 8, STEPS = 600, EVERY = 30 };

struct row {
    uint32_t workers;
    double mbit, links, speeds; /* of the fastest; fastest over slowest */
    uint32_t overlap;
    bool one; /* only one worker is slower */
};

static const struct row rows[] = {
    {4, 100, 1, 1, 0, 0},   {8, 100, 1, 1, 0, 0},   {16, 100, 1, 1, 0, 0},   {8, 100, 1, 1, 15, 0},
    {4, 100, 2, 1, 0, 0},   {6, 100, 2, 1, 0, 0},   {8, 100, 2, 1, 0, 0},    {16, 100, 2, 1, 0, 0},
    {8, 100, 2, 1, 15, 0},  {4, 100, 3, 1, 0, 0},   {6, 100, 3, 1, 0, 0},    {8, 100, 3, 1, 0, 0},
    {16, 100, 3, 1, 0, 0},  {4, 100, 3, 1, 15, 0},  {8, 100, 3, 1, 15, 0},   {16, 100, 3, 1, 15, 0},
    {4, 200, 10, 1, 0, 0},  {6, 200, 10, 1, 0, 0},  {8, 200, 10, 1, 0, 0},   {16, 200, 10, 1, 0, 0},
    {8, 200, 10, 1, 15, 0}, {16, 1000, 3, 1, 0, 0}, {8, 1000, 10, 1, 0, 0},  {8, 1000, 10, 1, 15, 0},
    {8, 100, 10, 1, 0, 1},  {8, 1000, 10, 1, 0, 1}, {8, 1000, 10, 1, 15, 1}, {4, 100, 1, 2, 0, 0},
    {4, 100, 1, 3, 0, 0},   {8, 100, 1, 3, 0, 0},   {8, 100, 1, 10, 0, 0},   {8, 1000, 1, 3, 0, 0},
    {8, 1000, 1, 3, 15, 0}, {8, 100, 1, 10, 0, 1},  {8, 100, 3, 3, 0, 0},    {8, 1000, 3, 3, 0, 0},
    {8, 1000, 3, 3, 15, 0},
};
enum { N = sizeof rows / sizeof *rows };

static char **extra;
static int n_extra;

static void must(enum status status, const struct err *err)
{
    if (status == STATUS_OK) return;
    fprintf(stderr, "bench_async_links: %s\n", err->msg);
    exit(1);
}

/* int8:256 has 2 bytes more for each 256 values. The seconds are those of a common core. */
static void fill_costs(struct plan_costs *costs)
{
    static const uint64_t floats[FRAGMENTS] = {39400000, 12150000, 12150000, 12150000,
                                               12150000, 12150000, 12150000, 12150000};
    *costs = (struct plan_costs){.step_s = 1, .place_s = 0.1, .n_fragments = FRAGMENTS};
    for (int f = 0; f < FRAGMENTS; f++) {
        double n = (double)floats[f];
        costs->fragments[f] = (struct plan_fragment){.floats = floats[f],
                                                     .up_bytes = floats[f] + floats[f] / 128,
                                                     .down_bytes = floats[f] + floats[f] / 128,
                                                     .compress_s = 1e-9 * n,
                                                     .deliver_s = 0.5e-9 * n,
                                                     .merge_s = 0.3e-9 * n,
                                                     .outer_s = 2e-9 * n,
                                                     .apply_s = 1e-9 * n};
    }
}

/* Worker i of n, between `most` and most / spread. */
static double between(const struct row *row, double most, double spread, uint32_t i)
{
    double least = most / spread;
    if (row->one) return i ? most : least;
    return least + (most - least) * i / (row->workers - 1);
}

static struct plan_run plan(const struct row *row, const char *method, const struct plan_costs *costs,
                            const struct link_spec *links, const double *steps_s, uint32_t rounds)
{
    struct config *config = mem_alloc(1, sizeof *config);
    struct config_sources sources;
    struct err err = {0};
    char text[6][64];
    if (!config) exit(1);
    config_defaults(config, &sources);
    snprintf(text[0], sizeof text[0], "train.method=%s", method);
    snprintf(text[1], sizeof text[1], "train.max_steps=%u", rounds * EVERY);
    snprintf(text[2], sizeof text[2], "train.sync_every=%d", EVERY);
    snprintf(text[3], sizeof text[3], "train.overlap=%u", row->overlap);
    snprintf(text[4], sizeof text[4], "codec.up=int8:256");
    snprintf(text[5], sizeof text[5], "codec.down=int8:256");
    for (int i = 0; i < 6; i++) must(config_set(config, &sources, text[i], CONFIG_FLAG, &err), &err);
    for (int i = 0; i < n_extra && !strcmp(method, "async"); i++)
        must(config_set(config, &sources, extra[i], CONFIG_FLAG, &err), &err);
    must(config_resolve(config, &sources, &err), &err);
    struct plan_setup setup = {config, costs, links, row->workers, steps_s};
    struct plan_run run;
    must(plan_run_make(&run, &setup, 1000, NULL, &err), &err);
    mem_free(config);
    return run;
}

/* The run without transfers. */
static double least_s(const struct row *row, const double *steps_s, uint32_t rounds)
{
    double per_s = 0;
    for (uint32_t i = 0; i < row->workers; i++) per_s += 1 / steps_s[i];
    return (double)row->workers * rounds * EVERY / per_s;
}

int main(int argc, char **argv)
{
    const char *json = NULL;
    uint32_t rounds = STEPS / EVERY;
    size_t n = N;
    extra = mem_alloc((size_t)argc, sizeof *extra);
    for (int i = 1; i < argc && extra; i++) {
        if (!strcmp(argv[i], "--small"))
            rounds = 4, n = 2;
        else if (!strcmp(argv[i], "--json") && i + 1 < argc)
            json = argv[++i];
        else
            extra[n_extra++] = argv[i];
    }
    struct plan_costs *costs = mem_alloc(1, sizeof *costs);
    if (!costs || !extra) return 1;
    fill_costs(costs);
    json_t *out = json_array();
    puts("workers  mbit/s      s a step  overlap | diloco s  async s   gain   most | MB down a round: diloco  async  "
         "bytes");
    for (size_t k = 0; k < n; k++) {
        const struct row *row = &rows[k];
        struct link_spec links[WORKERS_MAX];
        double steps_s[WORKERS_MAX];
        for (uint32_t i = 0; i < row->workers; i++) {
            double mbit = between(row, row->mbit, row->links, i);
            links[i] = (struct link_spec){.up_mbit = mbit, .down_mbit = mbit, .delay_ms = 25};
            steps_s[i] = 1 / between(row, 1, row->speeds, i);
        }
        struct plan_run a = plan(row, "async", costs, links, steps_s, rounds);
        struct plan_run d = plan(row, "diloco", costs, links, steps_s, rounds);
        double share = 1e-6 / ((double)row->workers * (double)d.rounds),
               most = d.seconds / least_s(row, steps_s, rounds);
        double gain = d.seconds / a.seconds, bytes = (double)a.bytes_down / (double)d.bytes_down;
        printf("%3u %s %5.0f..%-5.0f %4.0f..%-3.0f %7u  | %8.0f %8.0f %6.2f %6.2f | %23.0f %6.0f %6.2f\n", row->workers,
               row->one ? "one" : "   ", row->mbit / row->links, row->mbit, row->speeds, 1.0, row->overlap, d.seconds,
               a.seconds, gain, most, (double)d.bytes_down * share, (double)a.bytes_down * share, bytes);
        json_array_append_new(out,
                              json_pack("{s:i,s:f,s:f,s:f,s:i,s:b,s:f,s:f,s:f,s:f,s:f}", "workers", (int)row->workers,
                                        "mbit", row->mbit, "links", row->links, "speeds", row->speeds, "overlap",
                                        (int)row->overlap, "one", row->one, "diloco_s", d.seconds, "async_s", a.seconds,
                                        "gain", gain, "most", most, "bytes", bytes));
    }
    json_t *all = json_pack("{s:s,s:o,s:o}", "name", "async-links", "machine", machine_json(), "rows", out);
    bool ok = all && (!json || !json_dump_file(all, json, JSON_INDENT(2) | JSON_REAL_PRECISION(6)));
    json_decref(all);
    mem_free(costs);
    mem_free(extra);
    return ok ? 0 : 1;
}
