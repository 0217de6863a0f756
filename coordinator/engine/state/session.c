#include "coordinator/engine/state/session.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "coordinator/outer/delta_measure.h"

enum status session_table_init(struct session_table *t, uint32_t cap, uint32_t n_fragments)
{
    assert(cap > 0 && n_fragments > 0);
    *t = (struct session_table){.cap = cap, .n_fragments = n_fragments};
    t->sessions = mem_alloc(cap, sizeof *t->sessions);
    return t->sessions ? STATUS_OK : STATUS_NOMEM;
}

void session_table_finish(struct session_table *t)
{
    for (uint32_t i = 0; t->sessions && i < t->cap; i++) session_remove(t, &t->sessions[i]);
    mem_free(t->sessions);
    memset(t, 0, sizeof *t);
}

bool session_table_full(const struct session_table *t)
{
    for (uint32_t i = 0; i < t->cap; i++)
        if (!t->sessions[i].id) return false;
    return true;
}

struct session *session_add(struct session_table *t, uint64_t id)
{
    assert(id);
    for (uint32_t i = 0; i < t->cap; i++) {
        struct session *s = &t->sessions[i];
        if (s->id) continue;
        assert(!s->uploads && !s->own);
        struct upload *uploads = mem_alloc(t->n_fragments, sizeof *uploads);
        struct session_own *own = mem_alloc(t->n_fragments, sizeof *own);
        if (!uploads || !own) {
            mem_free(uploads);
            mem_free(own);
            return NULL;
        }
        *s = (struct session){.id = id,
                              .member = SESSION_NO_MEMBER,
                              .control = SESSION_NO_PEER,
                              .bulk = SESSION_NO_PEER,
                              .uploads = uploads,
                              .own = own};
        return s;
    }
    return NULL;
}

void session_remove(struct session_table *t, struct session *s)
{
    assert(s >= t->sessions && s < t->sessions + t->cap);
    for (uint32_t f = 0; s->uploads && f < t->n_fragments; f++) upload_drop(&s->uploads[f], &t->uploads);
    mem_free(s->uploads);
    mem_free(s->own);
    memset(s, 0, sizeof *s);
}

struct session *session_next(const struct session_table *t, const struct session *s)
{
    for (uint32_t i = s ? (uint32_t)(s - t->sessions) + 1 : 0; i < t->cap; i++)
        if (t->sessions[i].id) return &t->sessions[i];
    return NULL;
}

struct session *session_by_id(const struct session_table *t, uint64_t id)
{
    for (struct session *s = NULL; (s = session_next(t, s));)
        if (s->id == id) return s;
    return NULL;
}

struct session *session_by_uuid(const struct session_table *t, const uint8_t uuid[WIRE_UUID])
{
    for (struct session *s = NULL; (s = session_next(t, s));)
        if (!memcmp(s->uuid, uuid, WIRE_UUID)) return s;
    return NULL;
}

struct session *session_after(const struct session_table *t, uint64_t id)
{
    for (struct session *s = NULL; (s = session_next(t, s));)
        if (s->before == id) return s;
    return NULL;
}

struct session *session_by_name(const struct session_table *t, const char *name)
{
    for (struct session *s = NULL; (s = session_next(t, s));)
        if (!strcmp(s->name, name)) return s;
    return NULL;
}

struct session *session_by_member(const struct session_table *t, uint32_t member)
{
    for (struct session *s = NULL; (s = session_next(t, s));)
        if (s->member == member) return s;
    return NULL;
}

struct session *session_by_bulk(const struct session_table *t, uint64_t peer)
{
    for (struct session *s = NULL; (s = session_next(t, s));)
        if (s->bulk == peer) return s;
    return NULL;
}

const char *session_state_name(uint8_t state)
{
    static const char *const names[] = {"catching up", "ready",      "training", "sending",
                                        "waiting",     "evaluating", "finished"};
    return state < sizeof names / sizeof *names ? names[state] : "?";
}
