/* Events of a run, emitted one at a time through engine_io.event, and the summary of a run.
 * Plain types: coordinator/report includes this header and no other header of the engine. */
#ifndef COORDINATOR_ENGINE_EVENT_H
#define COORDINATOR_ENGINE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/* Each comment names the member of the union. */
enum engine_event_kind {
    ENGINE_EVENT_JOIN,       /* line */
    ENGINE_EVENT_LEAVE,      /* line */
    ENGINE_EVENT_EVICT,      /* line */
    ENGINE_EVENT_FAULT,      /* line */
    ENGINE_EVENT_LINK,       /* line: transfers take most of a round, or no longer do */
    ENGINE_EVENT_NOTE,       /* line: a warning about the training begins to hold */
    ENGINE_EVENT_WAITING,    /* line: the run waits longer than usual */
    ENGINE_EVENT_RESTART,    /* restart: this engine continues the run in the store */
    ENGINE_EVENT_CHANGE,     /* change: a setting of the run changed (--change) */
    ENGINE_EVENT_STEP,       /* step: one inner step of one worker */
    ENGINE_EVENT_UPDATE,     /* update: one fragment took an outer step */
    ENGINE_EVENT_ROUND,      /* round: a round is over */
    ENGINE_EVENT_EVAL,       /* eval */
    ENGINE_EVENT_CHECKPOINT, /* checkpoint */
    ENGINE_EVENT_DONE,       /* done */
    ENGINE_EVENT_ALERT,      /* alert: it starts or ends (coordinator/limits/alerts.h) */
};

struct engine_event_line {
    const char *worker; /* name; NULL: the event concerns no single worker */
    const char *text;   /* may be "" */
};

struct engine_event_restart {
    const char *text;
    bool modelled;          /* a worker has joined: `rounds` is known */
    uint64_t round, rounds; /* rounds done; rounds of the run */
};

struct engine_event_change {
    const char *key, *from, *to;
    uint64_t round; /* rounds done before it */
};

/* step and round count from 1. */
struct engine_event_step {
    const char *worker;
    uint64_t step, round, tokens; /* tokens: of the run so far */
    double age_s;                 /* from the end of the step to this event */
    double loss, lr, grad_norm;
    bool skipped; /* the gradient was not finite: the worker skipped the step */
    bool timed;   /* the worker measured the step: the next two are set */
    double tokens_per_s, tflops;
    bool counted; /* the last step of a batch: the next two are set, bytes on the worker's socket so far */
    uint64_t bytes_up, bytes_down;
    bool measured; /* a round ended with this batch: the next five are set, seconds of its phases */
    double compute_s, compress_s, send_s, wait_s, apply_s;
};

struct engine_event_update {
    uint64_t fragment, version, round, tokens; /* round: rounds done */
    double lr;                                 /* of the outer step */
    const char *codec;                         /* "relay" or the downlink codec */
    uint64_t update_bytes;                     /* size of the update object */
    bool compared;                             /* codec.down auto: the next two are set, bytes to all workers */
    uint64_t relay_bytes, union_bytes;
};

/* NaN: unknown. loss, compute_s, wait_s: no delta was merged. val_loss, eval_s: this version was not evaluated. */
struct engine_event_round {
    uint64_t round, rounds, version, tokens;
    double loss, val_loss;
    bool val_by_one; /* as in engine_event_eval */
    double round_s, compute_s, wait_s;
    double eval_s;                 /* of the evaluation after it, which round_s does not contain */
    double link_s;                 /* transfers of the slowest worker: its delta, and the update before */
    double eta_s;                  /* time left, from medians of recent rounds and evaluations */
    uint64_t bytes_up, bytes_down; /* of the run so far */
    uint64_t other_up, other_down; /* other bytes on the socket so far (struct engine_bytes) */
    uint32_t workers, delivered;   /* workers assigned; deltas merged */
    const char *codec;             /* codec of the last update, or NULL */
    const char *slowest;           /* the worker that delivered last, or NULL */
    double norm_ratio;             /* largest round_excess of the round; NaN: fewer than three workers */
    const char *norm_worker;       /* its worker, or NULL */
    const uint64_t *stale;         /* async: deltas by staleness, 0 to n_stale - 1 or more; NULL: a barrier */
    uint32_t n_stale;
    double rho, gain, agreement, noise_tokens; /* of its outer steps: coordinator/outer/outer_report.h */
};

struct engine_event_eval {
    uint64_t round, version, tokens; /* of the evaluated parameters */
    double val_loss, eval_s;
    bool disputed; /* two workers differ, and no third one could decide: the larger value counts */
    bool by_one;   /* a share was evaluated by one worker, and nobody checked it */
};

struct engine_event_checkpoint {
    uint64_t round, version;
};

struct engine_event_done {
    uint64_t round, tokens;
    double val_loss; /* NaN: never evaluated */
};

struct engine_event_alert {
    const char *rule, *worker, *text; /* worker: NULL: it concerns no single one */
    bool starts;                      /* false: it ends */
    bool told;                        /* another event has brought the text to the log */
    double for_s;                     /* of an end: how long it was firing */
};

/* Strings are valid during the call. */
struct engine_event {
    enum engine_event_kind kind;
    union {
        struct engine_event_line line;
        struct engine_event_restart restart;
        struct engine_event_change change;
        struct engine_event_step step;
        struct engine_event_update update;
        struct engine_event_round round;
        struct engine_event_eval eval;
        struct engine_event_checkpoint checkpoint;
        struct engine_event_done done;
        struct engine_event_alert alert;
    };
};

/* JOIN, LEAVE, EVICT, FAULT, LINK, NOTE and WAITING. */
static inline bool engine_event_is_line(const struct engine_event *event)
{
    return event->kind <= ENGINE_EVENT_WAITING;
}

struct engine_summary {
    bool done;
    uint64_t params, tokens, steps, rounds, restarts;
    uint64_t worker_steps; /* merged inner steps of all workers */
    uint32_t workers;      /* workers with at least one merged delta */
    double final_val_loss; /* NaN: none */
    bool val_by_one;       /* as in engine_event_eval */
    uint64_t val_tokens;
    double wall_s, compute_s; /* compute_s: sum over all merged deltas */
    uint64_t bytes_up, bytes_down, other_up, other_down;
    uint64_t theta_hash; /* layout_theta_hash of the current theta; 0 before the first join */
};

#endif
