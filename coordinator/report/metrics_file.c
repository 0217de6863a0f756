#include "coordinator/report/metrics_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "common/os/json_file.h"

enum { TAIL_BYTES = 1 << 16, LINE_BYTES = 4096, DIGITS = 13 };

/* Removes an incomplete last line, which a crash or a full disk left. A line that the disk cannot read stays. */
static void drop_torn_line(FILE *file)
{
    if (fseek(file, 0, SEEK_END)) return;
    long end = ftell(file), keep = end;
    int byte = 0;
    while (keep > 0 && !fseek(file, keep - 1, SEEK_SET) && (byte = fgetc(file)) != '\n' && byte != EOF) keep--;
    if (byte == EOF) {
        log_warn("cannot read the last line of metrics.jsonl: %s: the next lines follow it", strerror(errno));
        clearerr(file);
    } else if (keep < end && ftruncate(fileno(file), keep))
        log_warn("cannot remove the incomplete last line of metrics.jsonl: %s", strerror(errno));
}

/* The last round in the file; 0: none. Reads from the end, because step lines make the file long. */
static uint64_t last_round(FILE *file)
{
    static const char mark[] = "\"event\":\"round\"", key[] = "\"round\":";
    char data[TAIL_BYTES + LINE_BYTES + 1];
    if (fseek(file, 0, SEEK_END)) return 0;
    for (long end = ftell(file); end > 0; end -= TAIL_BYTES) {
        long from = end > TAIL_BYTES ? end - TAIL_BYTES : 0;
        if (fseek(file, from, SEEK_SET)) return 0;
        size_t size = fread(data, 1, sizeof data - 1, file); /* lines that begin before `end` are complete */
        data[size] = '\0';
        clearerr(file); /* a part that the disk cannot read has no round */
        const char *last = NULL;
        for (const char *at = data; (at = strstr(at, mark)) && at < data + (end - from); at++) last = at;
        const char *number = last ? strstr(last, key) : NULL;
        if (number) return strtoull(number + sizeof key - 1, NULL, 10);
    }
    return 0;
}

enum status metrics_file_open(struct metrics_file *m, const char *run_dir, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    *m = (struct metrics_file){0};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    int fd = -1;
    TRY(file_open_plain(path, O_RDWR | O_CREAT | O_APPEND, FILE_PUBLIC, &fd, err));
    m->file = fdopen(fd, "a+");
    if (!m->file) {
        close(fd);
        return err_set(err, STATUS_NOMEM, "no memory to open %.300s", path);
    }
    drop_torn_line(m->file);
    m->rounds_in_file = last_round(m->file);
    fseek(m->file, 0, SEEK_END);
    return STATUS_OK;
}

/* The C standard leaves open how much a failed flush wrote and whether it keeps the rest. Drop the buffer and remove
 * the torn line now, for readers of the file; if that fails, too, the next start removes it. */
static void give_up(struct metrics_file *m)
{
    m->failed = errno ? errno : EIO;
    __fpurge(m->file);
    drop_torn_line(m->file);
}

static void flush_lines(struct metrics_file *m)
{
    if (!m->failed && fflush(m->file)) give_up(m);
}

enum status metrics_file_flush(struct metrics_file *m, struct err *err)
{
    flush_lines(m);
    return m->failed ? err_set(err, status_of_errno(m->failed), "cannot write metrics.jsonl: %s", strerror(m->failed))
                     : STATUS_OK;
}

void metrics_file_close(struct metrics_file *m)
{
    if (!m->file) return;
    flush_lines(m);
    fclose(m->file);
    m->file = NULL;
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

static const char *const kind_names[] = {
    [ENGINE_EVENT_JOIN] = "join",       [ENGINE_EVENT_LEAVE] = "leave",
    [ENGINE_EVENT_EVICT] = "evict",     [ENGINE_EVENT_FAULT] = "fault",
    [ENGINE_EVENT_RESTART] = "restart", [ENGINE_EVENT_STEP] = "step",
    [ENGINE_EVENT_UPDATE] = "update",   [ENGINE_EVENT_ROUND] = "round",
    [ENGINE_EVENT_EVAL] = "eval",       [ENGINE_EVENT_CHECKPOINT] = "checkpoint",
    [ENGINE_EVENT_LINK] = "link",       [ENGINE_EVENT_WAITING] = "waiting",
    [ENGINE_EVENT_DONE] = "done",       [ENGINE_EVENT_CHANGE] = "change",
    [ENGINE_EVENT_NOTE] = "note",       [ENGINE_EVENT_ALERT] = "alert",
};

static void put_line(json_t *o, const struct engine_event_line *e)
{
    json_put_text(o, "worker", e->worker);
    json_put_text(o, "text", e->text);
}

static void put_restart(json_t *o, const struct engine_event_restart *e)
{
    json_put_text(o, "text", e->text);
    json_put_count(o, "round", e->round);
    if (e->modelled) json_put_count(o, "rounds", e->rounds);
}

static void put_change(json_t *o, const struct engine_event_change *e)
{
    json_put_count(o, "round", e->round);
    json_put_text(o, "key", e->key);
    json_put_text(o, "from", e->from);
    json_put_text(o, "to", e->to);
}

static void put_step(json_t *o, const struct engine_event_step *e)
{
    json_put_text(o, "worker", e->worker);
    json_put_count(o, "step", e->step);
    json_put_count(o, "round", e->round);
    json_put_count(o, "tokens", e->tokens);
    json_put_real(o, "loss", e->loss);
    json_put_real(o, "lr", e->lr);
    json_put_real(o, "grad_norm", e->grad_norm);
    if (e->skipped) json_object_set_new(o, "skipped", json_true());
    if (e->timed) {
        json_put_real(o, "tokens_per_s", e->tokens_per_s);
        json_put_real(o, "tflops", e->tflops);
    }
    if (e->counted) {
        json_put_count(o, "bytes_up", e->bytes_up);
        json_put_count(o, "bytes_down", e->bytes_down);
    }
    if (e->measured) {
        json_put_real(o, "compute_s", e->compute_s);
        json_put_real(o, "compress_s", e->compress_s);
        json_put_real(o, "send_s", e->send_s);
        json_put_real(o, "wait_s", e->wait_s);
        json_put_real(o, "apply_s", e->apply_s);
    }
}

static void put_update(json_t *o, const struct engine_event_update *e)
{
    json_put_count(o, "round", e->round);
    json_put_count(o, "version", e->version);
    json_put_count(o, "fragment", e->fragment);
    json_put_count(o, "tokens", e->tokens);
    json_put_real(o, "lr", e->lr);
    json_put_text(o, "codec", e->codec);
    json_put_count(o, "update_bytes", e->update_bytes);
    if (e->compared) {
        json_put_count(o, "relay_bytes", e->relay_bytes);
        json_put_count(o, "union_bytes", e->union_bytes);
    }
}

static void put_round(json_t *o, const struct engine_event_round *e)
{
    json_put_count(o, "round", e->round);
    json_put_count(o, "rounds", e->rounds);
    json_put_count(o, "version", e->version);
    json_put_count(o, "tokens", e->tokens);
    json_put_real(o, "loss", e->loss);
    json_put_real(o, "val_loss", e->val_loss);
    if (e->val_by_one) json_object_set_new(o, "val_by_one_worker", json_true());
    json_put_count(o, "bytes_up", e->bytes_up);
    json_put_count(o, "bytes_down", e->bytes_down);
    json_put_count(o, "other_bytes_up", e->other_up);
    json_put_count(o, "other_bytes_down", e->other_down);
    json_put_text(o, "codec", e->codec);
    json_put_real(o, "compute_s", e->compute_s);
    json_put_real(o, "wait_s", e->wait_s);
    json_put_real(o, "round_s", e->round_s);
    json_put_real(o, "eval_s", e->eval_s);
    json_put_real(o, "link_s", e->link_s);
    json_put_real(o, "eta_s", e->eta_s);
    json_put_count(o, "workers", e->workers);
    json_put_count(o, "delivered", e->delivered);
    json_put_text(o, "slowest", e->slowest);
    json_put_real(o, "norm_ratio", e->norm_ratio);
    json_put_text(o, "norm_worker", e->norm_worker);
    if (e->stale) json_object_set_new(o, "staleness", json_counts(e->stale, e->n_stale));
    json_put_real(o, "rho", e->rho);
    json_put_real(o, "gain", e->gain);
    json_put_real(o, "agreement", e->agreement);
    json_put_real(o, "noise_tokens", e->noise_tokens);
}

static void put_eval(json_t *o, const struct engine_event_eval *e)
{
    json_put_count(o, "round", e->round);
    json_put_count(o, "version", e->version);
    json_put_count(o, "tokens", e->tokens);
    json_put_real(o, "loss", e->val_loss);
    json_put_real(o, "val_loss", e->val_loss);
    json_put_real(o, "eval_s", e->eval_s);
    if (e->disputed) json_object_set_new(o, "disputed", json_true());
    if (e->by_one) json_object_set_new(o, "val_by_one_worker", json_true());
}

static void put_alert(json_t *o, const struct engine_event_alert *e)
{
    json_put_text(o, "rule", e->rule);
    json_put_text(o, "state", e->starts ? "start" : "end");
    json_put_text(o, "worker", e->worker);
    json_put_text(o, "text", e->text);
    if (!e->starts) json_put_real(o, "for_s", e->for_s);
}

static json_t *object_of(const struct engine_event *e)
{
    json_t *o = json_object();
    double age_s = e->kind == ENGINE_EVENT_STEP ? e->step.age_s : 0;
    json_put_real(o, "time", clock_epoch_s() - age_s); /* a step: when it ended */
    json_put_text(o, "event", kind_names[e->kind]);
    switch (e->kind) {
    case ENGINE_EVENT_JOIN:
    case ENGINE_EVENT_LEAVE:
    case ENGINE_EVENT_EVICT:
    case ENGINE_EVENT_FAULT:
    case ENGINE_EVENT_LINK:
    case ENGINE_EVENT_NOTE:
    case ENGINE_EVENT_WAITING: put_line(o, &e->line); break;
    case ENGINE_EVENT_RESTART: put_restart(o, &e->restart); break;
    case ENGINE_EVENT_CHANGE: put_change(o, &e->change); break;
    case ENGINE_EVENT_STEP: put_step(o, &e->step); break;
    case ENGINE_EVENT_UPDATE: put_update(o, &e->update); break;
    case ENGINE_EVENT_ROUND: put_round(o, &e->round); break;
    case ENGINE_EVENT_EVAL: put_eval(o, &e->eval); break;
    case ENGINE_EVENT_CHECKPOINT:
        json_put_count(o, "round", e->checkpoint.round);
        json_put_count(o, "version", e->checkpoint.version);
        break;
    case ENGINE_EVENT_DONE:
        json_put_count(o, "round", e->done.round);
        json_put_count(o, "tokens", e->done.tokens);
        json_put_real(o, "val_loss", e->done.val_loss);
        break;
    case ENGINE_EVENT_ALERT: put_alert(o, &e->alert); break;
    }
    return o;
}

void metrics_file_event(struct metrics_file *m, const struct engine_event *event)
{
    assert(m->file && kind_names[event->kind]);
    if (m->failed) return;
    json_t *o = object_of(event);
    bool good = !json_dumpf(o, m->file, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) && fputc('\n', m->file) != EOF;
    if (good && event->kind != ENGINE_EVENT_STEP) good = !fflush(m->file);
    if (!good) give_up(m);
    json_decref(o);
}
