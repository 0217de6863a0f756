/* A join that cannot succeed ends with a reason. */
#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/os/fileio.h"
#include "wire/dial_failure.h"
#include "worker/train_impl.h"

/* GRACE: a coordinator that restarts is back within it, and the answer comes within 5 s. FOLDER: by a run folder, whose
 * coordinator may be about to start. */
enum { PROBE_US = 1500000, AGAIN_US = 500000, GRACE_US = 3000000, FOLDER_US = 10000000 };

static uint64_t patience_us(const struct trainer *t)
{
    char lock[CONFIG_PATH_MAX + 16];
    if (t->options->max_wait_us != UINT64_MAX) return UINT64_MAX; /* the caller watches --max-wait */
    if (!t->options->run_dir[0]) return GRACE_US;
    snprintf(lock, sizeof lock, "%s/lock", t->options->run_dir);
    return file_is_locked(lock) ? UINT64_MAX : FOLDER_US; /* locked: the coordinator runs, and will listen */
}

enum status train_check_join(struct trainer *t, const char *join, struct err *err)
{
    struct transport_address address;
    struct err why = {0};
    uint64_t now = clock_monotonic_us();
    if (!t->join.since_us) t->join.since_us = now;
    t->join.done = t->join.done || t->options->supervised || link_connected(t->link);
    enum dial_failure seen = (enum dial_failure)link_failure(t->link);
    if (t->join.done || !seen || now < t->join.next_us) return STATUS_OK;
    TRY(transport_address_parse(&address, join, err));
    enum status status = dial_failure_explain(&address, seen, PROBE_US, &why);
    now = clock_monotonic_us();
    t->join.next_us = now + AGAIN_US;
    TRY(train_check_stop(err)); /* a signal ends the probe early */
    if (status == STATUS_OK || status == STATUS_AGAIN) return STATUS_OK;
    uint64_t patience = patience_us(t), waited = now - t->join.since_us;
    if (status == STATUS_INVALID || waited >= patience) return err_set(err, status, "cannot join: %s", why.msg);
    if (patience > GRACE_US && !t->join.logged) log_warn("retrying: %s", why.msg);
    t->join.logged = patience > GRACE_US;
    return STATUS_OK;
}
