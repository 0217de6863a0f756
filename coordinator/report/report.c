#include "coordinator/report/report.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/os/columns.h"
#include "common/os/fileio.h"
#include "common/os/json_file.h"
#include "common/os/run_text.h"

enum { BAR_WIDTH = 30, LINE_BYTES = 4096 };

/* Prints which reported rounds the journal has lost (a full disk, a power cut with ddp): the run
 * repeats them. */
static void report_repeated(struct report *r, uint64_t done)
{
    uint64_t last = r->metrics.rounds_in_file;
    if (last <= done) return;
    char first[32] = "";
    if (last > done + 1) snprintf(first, sizeof first, "s %llu to", (unsigned long long)done + 1);
    const char *it = first[0] ? "them" : "it";
    report_line(r, "repeating round%s %llu: the journal lost %s, and metrics.jsonl will contain %s twice", first,
                (unsigned long long)last, it, it);
}

enum status report_open(struct report *r, const struct config *config, const char *run_dir, FILE *out, struct err *err)
{
    *r = (struct report){.config = config, .out = out, .terminal = isatty(fileno(out))};
    r->bar = r->terminal || getenv("ATOLL_PROGRESS_BAR");
    TRY(metrics_file_open(&r->metrics, run_dir, err));
    r->reported = r->metrics.rounds_in_file;
    return STATUS_OK;
}

void report_bytes(struct report *r, uint64_t up, uint64_t down)
{
    r->up = up;
    r->down = down;
}

void report_close(struct report *r)
{
    if (r->bar_shown) fputs("\r\033[K", r->out);
    r->bar_shown = false;
    metrics_file_close(&r->metrics);
}

enum status report_flush(struct report *r, struct err *err)
{
    fflush(r->out);
    return metrics_file_flush(&r->metrics, err);
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* The first `shown` bytes on the terminal, all of them in the log file. */
static void print_line(struct report *r, const char *line, size_t shown)
{
    if (r->bar_shown) fputs("\r\033[K", r->out);
    r->bar_shown = false;
    fprintf(r->out, "%.*s\n", (int)shown, line);
    fflush(r->out);
    log_copy(line);
}

void report_line(struct report *r, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    text_make_clean(line); /* it may contain a name from the network */
    print_line(r, line, strlen(line));
}

/* One token is one byte. data.tokenizer alone does not tell: its default is bytes, also for shards of a larger
 * vocabulary. */
static bool tokens_are_bytes(const struct config *config)
{
    return !strcmp(config->data.tokenizer, "bytes") && config->model.vocab_size == 256 && !config_is_external(config);
}

static void val_text(const struct report *r, double val, char *out, size_t cap)
{
    bool bytes = tokens_are_bytes(r->config);
    if (isnan(val)) /* none */
        snprintf(out, cap, bytes ? "val      -           " : "val      -");
    else if (!(val < 1e5))
        snprintf(out, cap, "val %s", run_text_loss(val).text);
    else if (bytes)
        snprintf(out, cap, "val %.4f (%.2f bpb)", val, val / M_LN2);
    else
        snprintf(out, cap, "val %.4f", val);
}

static void draw_bar(struct report *r, const struct engine_event_round *e)
{
    if (!r->bar || !e->rounds) return;
    char bar[128];
    int filled = (int)(e->round * BAR_WIDTH / e->rounds);
    int size = snprintf(bar, sizeof bar, "[%.*s%.*s]  %s", filled, "##############################", BAR_WIDTH - filled,
                        "..............................",
                        run_text_left((double)e->round, (double)e->rounds, e->eta_s, "  ").text);
    int width = (int)columns_of(fileno(r->out));
    if (width && size >= width) size = width - 1; /* \r cannot erase a bar that wraps */
    fprintf(r->out, "%.*s\r", size, bar);
    fflush(r->out);
    r->bar_shown = r->terminal; /* atoll launch erases the bar itself */
}

/* True: print no line for this round. ddp has one round per step, so it prints a line every LOG_EVERY_STEPS and for
 * each evaluation. */
static bool holds_back(struct report *r, const struct engine_event_round *e)
{
    r->held++;
    r->held_s += e->round_s;
    if (r->config->train.method != METHOD_DDP) return false;
    return r->held < LOG_EVERY_STEPS && isnan(e->val_loss) && e->round < e->rounds;
}

/* The end of a round line, which a narrow terminal cuts off. */
static void round_details(const struct report *r, const struct engine_event_round *e, char *out, size_t cap)
{
    bool chosen = e->codec && config_down(r->config) == CONFIG_DOWN_AUTO; /* codec: "relay", or the union's codec */
    snprintf(out, cap, "%s  eta %-11s  computed %7s  waited %7s%s%s%s", e->val_by_one ? "  by one worker" : "",
             units_whole_seconds(e->eta_s).text, units_duration(isfinite(e->compute_s) ? e->compute_s : 0).text,
             units_duration(isfinite(e->wait_s) ? e->wait_s : 0).text,
             !chosen                       ? ""
             : !strcmp(e->codec, "relay")  ? "  down by relay"
             : codec_spec_sparse(e->codec) ? "  down by union"
                                           : "",
             e->slowest ? "  slowest " : "", e->slowest ? e->slowest : "");
}

/* async: an evaluation gets its own line, because its round has been reported before. */
static void eval_line(struct report *r, const struct engine_event_eval *e)
{
    char val[64];
    if (e->round > r->reported) return; /* the round line will contain the loss */
    val_text(r, e->val_loss, val, sizeof val);
    report_line(r, "%s  after round %llu, %llu tokens%s", val, (unsigned long long)e->round,
                (unsigned long long)e->tokens, e->by_one ? ", by one worker" : "");
}

/* Barrier: workers that delivered / workers assigned. async: a worker delivers any number of deltas in a round. */
static const char *delivered_text(const struct report *r, const struct engine_event_round *e, char *out, size_t cap)
{
    bool async = r->config->train.method == METHOD_ASYNC;
    snprintf(out, cap, async ? "deltas %u  workers %u" : "workers %u/%u", e->delivered, e->workers);
    return out;
}

static void round_line(struct report *r, const struct engine_event_round *e)
{
    char val[64], who[48], total[24], line[512];
    assert(e->round <= e->rounds);
    r->reported = e->round;
    if (holds_back(r, e)) return;
    int width = snprintf(total, sizeof total, "%llu", (unsigned long long)e->rounds);
    val_text(r, e->val_loss, val, sizeof val);
    /* The most important values come first: a terminal shows as much as it is wide. 100 columns reach to the time. */
    int n = snprintf(line, sizeof line, "round %*llu/%s  loss %s  %s  %s  up %7s  down %7s  in %7s", width,
                     (unsigned long long)e->round, total, run_text_loss(e->loss).text, val,
                     delivered_text(r, e, who, sizeof who), units_bytes((double)(r->up - r->line_up)).text,
                     units_bytes((double)(r->down - r->line_down)).text, units_duration(r->held_s).text);
    round_details(r, e, line + n, sizeof line - (size_t)n);
    text_make_clean(line);
    print_line(r, line, columns_fit(line, strlen(line), columns_of(fileno(r->out))));
    r->line_up = r->up;
    r->line_down = r->down;
    r->held = 0;
    r->held_s = 0;
    draw_bar(r, e);
}

static void restart_line(struct report *r, const struct engine_event_restart *e)
{
    report_line(r, "%s", e->text);
    report_repeated(r, e->round);
    if (r->reported > e->round) r->reported = e->round;
}

static void alert_line(struct report *r, const struct engine_event_alert *e)
{
    if (e->starts && !e->told) report_line(r, "alert %s: %s", e->rule, e->text);
    if (!e->starts) report_line(r, "alert %s ended after %s: %s", e->rule, units_whole_seconds(e->for_s).text, e->text);
}

void report_event(struct report *r, const struct engine_event *e)
{
    metrics_file_event(&r->metrics, e);
    const char *worker = engine_event_is_line(e) ? e->line.worker : NULL;
    const char *text = engine_event_is_line(e) ? e->line.text : NULL;
    switch (e->kind) {
    case ENGINE_EVENT_ROUND: round_line(r, &e->round); break;
    case ENGINE_EVENT_JOIN: report_line(r, "%s joined%s%s", worker, text[0] ? ": " : "", text); break;
    case ENGINE_EVENT_LEAVE: report_line(r, "%s left%s%s", worker, text[0] ? ": " : "", text); break;
    case ENGINE_EVENT_EVICT: report_line(r, "evicted %s: %s", worker, text); break;
    case ENGINE_EVENT_FAULT: report_line(r, "%s%s%s", worker ? worker : "", worker ? ": " : "", text); break;
    case ENGINE_EVENT_LINK: report_line(r, "link of %s: %s", worker, text); break;
    case ENGINE_EVENT_RESTART: restart_line(r, &e->restart); break;
    case ENGINE_EVENT_CHANGE:
        report_line(r, "changed %s from %s to %s, from round %llu on", e->change.key, e->change.from, e->change.to,
                    (unsigned long long)e->change.round + 1);
        break;
    case ENGINE_EVENT_WAITING: report_line(r, "waiting for %s", text); break;
    case ENGINE_EVENT_EVAL: eval_line(r, &e->eval); break;
    case ENGINE_EVENT_ALERT: alert_line(r, &e->alert); break;
    case ENGINE_EVENT_NOTE: /* logged as a warning */
    case ENGINE_EVENT_DONE:
    case ENGINE_EVENT_STEP:
    case ENGINE_EVENT_UPDATE:
    case ENGINE_EVENT_CHECKPOINT: break;
    }
}

/* --- summary ------------------------------------------------------------------------------------------------------ */

/* Bytes of DDP for the same tokens: an fp32 ring all-reduce moves 2 (N - 1) / N * 4 P bytes per step and worker. */
static double ddp_bytes(const struct engine_summary *s)
{
    if (s->workers < 2) return 0;
    double n = s->workers;
    return 2 * (n - 1) / n * 4 * (double)s->params * (double)s->worker_steps;
}

enum status report_summary(const struct report *r, const struct engine_summary *s, const char *run_dir, struct err *err)
{
    char path[FILEIO_PATH_MAX], hash[20];
    json_t *o = json_object();
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s->theta_hash);
    json_put_text(o, "run", r->config->run.name);
    json_put_text(o, "method", config_method_name(r->config->train.method));
    json_put_count(o, "workers", s->workers);
    json_put_count(o, "params", s->params);
    json_put_count(o, "tokens", s->tokens);
    json_put_count(o, "steps", s->steps);
    json_put_count(o, "rounds", s->rounds);
    json_object_set_new(o, "final_val_loss", isfinite(s->final_val_loss) ? json_real(s->final_val_loss) : json_null());
    if (isfinite(s->final_val_loss)) json_object_set_new(o, "val_by_one_worker", json_boolean(s->val_by_one));
    json_put_count(o, "val_tokens", s->val_tokens);
    json_put_real(o, "wall_s", s->wall_s);
    json_put_count(o, "bytes_up", s->bytes_up);
    json_put_count(o, "bytes_down", s->bytes_down);
    json_put_count(o, "other_bytes_up", s->other_up);
    json_put_count(o, "other_bytes_down", s->other_down);
    json_put_count(o, "ddp_bytes", (uint64_t)ddp_bytes(s));
    json_put_real(o, "utilization", s->wall_s > 0 && s->workers ? s->compute_s / s->wall_s / s->workers : 0);
    json_put_real(o, "tokens_per_s", s->wall_s > 0 ? (double)s->tokens / s->wall_s : 0);
    json_put_text(o, "theta_hash", hash);
    json_put_count(o, "restarts", s->restarts);
    snprintf(path, sizeof path, "%s/summary.json", run_dir);
    enum status status = json_file_write(path, o, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(o);
    return status;
}
