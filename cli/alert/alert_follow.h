/* What `atoll alert` tells, and when: follows the answers of status_query. Pure: no clock, no command.
 *
 * - A message is the start or the end of an alert of the coordinator (coordinator/limits/alerts.h), or one that is only
 *   seen from outside: "away", nobody answers or the run is stopped; "done", the run is over.
 * - A coordinator ends with its run, perhaps between two looks. If it is away since about that time, the run is done.
 * - At most one message a rule within ALERT_FOLLOW_US. Messages that wait become one, the latest.
 * - A message whose command failed is due again, up to ALERT_TRIES times. */
#ifndef CLI_ALERT_FOLLOW_H
#define CLI_ALERT_FOLLOW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    ALERT_FOLLOW_US = 60000000,
    ALERT_TRIES = 5,
    ALERT_FOLLOW_RULES = 16,
    ALERT_FOLLOW_MOST = 128, /* alerts that fire at one time */
    ALERT_NAME_MAX = 64,
    ALERT_LINE_MAX = 1024,
};

struct alert_message {
    char rule[ALERT_NAME_MAX], worker[ALERT_NAME_MAX]; /* worker "": it concerns no single one */
    bool starts;                                       /* false: the alert is over */
    char text[ALERT_LINE_MAX];                         /* one line */
    unsigned more;                                     /* earlier messages of this rule that it replaces */
};

struct alert_follow {
    uint64_t away_after_us; /* set by the caller */
    char run[ALERT_NAME_MAX];
    struct alert_fires {
        char rule[ALERT_NAME_MAX], worker[ALERT_NAME_MAX], text[ALERT_LINE_MAX];
    } fires[ALERT_FOLLOW_MOST]; /* [n_fires] at the last answer */
    unsigned n_fires;
    struct alert_slot {
        struct alert_message message;
        bool due;
        unsigned tries;
        uint64_t sent_us;        /* time of the last message; 0: none */
    } slots[ALERT_FOLLOW_RULES]; /* [n_slots] one for each rule */
    unsigned n_slots;
    uint64_t away_us, answer_us; /* since then nobody answers, 0: somebody does; time of the last answer, 0: none */
    double eta_s;                /* of the last answer; NaN: unknown */
    long long round, rounds;     /* of it; 0: unknown */
    bool away, done;
};

/* An answer, or NULL: there is none, and `why` says why not. now_us > 0. */
void alert_follow_answer(struct alert_follow *f, const json_t *status, const char *why, uint64_t now_us);
/* The coordinator refuses to answer, as it does when its budget is used up: it is away from now on, for that reason. */
void alert_follow_refused(struct alert_follow *f, const char *why, uint64_t now_us);
/* The next message that may go now. False: none. The caller then calls alert_follow_sent. */
bool alert_follow_next(struct alert_follow *f, uint64_t now_us, struct alert_message *message);
void alert_follow_sent(struct alert_follow *f, const struct alert_message *message, bool success, uint64_t now_us);
/* A message waits for its minute. */
bool alert_follow_waits(const struct alert_follow *f);

#endif
