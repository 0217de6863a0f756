#include "cli/page/page_metrics.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/os/run_status.h"

/* --- lines -------------------------------------------------------------------------------------------------------- */

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void value(FILE *out, double number)
{
    if (isnan(number))
        fprintf(out, " NaN\n");
    else if (isinf(number))
        fprintf(out, " %cInf\n", number > 0 ? '+' : '-');
    else
        fprintf(out, " %.17g\n", number);
}

/* A label's value is a name that a stranger chose. */
static void label(FILE *out, const char *key, const char *text)
{
    fprintf(out, "{%s=\"", key);
    for (; *text; text++) {
        if (*text == '\\' || *text == '"') fputc('\\', out);
        if (*text == '\n')
            fputs("\\n", out);
        else
            fputc(*text, out);
    }
    fputs("\"}", out);
}

static void labelled(FILE *out, const char *name, const char *key, const char *text, double number)
{
    fputs(name, out);
    label(out, key, text);
    value(out, number);
}

/* A metric without labels; NaN: unknown. */
static void single(FILE *out, const char *name, const char *type, const char *help, double number)
{
    if (isnan(number)) return;
    head(out, name, type, help);
    fputs(name, out);
    value(out, number);
}

/* --- counters ----------------------------------------------------------------------------------------------------- */

static void write_faults(const struct page_run *run, FILE *out)
{
    static const char name[] = "atoll_faults_total";
    head(out, name, "counter", "Faults, evictions, departures and restarts of the run.");
    for (size_t i = 0; i < PAGE_FAULTS && run->from_file; i++)
        labelled(out, name, "kind", page_fault_names[i], (double)(run->kept[i] + run->totals.faults[i]));
    labelled(out, name, "kind", "restart", run->totals.restarts);
}

static void write_counters(const struct page_run *run, FILE *out)
{
    const struct page_totals *t = &run->totals;
    const char *rule;
    json_t *count;
    single(out, "atoll_rounds_total", "counter", "Finished rounds of the run.", t->rounds);
    single(out, "atoll_tokens_total", "counter", "Tokens that all workers trained on.", t->tokens);
    head(out, "atoll_bytes_total", "counter", "Bytes of the run on the coordinator's socket; up: from the workers.");
    labelled(out, "atoll_bytes_total", "direction", "up", t->bytes_up);
    labelled(out, "atoll_bytes_total", "direction", "down", t->bytes_down);
    head(out, "atoll_other_bytes_total", "counter",
         "Bytes besides the run: joining, followers, probes, status, strangers.");
    labelled(out, "atoll_other_bytes_total", "direction", "up", t->other_up);
    labelled(out, "atoll_other_bytes_total", "direction", "down", t->other_down);
    write_faults(run, out);
    if (run->refused.known)
        single(out, "atoll_deltas_refused_total", "counter", "Deltas that the coordinator refused.", run->refused.sum);
    if (json_object_size(run->alerts)) head(out, "atoll_alerts_total", "counter", "Alerts that began, by rule.");
    json_object_foreach(run->alerts, rule, count)
    {
        labelled(out, "atoll_alerts_total", "rule", rule, page_run_alerts(count));
    }
    single(out, "atoll_page_queries_total", "counter", "Questions of this page to the coordinator.",
           (double)run->asked);
    single(out, "atoll_page_failed_queries_total", "counter", "Questions without a current answer.",
           (double)run->unanswered);
}

/* --- workers ------------------------------------------------------------------------------------------------------ */

static bool is_up(const json_t *worker)
{
    static const char *const absent[] = {"silent", "closed", "lost", "gone"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (run_status_is(worker, absent[i])) return false;
    return json_is_true(json_object_get(worker, "connected"));
}

/* Two rows may have one name for a moment; Prometheus refuses the whole answer if a label repeats. */
static bool is_repeated(const json_t *workers, size_t at, const char *name)
{
    for (size_t i = 0; i < at; i++) {
        const char *other = json_string_value(json_object_get(json_array_get(workers, i), "name"));
        if (other && !strcmp(other, name)) return true;
    }
    return false;
}

struct worker_metric {
    const char *name, *type, *help, *key; /* key: in a worker's row; NULL: whether it is up */
};

static void write_workers(const json_t *workers, const struct worker_metric *metric, FILE *out)
{
    size_t i;
    json_t *worker;
    bool any = false;
    json_array_foreach(workers, i, worker)
    {
        const char *name = json_string_value(json_object_get(worker, "name"));
        double number = metric->key ? page_number(worker, metric->key) : is_up(worker);
        if (!name || isnan(number) || is_repeated(workers, i, name)) continue;
        if (!any) head(out, metric->name, metric->type, metric->help);
        any = true;
        labelled(out, metric->name, "worker", name, number);
    }
}

static const struct worker_metric worker_counters[] = {
    {"atoll_worker_tokens_total", "counter", "Tokens of a worker's merged deltas.", "tokens"},
};
static const struct worker_metric worker_gauges[] = {
    {"atoll_worker_up", "gauge", "1: the worker is connected and heard from; 0: it is not.", NULL},
    {"atoll_worker_step_seconds", "gauge", "Duration of a worker's training step.", "step_s"},
    {"atoll_worker_silent_seconds", "gauge", "Time since the worker was heard from.", "silent_s"},
    {"atoll_worker_norm_ratio", "gauge", "Norm of a worker's last delta over the expected one.", "norm_ratio"},
};

/* --- gauges ------------------------------------------------------------------------------------------------------- */

static void write_alerts(const json_t *status, const json_t *known, FILE *out)
{
    const json_t *firing = json_object_get(status, "alerts");
    const char *rule;
    json_t *count, *alert;
    size_t i;
    if (!json_is_array(firing) || !json_object_size(known)) return;
    head(out, "atoll_alert_active", "gauge", "1: the alert holds now.");
    json_object_foreach((json_t *)(uintptr_t)known, rule, count)
    {
        bool active = false;
        json_array_foreach(firing, i, alert)
        {
            const char *name = json_string_value(json_object_get(alert, "rule"));
            active |= name && !strcmp(name, rule);
        }
        labelled(out, "atoll_alert_active", "rule", rule, active);
    }
}

/* The budget has hours and GB, as people set it; Prometheus has base units. */
static void write_budget(const json_t *status, FILE *out)
{
    const json_t *b = json_object_get(status, "budget");
    single(out, "atoll_budget_used_seconds", "gauge", "Time of the run that counts for run.max_hours.",
           page_number(b, "hours") * 3600);
    single(out, "atoll_budget_limit_seconds", "gauge", "run.max_hours.", page_number(b, "max_hours") * 3600);
    single(out, "atoll_budget_used_bytes", "gauge", "Bytes of the run that count for run.max_gb.",
           page_number(b, "gb") * 1e9);
    single(out, "atoll_budget_limit_bytes", "gauge", "run.max_gb.", page_number(b, "max_gb") * 1e9);
}

static void write_now(const struct page_run *run, FILE *out)
{
    static const struct {
        const char *name, *help, *key;
    } gauges[] = {
        {"atoll_tokens_per_second", "Training speed of all workers, median of recent rounds.", "tokens_per_s"},
        {"atoll_remaining_seconds", "Time left until the end of the run.", "eta_s"},
        {"atoll_utilization_ratio", "Compute time over wall time of all workers.", "utilization"},
    };
    const json_t *workers = json_object_get(run->status, "workers");
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++)
        single(out, gauges[i].name, "gauge", gauges[i].help, page_number(run->status, gauges[i].key));
    for (size_t i = 0; i < sizeof worker_gauges / sizeof *worker_gauges; i++)
        write_workers(workers, &worker_gauges[i], out);
    write_alerts(run->status, run->alerts, out);
    write_budget(run->status, out);
}

void page_metrics_write(const struct page_run *run, FILE *out)
{
    const json_t *s = run->status;
    double val = page_number(s, "final_val_loss");
    write_counters(run, out);
    for (size_t i = 0; i < sizeof worker_counters / sizeof *worker_counters; i++)
        write_workers(json_object_get(s, "workers"), &worker_counters[i], out);
    single(out, "atoll_up", "gauge", "1: the page's data is current; 0: the coordinator does not answer.",
           run->current);
    single(out, "atoll_done", "gauge", "1: the run is finished.", s ? run_status_is(s, "done") : NAN);
    single(out, "atoll_planned_rounds", "gauge", "Rounds of the whole run.", page_number(s, "rounds"));
    single(out, "atoll_train_loss", "gauge", "Training loss of the last round, in nats per token.",
           page_number(s, "train_loss"));
    single(out, "atoll_validation_loss", "gauge", "Loss of the last evaluation, in nats per token.",
           isnan(val) ? page_number(s, "val_loss") : val);
    single(out, "atoll_round_seconds", "gauge", "Duration of the last round.", run->round_s);
    single(out, "atoll_parameters", "gauge", "Trained parameters of the model.", page_number(s, "params"));
    if (run->current) write_now(run, out);
}
