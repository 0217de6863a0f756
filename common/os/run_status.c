#include "common/os/run_status.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const keys[] = {
    "state",          "run",
    "run_id",         "method",
    "round",          "rounds",
    "percent",        "eta_s",
    "waiting_for",    "bottleneck",
    "train_loss",     "val_loss",
    "final_val_loss", "val_by_one_worker",
    "tokens",         "tokens_per_s",
    "steps",          "params",
    "bytes_up",       "bytes_down",
    "other_bytes_up", "other_bytes_down",
    "ddp_bytes",      "utilization",
    "wall_s",         "val_tokens",
    "theta_hash",     "restarts",
    "down",           "file_bytes",
    "staleness",      "deltas_refused",
};

json_t *run_status_new(void)
{
    json_t *o = json_object();
    if (!o) return NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) json_object_set_new(o, keys[i], json_null());
    json_object_set_new(o, "refused_for", json_object());
    json_object_set_new(o, "notes", json_array());
    json_object_set_new(o, "alerts", json_null());
    json_object_set_new(o, "alerts_total", json_null());
    json_object_set_new(o, "budget", json_null());
    json_object_set_new(o, "fragments", json_array());
    json_object_set_new(o, "workers_gone", json_null());
    json_object_set_new(o, "workers_not_listed", json_null());
    json_object_set_new(o, "workers", json_array());
    return o;
}

void run_status_set(json_t *status, const char *key, json_t *value)
{
    assert(!status || json_object_get(status, key));
    json_object_set_new(status, key, value);
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void run_status_real(json_t *status, const char *key, double value)
{
    run_status_set(status, key, real_or_null(value));
}

void run_status_budget(json_t *status, double hours, double max_hours, double gb, double max_gb)
{
    json_t *budget = json_object();
    json_object_set_new(budget, "hours", real_or_null(hours));
    json_object_set_new(budget, "max_hours", max_hours > 0 ? json_real(max_hours) : json_null());
    json_object_set_new(budget, "gb", real_or_null(gb));
    json_object_set_new(budget, "max_gb", max_gb > 0 ? json_real(max_gb) : json_null());
    run_status_set(status, "budget", budget);
}

void run_status_progress(json_t *status, json_int_t round, json_int_t rounds)
{
    run_status_set(status, "round", json_integer(round));
    if (rounds <= 0) return;
    run_status_set(status, "rounds", json_integer(rounds));
    run_status_set(status, "percent", json_real(100.0 * (double)round / (double)rounds));
}

bool run_status_is(const json_t *object, const char *state)
{
    const char *value = json_string_value(json_object_get(object, "state"));
    return value && !strcmp(value, state);
}
