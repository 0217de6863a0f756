/* The settings of a run that continues. The journal holds those that belong to the run (config_key_of_run), from its
 * RUN records; the command line and CONFIG only have to agree with them.
 *
 * - CONFIG may hold the settings of any earlier time of the run: after a change the first command still continues it.
 * - A larger train.max_steps in CONFIG makes the run longer, as with --change.
 * - --change writes a RUN record with the new value. Everything before it stays as it was, so a replay gives the same
 *   bits. The record makes the run longer, or changes a rate, from the next round on.
 * - Until a worker has joined, CONFIG replaces the settings. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config_resolve.h"
#include "coordinator/engine/engine_impl.h"

enum { DIFF_MAX = 300 };

enum status engine_settings_text(struct engine *e, struct err *err)
{
    e->config_hash = config_run_hash(&e->config);
    if (config_shared_text(&e->config, e->config_text, sizeof e->config_text)) return STATUS_OK;
    return err_set(err, STATUS_LIMIT, "the configuration is too long to send to workers: shorten its paths and names");
}

enum status engine_settings_write(struct engine *e, struct err *err)
{
    struct record_run run = {.config_hash = config_run_hash(&e->config), .config_text = e->config_text};
    TRY(engine_settings_text(e, err));
    run.config_size = strlen(e->config_text);
    memcpy(run.run_id, e->ledger.run_id, sizeof run.run_id);
    TRY(ledger_write(&e->ledger, RECORD_RUN, &run, NULL, err));
    return journal_sync(&e->ledger.journal, err);
}

enum status engine_settings_check(const struct engine *e, struct err *err)
{
    char names[DIFF_MAX];
    if (!config_run_diff(&e->wanted, &e->config, true, names, sizeof names)) return STATUS_OK;
    return err_set(err, STATUS_INVALID,
                   "the run folder belongs to a run with other settings: %s: leave CONFIG and these settings out to "
                   "continue it, or choose another --dir and start from this run's checkpoint (model.init_from)",
                   names);
}

/* Replaces the settings of a run that no worker has joined yet, for example after a try with a model that was too
 * large. The run has no state to lose yet. */
static enum status replace(struct engine *e, struct err *err)
{
    char names[DIFF_MAX];
    if (e->n_changes)
        return err_set(err, STATUS_INVALID,
                       "--change: no worker has joined the run yet: give the new value in CONFIG, or as --%s",
                       e->changes[0]);
    if (!config_run_diff(&e->wanted, &e->config, false, names, sizeof names)) return STATUS_OK;
    log_info("replaced the settings of the run in this folder, which no worker had joined: %s", names);
    e->config = e->wanted;
    TRY(engine_check_sources(e, err));
    return engine_settings_write(e, err);
}

static bool is_earlier(const struct engine *e, uint64_t hash)
{
    for (uint32_t i = 0; i < e->ledger.n_earlier; i++)
        if (e->ledger.earlier[i] == hash) return true;
    return false;
}

/* The settings that the caller gives differ from those of the run now, in keys that --change can change. */
static enum status agree(const struct engine *e, struct err *err)
{
    char names[DIFF_MAX];
    if (!config_run_diff(&e->wanted, &e->config, false, names, sizeof names)) return STATUS_OK;
    if (is_earlier(e, config_run_hash(&e->wanted))) {
        log_info("the run keeps the values that --change gave it: %s", names);
        return STATUS_OK;
    }
    if (e->wanted.train.max_steps < e->config.train.max_steps)
        return err_set(
            err, STATUS_INVALID,
            "train.max_steps: %u is below the run's %u: it can only grow; leave it out to continue as before",
            e->wanted.train.max_steps, e->config.train.max_steps);
    return err_set(err, STATUS_INVALID,
                   "the run has other values: %s: write --change KEY=VALUE to change one from here on, or leave CONFIG "
                   "and these settings out to continue as before",
                   names);
}

/* --- --change ----------------------------------------------------------------------------------------------------- */

static bool differs(const struct config *a, const struct config *b, int key)
{
    char x[CONFIG_VALUE_MAX], y[CONFIG_VALUE_MAX];
    return strcmp(config_value_text(a, key, x), config_value_text(b, key, y)) != 0;
}

static enum status check_change(const struct engine *e, const struct config *next, int key, struct err *err)
{
    const struct config_key *k = &config_keys[key];
    char value[CONFIG_VALUE_MAX];
    if (k->local || k->change == CONFIG_AT_START)
        return err_set(err, STATUS_INVALID, "--change: %s.%s may have another value at any start: write --%s.%s=%s",
                       k->section, k->key, k->section, k->key, config_value_text(next, key, value));
    if (k->change == CONFIG_FIXED)
        return err_set(
            err, STATUS_INVALID,
            "--change: %s.%s stays as it is for the whole run: start a new run from a checkpoint of this one "
            "(model.init_from)",
            k->section, k->key);
    if (k->change == CONFIG_RAISE && next->train.max_steps < e->config.train.max_steps)
        return err_set(err, STATUS_INVALID, "--change: %s.%s: %u is below the run's %u: it can only rise", k->section,
                       k->key, next->train.max_steps, e->config.train.max_steps);
    if (e->config.train.method == METHOD_DDP && !strcmp(k->section, "outer"))
        return err_set(err, STATUS_INVALID, "--change: %s.%s follows inner.learning_rate with ddp: change that",
                       k->section, k->key);
    return STATUS_OK;
}

/* Checks the new settings as a whole, as at the first start. The devices are the workers' own. */
static enum status check_all(const struct config *next, const char *what, struct err *err)
{
    struct config *copy = mem_alloc(1, sizeof *copy);
    struct config_sources sources = {0};
    if (!copy) return err_set(err, STATUS_NOMEM, "no memory for the configuration");
    *copy = *next;
    copy->train.ranks = copy->train.threads = 1;
    snprintf(copy->train.devices, sizeof copy->train.devices, "cpu");
    for (int i = 0; i < config_keys_count; i++)
        if (!config_keys[i].local) sources.of[i] = CONFIG_COORDINATOR;
    enum status status = config_resolve(copy, &sources, err);
    mem_free(copy);
    return status == STATUS_OK ? status : err_prefix(err, "%s", what);
}

static enum status set_all(const struct engine *e, struct config *next, struct err *err)
{
    struct config_sources sources = {0};
    *next = e->config;
    for (size_t i = 0; i < e->n_changes; i++) {
        struct err why = {0};
        if (config_set(next, &sources, e->changes[i], CONFIG_FLAG, &why) != STATUS_OK)
            return err_set(err, STATUS_INVALID, "--change %.100s: %s", e->changes[i], why.msg);
    }
    for (int i = 0; i < config_keys_count; i++)
        if (differs(next, &e->config, i)) TRY(check_change(e, next, i, err));
    if (next->train.method == METHOD_DDP) next->outer.learning_rate = next->inner.learning_rate;
    return check_all(next, "--change", err);
}

/* Says that the schedule follows the new length. */
static void log_schedule(const struct config *before, const struct config *next)
{
    char value[CONFIG_VALUE_MAX];
    if (next->train.max_steps == before->train.max_steps) return;
    if (next->inner.schedule == SCHEDULE_CONSTANT || config_is_external(next)) return;
    log_info("train.max_steps grew from %u to %u: the %s schedule of inner.learning_rate now ends at %u",
             before->train.max_steps, next->train.max_steps, config_value_text(next, AT(inner.schedule), value),
             next->train.max_steps);
}

static void emit_change(struct engine *e, const struct config *next, int key)
{
    char from[CONFIG_VALUE_MAX], to[CONFIG_VALUE_MAX], name[128];
    snprintf(name, sizeof name, "%s.%s", config_keys[key].section, config_keys[key].key);
    struct engine_event event = {.kind = ENGINE_EVENT_CHANGE,
                                 .change = {.key = name,
                                            .from = config_value_text(&e->config, key, from),
                                            .to = config_value_text(next, key, to),
                                            .round = round_done(&e->ledger.round)}};
    engine_emit(e, &event);
}

/* Gives the run new settings, from here on. *any_p: they differ. */
static enum status adopt(struct engine *e, const struct config *next, bool *any_p, struct err *err)
{
    *any_p = false;
    for (int i = 0; i < config_keys_count; i++) {
        if (!differs(next, &e->config, i)) continue;
        emit_change(e, next, i);
        *any_p = true;
    }
    if (!*any_p) return STATUS_OK;
    log_schedule(&e->config, next);
    e->config = *next;
    return engine_settings_write(e, err);
}

static enum status change(struct engine *e, struct err *err)
{
    bool any = false;
    struct config *next = mem_alloc(1, sizeof *next);
    if (!next) return err_set(err, STATUS_NOMEM, "no memory for the configuration");
    enum status status = set_all(e, next, err);
    if (status == STATUS_OK) status = adopt(e, next, &any, err);
    if (status == STATUS_OK && !any) log_info("--change: the run has these values already");
    mem_free(next);
    return status;
}

/* The caller gives a larger train.max_steps, and otherwise the run's settings: the run gets longer. */
static enum status grow(struct engine *e, struct err *err)
{
    char names[DIFF_MAX];
    bool any;
    if (e->wanted.train.max_steps <= e->config.train.max_steps) return STATUS_OK;
    struct config *next = mem_alloc(1, sizeof *next);
    if (!next) return err_set(err, STATUS_NOMEM, "no memory for the configuration");
    *next = e->config;
    next->train.max_steps = e->wanted.train.max_steps;
    enum status status = STATUS_OK;
    if (!config_run_diff(&e->wanted, next, false, names, sizeof names)) {
        status = check_all(next, "a larger train.max_steps", err);
        if (status == STATUS_OK) status = adopt(e, next, &any, err);
    }
    mem_free(next);
    return status;
}

enum status engine_settings_settle(struct engine *e, struct err *err)
{
    if (!e->ledger.modelled) return replace(e, err);
    TRY(grow(e, err));
    TRY(agree(e, err));
    if (e->n_changes) TRY(change(e, err));
    return engine_settings_text(e, err);
}
