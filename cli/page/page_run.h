/* What the page knows of a run: its newest status, the curves, and totals that never fall while the run goes on.
 *
 * - Two sources fill it: the status (cli/status/status_query.h), and the events of RUN/metrics.jsonl. A page with a
 *   join line has no file: its curves begin with the first status. The totals of the file are those of the last round.
 *   They do not fall when a killed coordinator continues; those of a status may, so the largest one counts.
 * - A status of another run empties it. Names and texts come from strangers: they are stored as they are.
 * - No file, socket or clock: the caller gives times in microseconds. */
#ifndef CLI_PAGE_RUN_H
#define CLI_PAGE_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/page/page_curve.h"

enum { PAGE_REASON_MAX = 512, PAGE_EVENTS_MAX = 60, PAGE_TIMES_MAX = 256 };

/* Events that count as faults, by their kind in metrics.jsonl. */
enum page_fault { PAGE_FAULT, PAGE_EVICT, PAGE_LEAVE, PAGE_FAULTS };
extern const char *const page_fault_names[PAGE_FAULTS];

/* Sums of a counter that its owner starts again at 0. */
struct page_sum {
    double sum, last; /* last: the owner's value */
    bool known;
};

struct page_totals {
    double rounds, tokens, bytes_up, bytes_down, other_up, other_down; /* 0: none yet */
    double restarts;
    uint64_t faults[PAGE_FAULTS]; /* counted in metrics.jsonl */
};

struct page_run {
    json_t *status;               /* the newest one; NULL: none yet */
    bool current;                 /* the last question was answered, or the run is done */
    char reason[PAGE_REASON_MAX]; /* why it is not current */
    uint64_t answered_us;         /* when `status` arrived; 0: never */
    uint64_t asked, unanswered;   /* questions */

    struct page_curve train, validation;
    struct curve_place place; /* of the last round */
    double round_s;           /* duration of the last round; NaN: unknown */
    bool from_file;           /* the caller sets it: rounds and totals come from metrics.jsonl, else from the status */
    uint64_t round;           /* the last one */
    uint64_t round_us;        /* when the status showed it */
    double validation_loss;   /* of the last status */

    json_t *events;    /* list of the last events for people, oldest first */
    uint64_t n_events; /* so far; grows with each event */
    json_t *times;     /* by worker: the last timed step, {"tokens_per_s", "send_s", "wait_s", "mbit"} */
    json_t *sent;      /* by worker: bytes_up of the timed step before */
    struct page_totals totals;
    uint64_t kept[PAGE_FAULTS]; /* faults of the file that was replaced */
    bool replaced;              /* the file is read again, and no round of it was seen yet */
    struct page_sum refused;
    json_t *alerts; /* by rule: [the coordinator's last count, sum] */
};

void page_run_init(struct page_run *run);
void page_run_finish(struct page_run *run);
/* Takes an event of metrics.jsonl. */
void page_run_event(struct page_run *run, const json_t *event, const char *kind);
/* The file is read from its beginning again. */
void page_run_again(struct page_run *run);
/* Takes the answer to a question: `status` (borrowed) or NULL, and why it is not current, or "". Returns true if it is
 * of another run: the caller then reads metrics.jsonl from its beginning. */
bool page_run_status(struct page_run *run, json_t *status, const char *reason, uint64_t now_us);
/* Empties what belongs to the run. */
void page_run_forget(struct page_run *run);

/* The number at a key; NaN: unknown. */
double page_number(const json_t *object, const char *key);

#endif
