#include "common/config/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/text.h"
#include "common/config/codec_choice.h"
#include "common/config/config_keys.h"

void config_defaults(struct config *config, struct config_sources *sources)
{
    memset(config, 0, sizeof *config);
    memset(sources, 0, sizeof *sources);
    for (int i = 0; i < config_keys_count; i++)
        if (config_value_set(config, i, config_keys[i].preset, NULL) != STATUS_OK)
            log_error("the default of %s.%s is outside its range", config_keys[i].section, config_keys[i].key);
}

/* True for a key of an earlier release, *status_p: OK if its value makes no difference. */
static bool is_removed(const char *name, enum status *status_p, struct err *err)
{
    size_t len = strcspn(name, "=");
    const char *dot = memchr(name, '.', len);
    if (!dot || name[len] != '=') return false;
    const struct config_removed *removed =
        config_removed_find(name, (size_t)(dot - name), dot + 1, len - (size_t)(dot + 1 - name));
    if (!removed) return false;
    *status_p = config_removed_check(removed, name + len + 1, err);
    return true;
}

/* "--train.max_steps=10": returns the index of train.max_steps, *value_p = "10". -1: unknown key or no value, err is
 * set. */
static int split_assignment(const char *assignment, const char **value_p, struct err *err)
{
    const char *name = assignment + (strncmp(assignment, "--", 2) ? 0 : 2);
    size_t len = strcspn(name, "=");
    const char *dot = memchr(name, '.', len);
    size_t section_len = dot ? (size_t)(dot - name) : 0;
    const char *key = dot ? dot + 1 : name;
    int index = config_key_find(name, section_len, key, len - (size_t)(key - name));
    if (index < 0) {
        char section[TEXT_SHOWN], text[TEXT_SHOWN];
        text_shown(name, section_len, section);
        text_shown(key, len - (size_t)(key - name), text);
        int nearest = config_key_nearest(section, text);
        err_set(err, STATUS_INVALID, "unknown option --%s%s%s; the nearest is --%s.%s", section, dot ? "." : "", text,
                config_keys[nearest].section, config_keys[nearest].key);
        return -1;
    }
    if (name[len] != '=') {
        err_set(err, STATUS_INVALID, "--%.*s needs a value: write --%.*s=VALUE", (int)len, name, (int)len, name);
        return -1;
    }
    *value_p = name + len + 1;
    return index;
}

enum status config_set(struct config *config, struct config_sources *sources, const char *assignment,
                       enum config_source source, struct err *err)
{
    const char *value = NULL;
    enum status status;
    if (is_removed(assignment + (strncmp(assignment, "--", 2) ? 0 : 2), &status, err))
        return status == STATUS_OK ? status : err_prefix(err, "command line");
    int index = split_assignment(assignment, &value, err);
    if (index < 0) return STATUS_INVALID;
    status = config_value_set(config, index, value, err);
    if (status != STATUS_OK) {
        err_prefix(err, "command line");
        return status;
    }
    sources->of[index] = (uint8_t)source;
    return STATUS_OK;
}

/* The source of a value; "" for a default or derived value. */
static const char *place_of(const struct config_sources *sources, int index, char out[256])
{
    char name[128];
    out[0] = 0;
    switch ((enum config_source)sources->of[index]) {
    case CONFIG_DEFAULT:
    case CONFIG_PRESET: break;
    case CONFIG_FILE: snprintf(out, 256, "%.200s:%u", sources->file, sources->line[index]); break;
    case CONFIG_COORDINATOR: snprintf(out, 256, "the coordinator's configuration"); break;
    case CONFIG_ENV: snprintf(out, 256, "environment, %s", config_env_name(index, name)); break;
    case CONFIG_FLAG: snprintf(out, 256, "command line"); break;
    case CONFIG_RUN: snprintf(out, 256, "the run"); break;
    }
    return out;
}

void config_prefix_sources(const struct config_sources *sources, const int *keys, struct err *err)
{
    char places[512] = "", place[256], other[256];
    size_t n = 0;
    for (int i = 0; keys[i] >= 0; i++) {
        assert(keys[i] < config_keys_count);
        size_t len = strlen(place_of(sources, keys[i], place));
        bool skip = !len || n + len + 5 >= sizeof places;
        for (int k = 0; k < i && !skip; k++) skip = !strcmp(place_of(sources, keys[k], other), place);
        if (!skip) n += (size_t)snprintf(places + n, sizeof places - n, "%s%s", n ? " and " : "", place);
    }
    if (n) err_prefix(err, "%s", places);
}

/* "key: value" without indentation or newline; text values are quoted, because YAML could read them as another type. */
static size_t key_line(const struct config *config, int index, char *out, size_t cap)
{
    char value[CONFIG_VALUE_MAX];
    struct writer w = writer_of(out, cap);
    config_value_text(config, index, value);
    put_bytes(&w, config_keys[index].key, strlen(config_keys[index].key));
    put_bytes(&w, ": ", 2);
    if (config_keys[index].type == CONFIG_TYPE_TEXT) {
        put_u8(&w, '"');
        for (const char *p = value; *p; p++) {
            if (*p == '"' || *p == '\\') put_u8(&w, '\\');
            put_u8(&w, (uint8_t)*p);
        }
        put_u8(&w, '"');
    } else {
        put_bytes(&w, value, strlen(value));
    }
    size_t n = w.pos;
    put_u8(&w, 0);
    assert(!w.bad); /* LINE_MAX_BYTES holds every key */
    return n;
}

enum { LINE_MAX_BYTES = 2 * CONFIG_VALUE_MAX + 64 };

static bool first_of_section(int index)
{
    return index == 0 || strcmp(config_keys[index].section, config_keys[index - 1].section) != 0;
}

/* The reason for a derived value. */
static void derived_text(const struct config *config, int index, char out[96])
{
    const char *section = config_keys[index].section;
    bool ddp = config->train.method == METHOD_DDP;
    size_t at = config_keys[index].offset;
    char optimizer[CONFIG_VALUE_MAX];
    config_value_text(config, config_key_at(offsetof(struct config, outer.optimizer)), optimizer);
    if (!strcmp(section, "model") && config->model.preset[0])
        snprintf(out, 96, "preset %s", config->model.preset);
    else if (!strcmp(section, "model"))
        snprintf(out, 96, "follows from the other sizes");
    else if (at == offsetof(struct config, train.ranks))
        snprintf(out, 96, "follows train.devices");
    else if (at == offsetof(struct config, train.sync_every) && !ddp)
        snprintf(out, 96, "no more than train.max_steps");
    else if (at == offsetof(struct config, inner.scaling))
        snprintf(out, 96, "coordinator.min_workers at the first start of the run");
    else if (at == offsetof(struct config, outer.learning_rate) && ddp)
        snprintf(out, 96, "follows inner.learning_rate");
    else if (at == offsetof(struct config, outer.learning_rate) || at == offsetof(struct config, outer.momentum))
        snprintf(out, 96, "follows optimizer %.60s", optimizer);
    else if (at == offsetof(struct config, outer.state))
        snprintf(out, 96, "follows method and codec.down");
    else if (!strcmp(section, "merge"))
        snprintf(out, 96, "follows codec.up");
    else
        snprintf(out, 96, "follows method %s", config_method_name(config->train.method));
}

static void source_text(const struct config *config, int index, uint8_t source, char out[96])
{
    static const char *const names[] = {
        [CONFIG_DEFAULT] = "default", [CONFIG_FILE] = "file", [CONFIG_COORDINATOR] = "coordinator",
        [CONFIG_ENV] = "environment", [CONFIG_FLAG] = "flag", [CONFIG_RUN] = "changed in this run"};
    if (source == CONFIG_PRESET)
        derived_text(config, index, out);
    else
        snprintf(out, 96, "%s", source <= CONFIG_RUN ? names[source] : "?");
}

void config_print(const struct config *config, const struct config_sources *sources, FILE *out)
{
    for (int i = 0; i < config_keys_count; i++) {
        char line[LINE_MAX_BYTES], source[96];
        if (first_of_section(i)) fprintf(out, "%s:\n", config_keys[i].section);
        key_line(config, i, line, sizeof line);
        source_text(config, i, sources->of[i], source);
        fprintf(out, "  %-42s # %s\n", line, source);
    }
}

static const char *mark_of(const struct config_key *k)
{
    if (k->local) return "(local) ";
    return k->change == CONFIG_AT_START ? "(start) " : k->change == CONFIG_FIXED ? "" : "(change) ";
}

void config_help(FILE *out)
{
    fprintf(out,
            "Set a key with --section.key=VALUE, ATOLL_SECTION_KEY=VALUE, or in the configuration file; the first\n"
            "of these wins. (local) keys belong to one machine, the others come from the coordinator. A run that\n"
            "continues takes new values of (start) and coordinator keys, and those of (change) keys with --change.\n");
    for (int i = 0; i < config_keys_count; i++) {
        const struct config_key *k = &config_keys[i];
        char range[160], name[64], preset[64];
        if (first_of_section(i)) fprintf(out, "\n%s\n", k->section);
        snprintf(name, sizeof name, "%s.%s", k->section, k->key);
        snprintf(preset, sizeof preset, k->type == CONFIG_TYPE_TEXT ? "\"%s\"" : "%s", k->preset);
        fprintf(out, "  %-26s %-24s %s%s\n", name, preset, mark_of(k), k->help);
        if (k->type != CONFIG_TYPE_TEXT)
            fprintf(out, "  %-26s %-24s %s%s%s\n", "", "", config_value_range(i, range, sizeof range),
                    k->unit && k->unit[0] ? " " : "", k->unit ? k->unit : "");
    }
}

size_t config_shared_text(const struct config *config, char *out, size_t cap)
{
    struct writer w = writer_of(out, cap);
    const char *section = "";
    for (int i = 0; i < config_keys_count; i++) {
        char line[LINE_MAX_BYTES];
        if (config_keys[i].local) continue;
        if (strcmp(section, config_keys[i].section)) {
            section = config_keys[i].section;
            put_bytes(&w, section, strlen(section));
            put_bytes(&w, ":\n", 2);
        }
        put_bytes(&w, "  ", 2);
        put_bytes(&w, line, key_line(config, i, line, sizeof line));
        put_bytes(&w, "\n", 1);
    }
    size_t n = w.pos;
    put_u8(&w, 0);
    return w.bad ? 0 : n;
}

uint64_t config_run_hash(const struct config *config)
{
    uint64_t acc = 0;
    for (int i = 0; i < config_keys_count; i++) {
        char line[LINE_MAX_BYTES];
        if (!config_key_of_run(i)) continue;
        acc = hash_mix(acc, hash64(config_keys[i].section, strlen(config_keys[i].section)));
        acc = hash_mix(acc, hash64(line, key_line(config, i, line, sizeof line)));
    }
    return acc;
}

void config_take_run(struct config *config, const struct config *from)
{
    for (int i = 0; i < config_keys_count; i++) {
        const struct config_key *k = &config_keys[i];
        if (config_key_of_run(i)) memcpy((char *)config + k->offset, (const char *)from + k->offset, k->size);
    }
}

enum status config_take_changes(struct config *config, const char *text, char *changed_p, size_t cap, struct err *err)
{
    struct config *now = mem_alloc(1, sizeof *now);
    struct config_sources sources;
    size_t n = 0;
    changed_p[0] = '\0';
    if (!now) return err_set(err, STATUS_NOMEM, "no memory for the run's settings");
    config_defaults(now, &sources);
    enum status status =
        config_parse(now, &sources, text, strlen(text), "settings of the run", CONFIG_COORDINATOR, err);
    for (int i = 0; i < config_keys_count && status == STATUS_OK; i++) {
        const struct config_key *k = &config_keys[i];
        char before[CONFIG_VALUE_MAX], after[CONFIG_VALUE_MAX];
        if (k->local || k->change == CONFIG_FIXED) continue;
        if (!strcmp(config_value_text(config, i, before), config_value_text(now, i, after))) continue;
        memcpy((char *)config + k->offset, (const char *)now + k->offset, k->size);
        if (n < cap)
            n += (size_t)snprintf(changed_p + n, cap - n, "%s%s.%s = %s", n ? ", " : "", k->section, k->key, after);
    }
    mem_free(now);
    return status;
}

int config_run_diff(const struct config *here, const struct config *run, bool fixed, char *out, size_t cap)
{
    static const char more[] = ", 100 more";
    int differing = 0, left = 0;
    size_t n = 0;
    if (cap) out[0] = 0;
    for (int i = 0; i < config_keys_count; i++) {
        char a[CONFIG_VALUE_MAX], b[CONFIG_VALUE_MAX], item[2 * CONFIG_VALUE_MAX + 80];
        if (!config_key_of_run(i) || (fixed && config_keys[i].change != CONFIG_FIXED)) continue;
        if (!strcmp(config_value_text(here, i, a), config_value_text(run, i, b))) continue;
        size_t size =
            (size_t)snprintf(item, sizeof item, "%s%s.%s (%s here, %s in the run)", differing ? ", " : "",
                             config_keys[i].section, config_keys[i].key, a[0] ? a : "\"\"", b[0] ? b : "\"\"");
        bool fits = !differing || (!left && n + size + sizeof more <= cap);
        if (fits && n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s", item);
        else
            left++;
        differing++;
    }
    if (left && n < cap) snprintf(out + n, cap - n, ", %d more", left);
    return differing;
}

bool config_is_external(const struct config *config)
{
    return !strcmp(config->model.family, "external");
}

bool config_steps_differ(const struct config *config)
{
    if (config->train.dynamic_steps == CHOICE_AUTO) return config->train.method == METHOD_ASYNC;
    return config->train.dynamic_steps == CHOICE_ON;
}

bool config_syncs_updates(const struct config *config)
{
    /* An fsync would cost more than a round of one step. */
    return config->train.method != METHOD_DDP && config->train.sync_every > 1;
}

uint32_t config_eval_every(const struct config *config, bool *steps_p)
{
    char *end;
    const char *text = config->train.eval_every;
    unsigned long long every = strtoull(text, &end, 10);
    *steps_p = !strcmp(end, " steps");
    bool is_number = *text >= '0' && *text <= '9' && (!*end || *steps_p) && every <= UINT32_MAX;
    return is_number ? (uint32_t)every : 0;
}

bool config_saves_auto(const struct config *config)
{
    return !strcmp(config->checkpoint.worker_every, "auto");
}

uint32_t config_worker_every(const struct config *config)
{
    char *end;
    const char *text = config->checkpoint.worker_every;
    unsigned long long every = strtoull(text, &end, 10);
    bool is_number = *text >= '0' && *text <= '9' && !*end && every <= UINT32_MAX;
    return is_number ? (uint32_t)every : config_saves_auto(config) ? 1 : UINT32_MAX;
}

uint64_t config_save_every(const struct config *config)
{
    enum { DDP_SAVE_ROUNDS = 50 }; /* a round of ddp is one step */
    uint64_t every = config_worker_every(config);
    if (config->train.method != METHOD_DDP) return every;
    /* Without a residual a step of ddp depends on the parameters only, which the log restores. */
    return !codec_spec_lossless(config->codec.up) ? every * DDP_SAVE_ROUNDS : 0;
}

const char *config_method_name(enum train_method method)
{
    switch (method) {
    case METHOD_DDP: return "ddp";
    case METHOD_LOCAL_SGD: return "local-sgd";
    case METHOD_DILOCO: return "diloco";
    case METHOD_STREAMING: return "streaming";
    case METHOD_ASYNC: return "async";
    }
    return "?";
}

/* Plain averaging (sgd, lr <= 1) stays within the workers' parameters; other outer steps can overshoot. */
static bool outer_overshoots(const struct config *c)
{
    if (c->train.method == METHOD_DDP) return false;
    return c->outer.optimizer != OPTIMIZER_SGD || c->outer.learning_rate > 1;
}

const char *config_divergence_advice(const struct config *config)
{
    static const char *const texts[2][2] = {
        {"lower inner.learning_rate", "lower inner.learning_rate or set inner.grad_clip"},
        {"lower inner.learning_rate or outer.learning_rate",
         "lower inner.learning_rate or outer.learning_rate, or set inner.grad_clip"}};
    if (config_is_external(config))
        return outer_overshoots(config) ? "lower the learning rate of the workers' programs or outer.learning_rate"
                                        : "lower the learning rate of the workers' programs";
    return texts[outer_overshoots(config)][config->inner.grad_clip == 0];
}
