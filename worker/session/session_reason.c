/* A join that cannot succeed ends with a reason. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/os/fileio.h"
#include "wire/dial_failure.h"
#include "worker/session/session_impl.h"

/* HEARD: after a coordinator's greeting: the handshake takes long. GRACE: a coordinator that restarts is back within
 * it, and the answer comes within 5 s. FOLDER: by a run folder, whose coordinator may be about to start. */
enum { AGAIN_US = 500000, HEARD_US = 5000000, GRACE_US = 3000000, FOLDER_US = 10000000 };

bool session_is_launched(const struct worker_session *s)
{
    return s->options->supervised && s->options->run_dir[0];
}

static uint64_t patience_us(const struct worker_session_options *o)
{
    char lock[CONFIG_PATH_MAX + 16];
    if (o->supervised || o->max_wait_us != UINT64_MAX) return UINT64_MAX; /* worker_session_wait watches max_wait_us */
    if (!o->run_dir[0]) return GRACE_US;
    snprintf(lock, sizeof lock, "%s/lock", o->run_dir);
    return file_is_locked(lock) ? UINT64_MAX : FOLDER_US; /* locked: the coordinator runs, and will listen */
}

enum status session_check_join(struct worker_session *s, struct err *err)
{
    struct transport_address address;
    struct err why = {0};
    uint64_t now = clock_monotonic_us();
    if (!s->join_check.since_us) s->join_check.since_us = now;
    s->join_check.done = s->join_check.done || session_is_launched(s) || link_connected(s->link);
    enum dial_failure seen = (enum dial_failure)link_failure(s->link);
    bool again = (unsigned)seen == s->join_check.seen && now < s->join_check.next_us;
    if (s->join_check.done || !seen || again) return STATUS_OK;
    TRY(transport_address_parse(&address, s->join, err));
    enum status status = dial_failure_explain(&address, seen, DIAL_EXPLAIN_US, &why);
    now = clock_monotonic_us();
    s->join_check.seen = seen;
    s->join_check.next_us = now + (status == STATUS_OK ? HEARD_US : AGAIN_US);
    TRY(session_check_stop(s, err)); /* a signal ends the probe early */
    if (status == STATUS_OK || status == STATUS_AGAIN || link_connected(s->link)) return STATUS_OK;
    uint64_t patience = patience_us(s->options), waited = now - s->join_check.since_us;
    if (status == STATUS_INVALID || waited >= patience) return err_set(err, status, "cannot join: %s", why.msg);
    if (patience > GRACE_US && !s->join_check.logged) log_warn("retrying: %s", why.msg);
    s->join_check.logged = patience > GRACE_US;
    return STATUS_OK;
}
