/* Looks after the GPUs of one worker from threads of its own, for a rank that hangs inside a call cannot: when one rank
 * fails, communication of all is aborted, so that the others' calls return; when nobody gets on for ATOLL_GPU_TIMEOUT
 * seconds (600 unless set; 0: never looked at), who is missed is found and it counts as failed; and when the process
 * is still there ATOLL_GPU_GRACE seconds (60) after a failure, `end` is called: last resort, for a GPU or a
 * library that never answers.
 *
 * Time is counted in looks, ten a second, so a process that was stopped (debugger, sleep) was not idle. The thread that
 * looks calls nothing that may block; what may has a thread for itself. Knows nothing of CUDA. */
#ifndef GPU_CUDA_WATCHDOG_H
#define GPU_CUDA_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct cuda_watchdog;

/* What it asks and does; all with ctx, from its threads. */
struct cuda_watch {
    void *ctx;
    /* These never block. A rank is at work, and so somebody may wait for it (NULL: always); what all got done, a number
     * that grows; a failure that no rank has seen yet, with a line (NULL: there is none). */
    bool (*busy)(void *ctx);
    uint64_t (*moves)(void *ctx);
    bool (*failed)(void *ctx, struct err *why);
    /* Who is missed after so many seconds without a move: a line. Only with `ask` it asks the GPUs, and may block. */
    void (*blame)(void *ctx, unsigned seconds, bool ask, struct err *why);
    void (*abort)(void *ctx);      /* once, after the first failure; may block; NULL: there is nothing to abort */
    void (*end)(const char *line); /* does not return; NULL: there is no last resort */
};

/* INVALID: what the environment says is no number; NOMEM, LIMIT: no thread. `watch` is copied. */
enum status cuda_watchdog_start(const struct cuda_watch *watch, struct cuda_watchdog **out, struct err *err) MUST_CHECK;
/* Returns when nothing calls into ctx any more: an abort that was begun is waited for. After a failure the last resort
 * stays, up to the end of the process. NULL is allowed. */
void cuda_watchdog_stop(struct cuda_watchdog *w);

/* A rank failed; the first failure counts, CLOSED is none of its own. By any thread. */
void cuda_watchdog_fail(struct cuda_watchdog *w, const struct err *why);
/* NULL, or the first failure: it stays as it is, and valid until stop. By any thread, often. */
const struct err *cuda_watchdog_failure(const struct cuda_watchdog *w);

#endif
