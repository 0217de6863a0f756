/* Keys: which messages a connection may send, and ENROL. */
#include <assert.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"

/* The session that a message names; 0: it names none. */
static uint64_t session_named(const struct msg *m)
{
    switch (m->type) {
    case MSG_BIND: return m->bind.session;
    case MSG_HEARTBEAT: return m->heartbeat.session;
    case MSG_EVAL_RESULT: return m->eval_result.session;
    case MSG_OFFER: return m->offer.session;
    case MSG_GET: return m->get.session;
    case MSG_METRICS: return m->metrics.session;
    case MSG_LEAVE: return m->leave.session;
    case MSG_SAVES: return m->saves.session;
    default: return 0; /* CHUNK belongs to the connection that BIND named */
    }
}

/* The uuid that a message speaks for; NULL: none, or an unknown session. */
static const uint8_t *uuid_named(const struct engine *e, const struct msg *m)
{
    if (m->type == MSG_HELLO) return m->hello.uuid;
    if (m->type == MSG_JOIN) return m->join.uuid;
    const struct session *s = session_by_id(&e->sessions, session_named(m));
    return s ? s->uuid : NULL;
}

/* What the secret of the join line may send. */
static bool is_open(enum msg_type type)
{
    return type == MSG_ENROL || type == MSG_STATUS || type == MSG_PROBE || type == MSG_MODEL || type == MSG_FETCH;
}

bool admission_may_send(struct engine *e, uint64_t peer, const struct msg *m)
{
    struct engine_peer p;
    if (!e->io.peer) return true;
    if (!e->io.peer(e->io.ctx, peer, &p)) return false;
    const char *name = p.name[0] ? p.name : NULL;
    const uint8_t *uuid = uuid_named(e, m);
    if (p.right == ENGINE_RIGHT_NONE)
        engine_refuse(e, peer, name, REFUSE_KEY, ADMISSION_REVOKED_TEXT);
    else if (p.right == ENGINE_RIGHT_ENROL && !is_open(m->type))
        engine_refuse(e, peer, name, REFUSE_KEY,
                      "the secret of the join line only enrols workers, asks for the status, probes the link and "
                      "follows the model, and %s came with it",
                      msg_name(m->type));
    else if (p.right == ENGINE_RIGHT_WORKER && uuid && memcmp(uuid, p.key, WIRE_UUID) != 0)
        engine_refuse(e, peer, name, REFUSE_KEY, "%s speaks for another worker than the key of its connection",
                      msg_name(m->type));
    else
        return true;
    if (e->io.drop) e->io.drop(e->io.ctx, peer);
    return false;
}

/* An active member owns its name, silent or not. So does a session that waits for the first round. */
static bool name_is_taken(const struct engine *e, const uint8_t uuid[WIRE_UUID], const char *name)
{
    const struct member_table *members = &e->ledger.round.members;
    const struct session *s = session_by_name(&e->sessions, name);
    if (s && memcmp(s->uuid, uuid, WIRE_UUID) != 0) return true;
    for (uint32_t i = 0; i < members->n; i++) {
        const struct member *m = members->members[i];
        if (m->active && !strcmp(m->name, name) && memcmp(m->uuid, uuid, WIRE_UUID) != 0) return true;
    }
    return false;
}

static bool refuse_name(struct engine *e, uint64_t peer, const uint8_t uuid[WIRE_UUID], const char *name)
{
    const struct session *s = session_by_name(&e->sessions, name);
    bool connected = s && !admission_is_silent(e, s);
    if (!name_is_taken(e, uuid, name)) return false;
    engine_refuse(e, peer, name, REFUSE_NAME,
                  connected
                      ? "another worker with the name '%s' is connected: choose another name (--name, or "
                        "name= in a script)"
                      : "the name '%s' belongs to a worker that is silent: choose another name (--name, or name= in "
                        "a script), or wait until "
                        "the run goes on without it",
                  name);
    return true;
}

/* The connected worker with the same uuid and another name: both use copies of one folder. NULL: none. */
static const struct session *original_of(const struct engine *e, const uint8_t uuid[WIRE_UUID], const char *name)
{
    const struct session *s = session_by_uuid(&e->sessions, uuid);
    return s && strcmp(s->name, name) != 0 && !admission_is_silent(e, s) ? s : NULL;
}

bool admission_refuses(struct engine *e, uint64_t peer, const uint8_t uuid[WIRE_UUID], const char *name)
{
    struct engine_peer p;
    if (refuse_name(e, peer, uuid, name)) return true;
    const struct session *original = original_of(e, uuid, name);
    if (original) {
        engine_refuse(e, peer, name, REFUSE_NAME,
                      "the folder of '%s' is a copy of the folder of '%s', which is connected: use another --dir", name,
                      original->name);
        return true;
    }
    if (e->io.peer && e->io.peer(e->io.ctx, peer, &p) && strcmp(p.name, name) != 0) {
        engine_refuse(e, peer, name, REFUSE_KEY,
                      "the key of '%s' is enrolled under the name '%s': use that --name, or another --dir", name,
                      p.name);
        return true;
    }
    return false;
}

void admission_enrol(struct engine *e, uint64_t peer, const struct msg_enrol *m)
{
    struct engine_peer p;
    struct err err = {0};
    char key[2 * WIRE_KEY + 1];
    if (!e->io.peer || !e->io.peer(e->io.ctx, peer, &p)) return;
    if (p.right == ENGINE_RIGHT_WORKER && memcmp(p.key, m->key, WIRE_KEY) != 0) {
        engine_refuse(e, peer, p.name, REFUSE_KEY, "a worker may not enrol another one");
        return;
    }
    if (!text_is_name(m->name, strlen(m->name))) {
        engine_refuse(e, peer, m->name, REFUSE_NAME,
                      "the name '%s' has invisible characters, shown as '?': choose another name (--name, or name= in "
                      "a script)",
                      m->name);
        return;
    }
    if (refuse_name(e, peer, m->key, m->name)) return;
    assert(e->io.enrol);
    enum status status = e->io.enrol(e->io.ctx, m->key, m->name, &err);
    if (status != STATUS_OK) {
        engine_refuse(e, peer, m->name, status == STATUS_REFUSED ? REFUSE_KEY : REFUSE_FULL, "%s", err.msg);
        return;
    }
    log_debug("enrolled %s with the key %s", m->name, number_hex_text(m->key, WIRE_KEY, key));
    struct msg reply = {.type = MSG_ENROLLED};
    memcpy(reply.enrolled.key, m->key, WIRE_KEY);
    if (engine_send(e, peer, WIRE_CONTROL, &reply) != STATUS_OK) log_debug("cannot send ENROLLED: it will be repeated");
}
