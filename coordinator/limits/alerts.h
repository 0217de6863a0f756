/* Alerts: conditions that need a person. One rule set for the log, metrics.jsonl, the status and /metrics.
 *
 * - A rule is a pure function of its measure and of whether it fires now: it ends at another limit than it starts, so
 *   that a measure at a limit does not make it flap.
 * - alerts_set keeps the list of firing alerts. Pure: no clock, no allocation. */
#ifndef COORDINATOR_ALERTS_H
#define COORDINATOR_ALERTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"

enum alert_rule {
    ALERT_NO_ROUND,       /* no round for 5 times the usual time */
    ALERT_WORKER_MISSING, /* a worker had no part in 2 of the last 5 rounds */
    ALERT_LOSS,           /* not finite, or far above the latest ones */
    ALERT_AGREEMENT,      /* workers send nearly the same delta */
    ALERT_DISK,           /* less than 10 % left, or less than two checkpoints */
    ALERT_REFUSED,        /* two deltas refused within 5 rounds */
    ALERT_BUDGET,         /* 80 % of run.max_hours or run.max_gb */
    ALERT_RULES
};

enum { ALERTS_MAX = 64, ALERT_TEXT_MAX = 512, ALERT_ROUNDS = 5, ALERT_LOSSES = 8, ALERT_NO_SUBJECT = -1 };

/* "no_round"; as in status --json. */
const char *alert_rule_name(enum alert_rule rule);

/* --- rules -------------------------------------------------------------------------------------------------------- */

/* waited_s: without a round, pauses left out. usual_s: median of the recent rounds; NaN: not measured. */
bool alert_no_round(bool fires, double waited_s, double usual_s);
/* The run waits for workers: least_s is the least time before it is an alert. */
bool alert_no_workers(bool fires, double waited_s, double usual_s);
/* rounds: bit i is set if the worker had no part in the i-th last round. Ends after ALERT_ROUNDS with it. */
bool alert_worker_missing(bool fires, uint32_t rounds);
/* free, total: bytes of the disk; checkpoint: of one. UINT64_MAX: unknown. */
bool alert_disk(bool fires, uint64_t free, uint64_t total, uint64_t checkpoint);
/* refused: deltas within the last ALERT_ROUNDS rounds. */
bool alert_refused(bool fires, uint64_t refused);
/* most: 0: no limit. */
bool alert_budget(double used, double most);

/* The training losses of the latest rounds. Zeroed: none. */
struct alert_losses {
    double values[ALERT_LOSSES]; /* ring, without jumps */
    uint32_t n, next;
    uint32_t jumped, back; /* rounds in a row above the limit; below it since the alert began */
    double limit;          /* at the last round; infinite: not known */
};
/* Takes the loss of a finished round. Fires at once if it is not finite, or after two rounds in a row above the median
 * of the latest ones + max(a fifth of it, 8 MAD). Ends after two rounds below that. */
bool alert_loss(struct alert_losses *l, bool fires, double loss);

/* --- the list ----------------------------------------------------------------------------------------------------- */

struct alert {
    enum alert_rule rule;
    int64_t subject; /* of a rule with several alerts: a member; ALERT_NO_SUBJECT */
    uint64_t since_us;
    char worker[WIRE_NAME_MAX]; /* "": concerns no single worker */
    char text[ALERT_TEXT_MAX];  /* one line for people */
};

struct alerts {
    struct alert firing[ALERTS_MAX]; /* [n] oldest first */
    uint32_t n;
    uint64_t total[ALERT_RULES]; /* starts by this process */
};

enum alert_change { ALERT_SAME, ALERT_STARTS, ALERT_ENDS };

/* NULL: it does not fire. */
const struct alert *alerts_find(const struct alerts *a, enum alert_rule rule, int64_t subject);
/* Whether an alert of the rule and subject fires from now on. `text` is copied while it fires; worker may be NULL.
 * ENDS: *ended_p (may be NULL) is the alert that was removed. A start beyond ALERTS_MAX is only counted: SAME. */
enum alert_change alerts_set(struct alerts *a, enum alert_rule rule, int64_t subject, bool fires, const char *worker,
                             const char *text, uint64_t now_us, struct alert *ended_p);

#endif
