#include "cli/status/status_view.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/text.h"
#include "common/base/units.h"
#include "common/os/run_status.h"
#include "common/os/run_text.h"

enum { TEXT_MAX = 2048, CELL_MAX = 128, LABEL_WIDTH = 12 };

/* --- values ------------------------------------------------------------------------------------------------------- */

/* NaN: unknown. */
static double number(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* A text of a coordinator, which may be hostile: control characters are replaced. NULL: unknown or empty. */
static const char *text(const json_t *o, const char *key, char out[TEXT_MAX])
{
    const char *value = json_string_value(json_object_get(o, key));
    if (!value || !*value) return NULL;
    snprintf(out, TEXT_MAX, "%s", value);
    text_make_clean(out);
    return out;
}

/* --- parts of a line ---------------------------------------------------------------------------------------------- */

struct page {
    FILE *out;
    const char *end;     /* of every line */
    int width;           /* of the terminal; 0: no limit */
    char text[TEXT_MAX]; /* the next line without its label */
    size_t used;
};

static void add(struct page *page, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct page *page, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(page->text + page->used, sizeof page->text - page->used, fmt, args);
    va_end(args);
    if (n > 0) page->used += (size_t)n;
    if (page->used < sizeof page->text) return;
    page->used = sizeof page->text - 1;
    text_make_clean(page->text); /* a cut character at the end */
}

/* Separates parts of a line; nothing before the first one. */
static const char *comma(const struct page *page)
{
    return page->used ? ", " : "";
}

static void add_text(struct page *page, const json_t *o, const char *key)
{
    char value[TEXT_MAX];
    if (text(o, key, value)) add(page, "%s%s", comma(page), value);
}

/* Columns on a terminal: UTF-8 without wide characters. */
static int width_of(const char *s, size_t n)
{
    int columns = 0;
    for (size_t i = 0; i < n; i++) columns += (s[i] & 0xc0) != 0x80;
    return columns;
}

/* Prints label and text; a text that is wider than the page continues below itself. */
static void print(struct page *page, const char *label)
{
    int at = LABEL_WIDTH;
    if (!page->used) return;
    page->used = 0;
    fprintf(page->out, "%-*s", LABEL_WIDTH, label);
    for (const char *word = page->text; *word;) {
        size_t n = strcspn(word, " ");
        int columns = width_of(word, n) + 1;
        if (page->width && at + columns > page->width && at > LABEL_WIDTH) {
            fprintf(page->out, "%s%*s", page->end, LABEL_WIDTH, "");
            at = LABEL_WIDTH;
        }
        fprintf(page->out, " %.*s", (int)n, word);
        at += columns;
        word += n + strspn(word + n, " ");
    }
    fputs(page->end, page->out);
}

/* "5 workers", "1 worker". */
static void add_number(struct page *page, double n, const char *noun)
{
    if (n > 0) add(page, "%s%.0f %s%s", comma(page), n, noun, n > 1 ? "s" : ""); /* NaN is not above 0 */
}

/* --- lines of the run --------------------------------------------------------------------------------------------- */

static void print_run(const json_t *o, struct page *page)
{
    double params = number(o, "params");
    add_text(page, o, "run");
    add_text(page, o, "method");
    if (params > 0) add(page, "%s%s parameters", comma(page), units_count(params).text);
    if (!json_array_size(json_object_get(o, "workers"))) add_number(page, number(o, "workers_gone"), "worker");
    print(page, "run");
}

static void print_state(const json_t *o, struct page *page)
{
    double round = number(o, "round"), rounds = number(o, "rounds"), wall_s = number(o, "wall_s");
    bool done = run_status_is(o, "done");
    add_text(page, o, "state");
    if (round >= 0) add(page, "%sround %.0f", comma(page), round);
    if (round >= 0 && rounds > 0) add(page, " of %.0f", rounds);
    if (round >= 0 && rounds > 0 && !done)
        add(page, ", %s", run_text_left(round, rounds, number(o, "eta_s"), ", ").text);
    if (wall_s >= 1) add(page, "%s%s%s", comma(page), done ? "in " : "", units_whole_seconds(wall_s).text);
    if (wall_s >= 1 && !done) add(page, " so far");
    add_number(page, number(o, "restarts"), "restart");
    print(page, "state");
}

static void print_losses(const json_t *o, struct page *page)
{
    double train = number(o, "train_loss"), val = number(o, "val_loss"), final = number(o, "final_val_loss"),
           tokens = number(o, "val_tokens");
    if (!isnan(train)) add(page, "train %s", run_text_loss(train).text);
    if (!isnan(final))
        add(page, "%sfinal validation %s", comma(page), run_text_loss(final).text);
    else if (!isnan(val))
        add(page, "%svalidation %s", comma(page), run_text_loss(val).text);
    if (!isnan(final) && tokens > 0) add(page, " of %s tokens", units_count(tokens).text);
    if (json_is_true(json_object_get(o, "val_by_one_worker"))) add(page, " by one worker");
    print(page, "loss");
}

static void print_tokens(const json_t *o, struct page *page)
{
    double tokens = number(o, "tokens"), steps = number(o, "steps"), rate = number(o, "tokens_per_s");
    if (tokens > 0) add(page, "%s", units_count(tokens).text);
    if (tokens > 0 && steps > 0) add(page, " in %.0f step%s", steps, steps > 1 ? "s" : "");
    if (rate > 0) add(page, "%s%s/s", comma(page), units_count(rate).text);
    print(page, "tokens");
}

/* Up and down of two keys, if one of them is above 0. */
static void add_bytes(struct page *page, const json_t *o, const char *up_key, const char *down_key)
{
    double up = number(o, up_key), down = number(o, down_key);
    if (up > 0 || down > 0) add(page, "%s up, %s down", units_bytes(fmax(up, 0)).text, units_bytes(fmax(down, 0)).text);
}

static void print_bytes(const json_t *o, struct page *page)
{
    char value[TEXT_MAX];
    double ddp = number(o, "ddp_bytes");
    add_bytes(page, o, "bytes_up", "bytes_down");
    if (page->used && text(o, "down", value)) add(page, " (last update: %s)", value);
    if (page->used && ddp > 0) add(page, "; ddp would send %s", units_bytes(ddp).text);
    print(page, "sent");
    add_bytes(page, o, "other_bytes_up", "other_bytes_down");
    if (page->used)
        fprintf(page->out, "besides the run: %s (followers, probes, status, strangers)%s", page->text, page->end);
    page->used = 0;
}

/* The coordinator keeps its parameters in a file, because memory is short. */
static void print_file(const json_t *o, struct page *page)
{
    double bytes = number(o, "file_bytes");
    if (bytes > 0) add(page, "parameters and outer state (%s) in a file: too little memory", units_bytes(bytes).text);
    print(page, "memory");
}

/* async: merged deltas by the rounds that they were behind. */
static void print_staleness(const json_t *o, struct page *page)
{
    size_t i;
    json_t *count;
    json_array_foreach(json_object_get(o, "staleness"), i, count)
    {
        if (json_number_value(count) > 0)
            add(page, "%s%.0f delta%s %zu round%s behind", comma(page), json_number_value(count),
                json_number_value(count) > 1 ? "s" : "", i, i == 1 ? "" : "s");
    }
    print(page, "staleness");
}

static void print_refused(const json_t *o, struct page *page)
{
    char reason[TEXT_SHOWN];
    const char *key;
    json_t *value, *reasons = json_object_get(o, "refused_for");
    add_number(page, number(o, "deltas_refused"), "delta");
    bool first = true;
    if (page->used) json_object_foreach(reasons, key, value)
        {
            add(page, "%s%.0f %s", first ? ": " : ", ", json_number_value(value), text_shown(key, strlen(key), reason));
            first = false;
        }
    print(page, "refused");
}

/* The text of a note is also that of an alert. */
static bool is_alert(const json_t *o, const json_t *note)
{
    size_t i;
    json_t *alert;
    json_array_foreach(json_object_get(o, "alerts"), i, alert)
    {
        if (json_equal(json_object_get(alert, "text"), note)) return true;
    }
    return false;
}

static void print_alerts(const json_t *o, struct page *page)
{
    char value[TEXT_MAX];
    size_t i;
    json_t *alert;
    json_array_foreach(json_object_get(o, "alerts"), i, alert)
    {
        double since_s = number(alert, "since_s");
        add_text(page, alert, "text");
        if (page->used && since_s >= 0 && text(alert, "rule", value))
            add(page, " (%s, for %s)", value, units_whole_seconds(since_s).text);
        print(page, "alert");
    }
}

/* "12.3 of 24 h, 40 of 100 GB"; nothing without a limit. */
static void print_budget(const json_t *o, struct page *page)
{
    const json_t *budget = json_object_get(o, "budget");
    double hours = number(budget, "hours"), gb = number(budget, "gb"), max_hours = number(budget, "max_hours"),
           max_gb = number(budget, "max_gb");
    if (max_hours > 0 && hours >= 0) add(page, "%.3g of %g h", hours, max_hours);
    if (max_gb > 0 && gb >= 0) add(page, "%s%.3g of %g GB", comma(page), gb, max_gb);
    print(page, "budget");
}

static void print_notes(const json_t *o, struct page *page)
{
    size_t i;
    json_t *note;
    json_array_foreach(json_object_get(o, "notes"), i, note)
    {
        if (json_is_string(note) && !is_alert(o, note)) add(page, "%s", json_string_value(note));
        text_make_clean(page->text);
        print(page, "warning");
    }
}

static void print_text(const json_t *o, const char *key, const char *label, struct page *page)
{
    add_text(page, o, key);
    print(page, label);
}

/* --- the table of workers ----------------------------------------------------------------------------------------- */

enum column { NAME, DOING, TOKENS, STEP, HEARD, DEVICES, COLUMNS };
static const char *const titles[COLUMNS] = {"worker", "doing", "tokens", "step", "heard", "devices"};

struct row {
    char cells[COLUMNS][CELL_MAX];
};

/* A worker that is here does something; the state of another one says more. */
static const char *doing_of(const json_t *worker, char out[TEXT_MAX])
{
    static const char *const absent[] = {"silent", "closed", "lost", "gone"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (run_status_is(worker, absent[i])) return absent[i];
    const char *doing = text(worker, "aside", out);
    if (!doing) doing = text(worker, "doing", out);
    return doing ? doing : text(worker, "state", out);
}

static struct row row_of(const json_t *worker)
{
    struct row row = {0};
    char value[TEXT_MAX];
    const char *doing = doing_of(worker, value);
    double tokens = number(worker, "tokens"), step_s = number(worker, "step_s"), silent_s = number(worker, "silent_s");
    if (doing) snprintf(row.cells[DOING], CELL_MAX, "%.*s", CELL_MAX - 1, doing);
    if (text(worker, "name", value)) snprintf(row.cells[NAME], CELL_MAX, "%.*s", CELL_MAX - 1, value);
    if (tokens > 0) snprintf(row.cells[TOKENS], CELL_MAX, "%s", units_count(tokens).text);
    if (step_s > 0) snprintf(row.cells[STEP], CELL_MAX, "%s", units_duration(step_s).text);
    if (silent_s >= 1)
        snprintf(row.cells[HEARD], CELL_MAX, "%s ago", units_whole_seconds(silent_s).text);
    else if (silent_s >= 0)
        snprintf(row.cells[HEARD], CELL_MAX, "now");
    if (text(worker, "devices", value)) snprintf(row.cells[DEVICES], CELL_MAX, "%.*s", CELL_MAX - 1, value);
    for (int c = 0; c < COLUMNS; c++) text_make_clean(row.cells[c]); /* a cut character at the end */
    return row;
}

static int cell_width(const char *cell)
{
    return width_of(cell, strlen(cell));
}

/* Cells that do not fit the page are left out. */
static void print_cells(const struct row *row, const int widths[COLUMNS], struct page *page)
{
    int pad = 0, at = 0; /* pad: blanks after the cell before, so that no line ends with blanks */
    for (int c = 0; c < COLUMNS; c++) {
        int width = cell_width(row->cells[c]);
        if (!widths[c]) continue;
        if (page->width && c > DOING && at + widths[c] > page->width) break;
        if (width) fprintf(page->out, "%*s%s", pad, "", row->cells[c]);
        pad = widths[c] + 2 - width + (width ? 0 : pad);
        at += widths[c] + 2;
    }
    fputs(page->end, page->out);
}

static void print_workers(const json_t *o, struct page *page)
{
    const json_t *workers = json_object_get(o, "workers");
    struct row head, row;
    int widths[COLUMNS] = {0}, known = 0;
    size_t i;
    json_t *worker;
    json_array_foreach(workers, i, worker)
    {
        row = row_of(worker);
        for (int c = 0; c < COLUMNS; c++)
            if (cell_width(row.cells[c]) > widths[c]) widths[c] = cell_width(row.cells[c]);
    }
    for (int c = 0; c < COLUMNS; c++) {
        int title = cell_width(titles[c]);
        snprintf(head.cells[c], CELL_MAX, "%s", titles[c]);
        known += widths[c];
        if (widths[c] && widths[c] < title) widths[c] = title;
    }
    if (!known) return;
    fputs(page->end, page->out);
    print_cells(&head, widths, page);
    json_array_foreach(workers, i, worker)
    {
        row = row_of(worker);
        print_cells(&row, widths, page);
    }
    if (number(o, "workers_gone") > 0) add(page, "%.0f left", number(o, "workers_gone"));
    if (number(o, "workers_not_listed") > 0) add(page, "%s%.0f more", comma(page), number(o, "workers_not_listed"));
    if (page->used) fprintf(page->out, "(%s)%s", page->text, page->end);
}

/* --- interface ---------------------------------------------------------------------------------------------------- */

void status_view_print(const json_t *o, unsigned width, const char *end, FILE *out)
{
    struct page page = {.out = out, .end = end, .width = (int)width};
    double utilization = number(o, "utilization");
    print_run(o, &page);
    print_state(o, &page);
    print_losses(o, &page);
    print_tokens(o, &page);
    print_bytes(o, &page);
    print_file(o, &page);
    if (utilization > 0) add(&page, "%s", units_percent(utilization).text);
    print(&page, "utilization");
    print_staleness(o, &page);
    print_budget(o, &page);
    print_alerts(o, &page);
    print_text(o, "waiting_for", "waiting for", &page);
    print_text(o, "bottleneck", "bottleneck", &page);
    print_notes(o, &page);
    print_refused(o, &page);
    print_text(o, "theta_hash", "theta_hash", &page);
    print_workers(o, &page);
}

void status_view_line(const json_t *o, char *out, size_t cap)
{
    struct page line = {.used = 0};
    char value[TEXT_MAX];
    double round = number(o, "round"), rounds = number(o, "rounds"), train = number(o, "train_loss"),
           val = number(o, "val_loss"), rate = number(o, "tokens_per_s");
    add(&line, "%s", text(o, "state", value) ? value : "?");
    if (round >= 0) add(&line, "  round %.0f", round);
    if (round >= 0 && rounds > 0)
        add(&line, "/%.0f  %s", rounds, run_text_left(round, rounds, number(o, "eta_s"), "  ").text);
    if (!isnan(train)) add(&line, "  loss %s", run_text_loss(train).text);
    if (!isnan(val)) add(&line, "  val %s", run_text_loss(val).text);
    if (rate > 0) add(&line, "  %s tokens/s", units_count(rate).text);
    if (text(o, "waiting_for", value)) add(&line, "  waiting for %s", value);
    snprintf(out, cap, "%s", line.text);
}
