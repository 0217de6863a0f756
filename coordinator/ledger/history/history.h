/* Takes rounds of a stopped run back. The result is another run folder content, which the caller puts in place of the
 * old one (coordinator/ledger/history/take_back.h).
 *
 * - Rollback: the run stands where it stood when `round` rounds were merged and the next one had opened: its workers
 * get the same samples again, so one that still has its delta of that round may send it.
 * - Exclude: from round `round` on, the journal is written again without the deltas of one worker. Deltas of the others
 *   are replayed as they are; each outer step is computed from what remains, and its update gets the version that it
 *   would have had. The result is the run in which that worker was assigned and never delivered. Evaluations, the end
 *   of the run and deltas of the round that is open are left out: the next start makes them again.
 * - A record TAKEN stands in the journal where the old history ends; later checkpoints list it.
 *
 * A plan reads the journal without computing outer steps. Only history_write computes, and it checks each update that
 * it keeps. */
#ifndef COORDINATOR_HISTORY_H
#define COORDINATOR_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "coordinator/ledger/store.h"
#include "wire/msg.h"

enum { HISTORY_CHANGES_MAX = 32 };

/* Called for each record of the journal that is read: bytes so far, of how many. Each pass begins at 0. */
struct history_watch {
    void (*read)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
};

struct history_request {
    const char *exclude;  /* the worker's name; NULL: a rollback */
    uint64_t round;       /* rollback: the rounds that stay. exclude: the first round without the worker; 0: all */
    bool keep_member;     /* exclude: the worker keeps its place */
    uint32_t min_workers; /* async: as of the first start, because rounds are parts of the budget; 0: the default */
    const struct history_watch *watch; /* borrowed; NULL: none */
};

/* The deltas of one member that are left out. */
struct history_worker {
    char name[WIRE_NAME_MAX];
    uint64_t deltas; /* one for each fragment */
};

/* A round that was merged again. */
struct history_round {
    uint64_t round, tokens, version; /* rounds done; totals */
    double loss;                     /* training loss; NaN: unknown */
    uint32_t delivered;
};

struct history {
    struct history_request request;   /* exclude is borrowed */
    uint64_t kept, before;            /* rounds that stay as they are; rounds of the run */
    uint64_t base;                    /* the checkpoint from which the replay begins */
    uint64_t first;                   /* the oldest segment that stays */
    struct journal_ref cut, end;      /* first byte that goes; exclude: first byte behind what is written again */
    uint64_t updates, tokens;         /* left out or written again; tokens of the run at the end of the old history */
    uint64_t kept_steps, kept_tokens; /* schedule position and tokens after `kept` rounds */
    struct history_worker *workers;   /* [n_workers] by member id; owned */
    size_t n_workers;
    uint64_t changes[HISTORY_CHANGES_MAX]; /* [n_changes] hashes of settings that only the old history has */
    uint32_t n_changes;
    struct record_clock clock; /* at the end of the old history: time and traffic that were used up stay so */
    bool async;

    /* Set by history_write. */
    uint64_t rounds, new_tokens, theta_hash; /* of the result */
    struct history_round *again;             /* [n_again] exclude: the rounds behind `kept`; owned */
    size_t n_again, cap_again;
};

/* Finds the place in the journal. INVALID or NOTFOUND, with one line that names the rounds or workers that are
 * possible; CORRUPT: damage, which atoll repair cuts; UNSUPPORTED. Free with history_finish, also after an error. */
enum status history_plan(struct history *h, const struct history_request *request, struct store *store,
                         struct err *err) MUST_CHECK;
/* Writes the new history to `to`, durably: it holds the segments h->first .. h->cut.segment, the last one cut at
 * h->cut.offset, and the checkpoints that history_keeps names. time_s: now, since the epoch. */
enum status history_write(struct history *h, struct store *from, struct store *to, uint64_t time_s,
                          struct err *err) MUST_CHECK;
/* This checkpoint, with this segment after it, belongs to the new history, too. */
bool history_keeps(const struct history *h, uint64_t round, uint64_t segment);
void history_finish(struct history *h);

#endif
