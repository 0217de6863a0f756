#include "cli/ledger/metrics_cut.h"

#include <jansson.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/os/fileio.h"
#include "common/os/json_file.h"

enum { DIGITS = 13, LINE_MAX_BYTES = 1 << 20 };

struct cut {
    const struct history *h;
    struct file_out out;
    bool marked; /* the new line is written */
};

static enum status put(struct cut *c, const char *line, size_t size, struct err *err)
{
    TRY(file_out_put(&c->out, line, size, err));
    return file_out_put(&c->out, "\n", 1, err);
}

static enum status put_object(struct cut *c, json_t *o, struct err *err)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for a line of metrics.jsonl");
    enum status status = put(c, text, strlen(text), err);
    free(text);
    return status;
}

/* The line that says where the old history ended, before the first line that it changed. */
static enum status mark(struct cut *c, struct err *err)
{
    const struct history *h = c->h;
    const char *worker = h->request.exclude;
    if (c->marked) return STATUS_OK;
    c->marked = true;
    json_t *o = json_object();
    json_put_real(o, "time", clock_epoch_s());
    json_put_text(o, "event", worker ? "exclude" : "rollback");
    if (worker) json_put_text(o, "worker", worker);
    json_put_count(o, "round", h->kept);
    json_put_count(o, "before", h->before);
    json_put_count(o, "step", h->kept_steps);
    json_put_count(o, "tokens", h->kept_tokens);
    enum status status = put_object(c, o, err);
    json_decref(o);
    return status;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static bool is_one_of(const char *text, const char *const *list)
{
    while (*list && strcmp(text, *list) != 0) list++;
    return *list != NULL;
}

/* What the new history says about a round that was merged again; NULL: it does not have it. */
static const struct history_round *round_again(const struct history *h, uint64_t round)
{
    for (size_t i = 0; i < h->n_again; i++)
        if (h->again[i].round == round) return &h->again[i];
    return NULL;
}

/* Gives a round line the numbers of the new history. What only the coordinator of that time could measure of the
 * merged deltas goes. */
static void renew(json_t *o, const struct history_round *again)
{
    static const char *const gone[] = {
        "val_loss", "val_by_one_worker", "eval_s",       "norm_ratio", "norm_worker", "rho",
        "gain",     "agreement",         "noise_tokens", "staleness",  "loss",        NULL};
    for (const char *const *key = gone; *key; key++) json_object_del(o, *key);
    json_put_real(o, "loss", again->loss);
    json_put_count(o, "tokens", again->tokens);
    json_put_count(o, "version", again->version);
    json_put_count(o, "delivered", again->delivered);
}

/* Whether the line belongs to rounds behind the kept ones. */
static bool is_behind(const struct history *h, const json_t *o, const char *event)
{
    static const char *const of_rounds[] = {"step", "round", "eval", "update", "checkpoint", "done", "change", NULL};
    if (!is_one_of(event, of_rounds)) return false;
    bool by_version = !strcmp(event, "update") && !h->async; /* its round may be the one before */
    const json_t *number = json_object_get(o, by_version ? "version" : "round");
    return json_is_integer(number) && (uint64_t)json_integer_value(number) > h->kept;
}

static enum status take_line(struct cut *c, const char *line, size_t size, struct err *err)
{
    const struct history *h = c->h;
    json_t *o = size <= LINE_MAX_BYTES ? json_loadb(line, size, 0, NULL) : NULL;
    const char *event = text_of(o, "event");
    if (!o || !is_behind(h, o, event)) {
        json_decref(o);
        return put(c, line, size, err); /* a damaged line, too */
    }
    enum status status = mark(c, err);
    const char *worker = h->request.exclude;
    if (status == STATUS_OK && worker && !strcmp(event, "step") && strcmp(text_of(o, "worker"), worker) != 0)
        status = put(c, line, size, err);
    if (status == STATUS_OK && worker && !strcmp(event, "change")) status = put(c, line, size, err);
    if (status == STATUS_OK && worker && !strcmp(event, "round")) {
        const json_t *number = json_object_get(o, "round");
        const struct history_round *again = round_again(h, (uint64_t)json_integer_value(number));
        if (again) {
            renew(o, again);
            status = put_object(c, o, err);
        }
    }
    json_decref(o);
    return status;
}

enum status metrics_cut(const char *from, const char *to, const struct history *h, struct err *err)
{
    struct cut c = {.h = h, .out = {.fd = -1}};
    struct file_map map = {0};
    bool any = file_exists(from);
    if (any) TRY(file_map_open(&map, from, err));
    enum status status = file_out_open(&c.out, to, err);
    const char *at = (const char *)map.data, *end = at + map.size;
    while (status == STATUS_OK && any && at < end) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        if (!next) break; /* a torn line */
        status = take_line(&c, at, (size_t)(next - at), err);
        at = next + 1;
    }
    if (status == STATUS_OK) status = mark(&c, err);
    if (status == STATUS_OK) status = file_out_commit(&c.out, err);
    if (status != STATUS_OK) file_out_abort(&c.out);
    if (any) file_map_close(&map);
    return status;
}
