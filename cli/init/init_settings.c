#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/init/init.h"
#include "common/base/log.h"
#include "common/base/minmax.h"
#include "common/base/units.h"
#include "common/config/config.h"
#include "compress/codec.h"

enum {
    H = 30,            /* inner steps of a round before the plan changes it */
    ROUNDS_FIRST = 40, /* of the first plan, which measures a round */
    ROUNDS_LEAST = 2,
    EPOCHS_MOST = 20,  /* a longer run only learns its data by heart */
    PERIODS_LEAST = 5, /* of top-k in a run */
    EVALS = 40,
    CHECKPOINTS = 20,
    STEPS_MOST = 10000000,
};

/* Of the budget: joining and evaluations take the rest. */
static const double usable = 0.95;

/* --- rows --------------------------------------------------------------------------------------------------------- */

static struct init_setting *find(struct init_settings *s, const char *section, const char *key)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (!strcmp(s->rows[i].section, section) && !strcmp(s->rows[i].key, key)) return &s->rows[i];
    return NULL;
}

/* Sets a value; a new row comes after those of its section. */
static struct init_setting *set(struct init_settings *s, const char *section, const char *key, const char *value)
{
    struct init_setting *row = find(s, section, key);
    if (!row) {
        uint32_t at = s->n;
        while (at && strcmp(s->rows[at - 1].section, section) != 0) at--;
        if (!at) at = s->n;
        assert(s->n < INIT_SETTINGS_MAX);
        memmove(&s->rows[at + 1], &s->rows[at], (s->n - at) * sizeof *s->rows);
        s->n++;
        row = &s->rows[at];
        *row = (struct init_setting){.comment = ""};
        snprintf(row->section, sizeof row->section, "%s", section);
        snprintf(row->key, sizeof row->key, "%s", key);
    }
    snprintf(row->value, sizeof row->value, "%s", value);
    return row;
}

static void put(struct init_settings *s, const char *section, const char *key, const char *comment, bool text,
                const char *fmt, ...) __attribute__((format(printf, 6, 7)));

static void put(struct init_settings *s, const char *section, const char *key, const char *comment, bool text,
                const char *fmt, ...)
{
    char value[INIT_VALUE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    struct init_setting *row = set(s, section, key, value);
    row->text = text;
    if (comment[0]) snprintf(row->comment, sizeof row->comment, "%s", comment);
}

static void set_count(struct init_settings *s, const char *section, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    (void)set(s, section, key, text);
}

/* --- before the plan ---------------------------------------------------------------------------------------------- */

static const struct shape {
    const char *preset; /* NULL: the numbers */
    int layers, heads, width, block, batch;
    const char *rate;
} shapes[] = {
    [INIT_TINY] = {NULL, 4, 4, 128, 128, 16, "1.5e-3"},
    [INIT_SMALL] = {NULL, 6, 6, 384, 256, 16, "1.0e-3"},
    [INIT_GPT2] = {"gpt2", 0, 0, 0, 1024, 8, "6.0e-4"},
    [INIT_FOLDER] = {NULL, 0, 0, 0, 0, 8, "5.0e-5"},
};

static void put_model(struct init_settings *s, const struct init_answers *a)
{
    const struct shape *m = &shapes[a->model];
    if (a->model == INIT_FOLDER) {
        put(s, "model", "init_from", "parameters and sizes of this folder", true, "%s", a->model_path);
        return;
    }
    put(s, "model", "family", "gpt2 or llama", false, "gpt2");
    if (m->preset) {
        put(s, "model", "preset", "GPT-2 small, 124 M parameters", false, "%s", m->preset);
    } else {
        put(s, "model", "n_layer", "transformer blocks", false, "%d", m->layers);
        put(s, "model", "n_head", "attention heads; divides n_embd", false, "%d", m->heads);
        put(s, "model", "n_embd", "width", false, "%d", m->width);
        put(s, "model", "block_size", "tokens of context", false, "%d", m->block);
    }
    put(s, "model", "vocab_size", "as the tokenizer of the data", false, "%llu", (unsigned long long)a->vocab_size);
}

static void put_base(struct init_settings *s, const struct init_answers *a, const char *name)
{
    const struct shape *m = &shapes[a->model];
    const char *folder = a->shards[0] ? a->shards : "data";
    put(s, "run", "name", "shown by atoll status", true, "%s", name);
    put(s, "data", "train", "token shards; each worker names its own with --data.train", true, "%s/train_*.bin",
        folder);
    put(s, "data", "val", "held-out tokens, for the validation loss", true, "%s/val_*.bin", folder);
    put(s, "data", "tokenizer", "", true, "%s", a->tokenizer);
    put_model(s, a);
    put(s, "train", "method", "how workers synchronize: docs/methods.md", false, "diloco");
    put(s, "train", "max_steps", "", false, "%d", ROUNDS_FIRST * H);
    put(s, "train", "sync_every", "H: steps of a worker between two synchronizations", false, "%d", H);
    put(s, "train", "batch_size", "sequences of a step and worker", false, "%d", m->batch);
    put(s, "train", "eval_every", "rounds", false, "%d", 1);
    put(s, "inner", "learning_rate", "peak; try others with atoll compare", false, "%s", m->rate);
    put(s, "inner", "schedule", "falls to a tenth at the end of the run", false, "cosine");
    put(s, "inner", "warmup_steps", "", false, "%d", H);
    put(s, "inner", "min_lr_fraction", "", false, "0.1");
    put(s, "codec", "up", "deltas; fewer bits cost loss: docs/codecs.md", true, "int8:256");
    put(s, "codec", "down", "updates", true, "int8:256");
    if (a->machines > 1)
        put(s, "coordinator", "listen", "open this port in the firewall", true, "tcp://0.0.0.0:%u", a->port);
    else
        put(s, "coordinator", "listen", "this machine only", true, "tcp://127.0.0.1:*");
    put(s, "coordinator", "min_workers", "the run begins with so many", false, "%u", a->workers);
    put(s, "checkpoint", "every", "rounds", false, "%d", 1);
}

/* --- the plan ----------------------------------------------------------------------------------------------------- */

/* The rows as words of a command line. */
static void words_of(const struct init_settings *s, const struct init_answers *a, struct options *o,
                     char words[INIT_SETTINGS_MAX][OPTION_WORD])
{
    o->n_settings = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        const struct init_setting *row = &s->rows[i];
        snprintf(words[i], OPTION_WORD, "--%s.%s=%s", row->section, row->key, row->value);
        o->settings[o->n_settings++] = words[i];
    }
    snprintf(words[s->n], OPTION_WORD, "--train.threads=%u", a->threads);
    o->settings[o->n_settings++] = words[s->n];
}

static void take_changes(struct init_settings *s, const struct plan_changes *changes)
{
    for (uint32_t i = 0; i < changes->n; i++) {
        char word[PLAN_CHANGE_MAX];
        snprintf(word, sizeof word, "%s", changes->words[i] + 2);
        char *dot = strchr(word, '.'), *equal = strchr(word, '=');
        assert(dot && equal && dot < equal);
        *dot = *equal = '\0';
        (void)set(s, word, dot + 1, equal + 1);
    }
}

/* Rounds within budget and data; what limits them goes to s->limit. */
static uint64_t rounds_within(struct init_settings *s, const struct init_answers *a, const struct plan *p)
{
    const struct plan_run *r = &p->run;
    const struct config *c = &p->config;
    double best = (double)STEPS_MOST / c->train.sync_every;
    double bytes = (double)(r->bytes_up + r->bytes_down) / (double)r->rounds;
    double tokens =
        (double)a->workers * c->train.sync_every * c->train.batch_size * c->train.grad_accum * c->model.block_size;
    const struct {
        double rounds;
        char text[64];
    } limits[] = {
        {a->hours > 0 ? a->hours * 3600 * usable / r->round_s : INFINITY, "the budget of time"},
        {a->gb > 0 ? a->gb * 1e9 * usable / bytes : INFINITY, "the budget of traffic"},
        {a->tokens > 0 && tokens > 0 ? EPOCHS_MOST * a->tokens / tokens : INFINITY, "20 passes over the data"},
    };
    s->limit[0] = '\0';
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (limits[i].rounds >= best) continue;
        best = limits[i].rounds;
        snprintf(s->limit, sizeof s->limit, "%s", limits[i].text);
    }
    return best < ROUNDS_LEAST ? ROUNDS_LEAST : (uint64_t)best;
}

/* Top-k sends a coordinate once in `period` rounds: a run of a few periods learns more with one bit for each
 * (configs/README.md). */
static bool is_too_sparse(const struct plan *p, uint64_t rounds)
{
    uint32_t period = codec_spec_period(p->config.codec.up);
    return period && rounds < (uint64_t)PERIODS_LEAST * period;
}

static void set_length(struct init_settings *s, const struct init_answers *a, const struct plan *p)
{
    uint64_t rounds = rounds_within(s, a, p), h = p->config.train.sync_every;
    const struct plan_run *r = &p->run;
    s->max_steps = rounds * h;
    s->seconds = (double)rounds * r->round_s;
    s->bytes = (double)rounds * (double)(r->bytes_up + r->bytes_down) / (double)r->rounds;
    set_count(s, "train", "max_steps", s->max_steps);
    set_count(s, "train", "eval_every", max_u64(1, rounds / EVALS));
    set_count(s, "checkpoint", "every", max_u64(1, rounds / CHECKPOINTS));
    set_count(s, "inner", "warmup_steps", min_u64(100, s->max_steps / 10));
}

/* A later release enforces the budget, if it has keys for it. */
static void put_budget(struct init_settings *s, const struct init_answers *a)
{
    static struct config config; /* large */
    static struct config_sources sources;
    config_defaults(&config, &sources);
    if (a->hours > 0 && config_set(&config, &sources, "run.max_hours=1", CONFIG_FLAG, NULL) == STATUS_OK)
        put(s, "run", "max_hours", "the run stops after this time, and can be continued", false, "%.3g", a->hours);
    if (a->gb > 0 && config_set(&config, &sources, "run.max_gb=1", CONFIG_FLAG, NULL) == STATUS_OK)
        put(s, "run", "max_gb", "or after this traffic", false, "%g", a->gb);
}

static void comment_length(struct init_settings *s)
{
    struct init_setting *row = find(s, "train", "max_steps");
    snprintf(row->comment, sizeof row->comment, "of a worker: %s and %s of traffic by atoll plan%s%s",
             units_duration(s->seconds).text, units_bytes(s->bytes).text, s->limit[0] ? "; limit: " : "", s->limit);
}

enum status init_choose(struct init_settings *s, const struct init_answers *a, const char *name,
                        struct progress *progress, struct err *err)
{
    static struct plan plan; /* large, as below */
    static struct plan_choice choice;
    static struct options o;
    static char words[INIT_SETTINGS_MAX][OPTION_WORD];
    static const struct plan_changes none;
    struct plan_request request = {.options = &o, .workers = a->workers, .links = a->links, .progress = progress};
    *s = (struct init_settings){.n = 0};
    put_base(s, a, name);
    words_of(s, a, &o, words);
    log_set_level(LOG_ERROR); /* what the plan tries is no news */
    progress_show(progress, "measuring an inner step");
    TRY(plan_step(&request.step_s, &request, err));
    progress_show(progress, "planning");
    TRY(plan_make(&plan, &request, &none, NULL, err));
    if (plan.memory.short_of[0])
        return err_set(err, STATUS_INVALID, "the model does not fit: %.400s", plan.memory.short_of);
    set_length(s, a, &plan);
    words_of(s, a, &o, words);
    TRY(plan_make(&plan, &request, &none, NULL, err)); /* with the length, on which the choice depends */
    TRY(plan_choose(&choice, &plan, &request, err));
    take_changes(s, &choice.changes);
    if (choice.changes.n) plan = choice.recommended;
    if (is_too_sparse(&plan, rounds_within(s, a, &plan))) {
        put(s, "train", "method", "", false, "diloco");
        put(s, "codec", "up", "", true, "1bit:256");
        put(s, "codec", "down", "", true, "2bit:256+huff");
        words_of(s, a, &o, words);
        TRY(plan_make(&plan, &request, &none, NULL, err));
        snprintf(choice.reason, sizeof choice.reason,
                 "the link is slow, and the run is too short for top-k, which sends a coordinate once in many rounds: "
                 "one bit for each instead. `atoll compare` measures what it costs");
    }
    set_length(s, a, &plan);
    snprintf(s->reason, sizeof s->reason, "%s", choice.reason);
    log_set_level(LOG_INFO);
    put_budget(s, a);
    comment_length(s);
    return STATUS_OK;
}
