#include "coordinator/engine/state/session.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "coordinator/outer/delta_measure.h"

/* --- finding ------------------------------------------------------------------------------------------------------ */

static const uint64_t none = UINT64_MAX;

static enum status index_init(struct session_index *x, uint32_t cap)
{
    x->n_heads = 64;
    while (x->n_heads < cap) x->n_heads *= 2;
    x->heads = mem_alloc(x->n_heads, sizeof *x->heads);
    x->next = mem_alloc(cap + 1, sizeof *x->next);
    x->keys = mem_alloc(cap + 1, sizeof *x->keys);
    if (!x->heads || !x->next || !x->keys) return STATUS_NOMEM;
    for (uint32_t i = 0; i <= cap; i++) x->keys[i] = none;
    return STATUS_OK;
}

static void index_finish(struct session_index *x)
{
    mem_free(x->heads);
    mem_free(x->next);
    mem_free(x->keys);
}

static uint32_t *head_of(const struct session_index *x, uint64_t key)
{
    return &x->heads[(key * 0x9e3779b97f4a7c15u >> 32) & (x->n_heads - 1)];
}

/* Gives the slot another key; UINT64_MAX: none. */
static void index_set(struct session_index *x, uint32_t slot, uint64_t key)
{
    uint32_t *link = head_of(x, x->keys[slot]);
    if (x->keys[slot] != none) {
        while (*link != slot) link = &x->next[*link];
        *link = x->next[slot];
    }
    x->keys[slot] = key;
    if (key == none) return;
    uint32_t *head = head_of(x, key);
    x->next[slot] = *head;
    *head = slot;
}

/* 0: not found. */
static uint32_t index_find(const struct session_index *x, uint64_t key)
{
    if (!x->n_heads || key == none) return 0;
    uint32_t slot = *head_of(x, key);
    while (slot && x->keys[slot] != key) slot = x->next[slot];
    return slot;
}

static uint32_t slot_of(const struct session_table *t, const struct session *s)
{
    assert(s >= t->sessions && s < t->sessions + t->cap);
    return (uint32_t)(s - t->sessions) + 1;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

enum status session_table_init(struct session_table *t, uint32_t cap, uint32_t n_fragments)
{
    assert(cap > 0 && cap <= SESSIONS_MAX && n_fragments > 0);
    *t = (struct session_table){.cap = cap, .n_fragments = n_fragments, .words = (cap + 63) / 64};
    t->sessions = mem_alloc(cap, sizeof *t->sessions);
    t->to_serve = mem_alloc(t->words, sizeof *t->to_serve);
    t->spooled = mem_alloc((size_t)t->words * n_fragments, sizeof *t->spooled);
    enum status member = index_init(&t->by_member, cap), bulk = index_init(&t->by_bulk, cap);
    if (t->sessions && t->to_serve && t->spooled && member == STATUS_OK && bulk == STATUS_OK) return STATUS_OK;
    session_table_finish(t);
    return STATUS_NOMEM;
}

void session_table_finish(struct session_table *t)
{
    for (uint32_t i = 0; t->sessions && i < t->cap; i++)
        if (t->sessions[i].id) session_remove(t, &t->sessions[i]);
    index_finish(&t->by_member);
    index_finish(&t->by_bulk);
    mem_free(t->sessions);
    mem_free(t->to_serve);
    mem_free(t->spooled);
    memset(t, 0, sizeof *t);
}

bool session_table_full(const struct session_table *t)
{
    for (uint32_t i = 0; i < t->cap; i++)
        if (!t->sessions[i].id) return false;
    return true;
}

struct session *session_add(struct session_table *t, uint64_t random)
{
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
        *s = (struct session){.id = (random & ~(uint64_t)SESSIONS_MAX) | (i + 1),
                              .member = SESSION_NO_MEMBER,
                              .control = SESSION_NO_PEER,
                              .bulk = SESSION_NO_PEER,
                              .uploads = uploads,
                              .own = own};
        t->changes++;
        return s;
    }
    return NULL;
}

void session_remove(struct session_table *t, struct session *s)
{
    uint32_t slot = slot_of(t, s);
    for (uint32_t f = 0; s->uploads && f < t->n_fragments; f++) session_upload_drop(t, f, &s->uploads[f]);
    index_set(&t->by_member, slot, none);
    index_set(&t->by_bulk, slot, none);
    session_serve(t, s, false);
    t->changes++;
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
    uint64_t slot = id & SESSIONS_MAX;
    if (!slot || slot > t->cap || t->sessions[slot - 1].id != id) return NULL;
    return &t->sessions[slot - 1];
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

static struct session *at(const struct session_table *t, uint32_t slot)
{
    return slot ? &t->sessions[slot - 1] : NULL;
}

struct session *session_by_member(const struct session_table *t, uint32_t member)
{
    return at(t, index_find(&t->by_member, member));
}

struct session *session_by_bulk(const struct session_table *t, uint64_t peer)
{
    return at(t, index_find(&t->by_bulk, peer));
}

void session_seat(struct session_table *t, struct session *s, uint32_t member)
{
    assert(member != SESSION_NO_MEMBER && !session_by_member(t, member));
    s->member = member;
    index_set(&t->by_member, slot_of(t, s), member);
}

void session_bind(struct session_table *t, struct session *s, uint64_t peer)
{
    s->bulk = peer;
    index_set(&t->by_bulk, slot_of(t, s), peer);
}

/* --- uploads ------------------------------------------------------------------------------------------------------ */

static void give_place(struct session_table *t, struct upload *u)
{
    if (t->held) held_give(t->held, u->place);
    u->place = 0;
}

struct upload *session_upload(struct session_table *t, struct session *s, const struct msg_offer *offer)
{
    uint64_t *used = t->spooled + (size_t)offer->fragment * t->words;
    struct upload *u = &s->uploads[offer->fragment];
    uint32_t word = 0, slot = u->slot;
    assert(offer->fragment < t->n_fragments);
    if (!u->active) {
        while (used[word] == UINT64_MAX) word++; /* each session has at most one upload of this fragment */
        slot = 64 * word + (uint32_t)__builtin_ctzll(~used[word]);
        assert(slot < t->cap);
        used[word] |= UINT64_C(1) << slot % 64;
    }
    bool goes_on = upload_continues(u, offer);
    if (!goes_on) give_place(t, u);
    upload_start(u, &t->uploads, offer, slot);
    if (!goes_on && t->held && offer->bytes) u->place = held_take(t->held, offer->bytes);
    return u;
}

void session_upload_drop(struct session_table *t, uint32_t fragment, struct upload *u)
{
    uint64_t *used = t->spooled + (size_t)fragment * t->words;
    give_place(t, u);
    if (u->active) used[u->slot / 64] &= ~(UINT64_C(1) << u->slot % 64);
    upload_drop(u, &t->uploads);
}

/* --- downloads ---------------------------------------------------------------------------------------------------- */

void session_serve(struct session_table *t, const struct session *s, bool serve)
{
    uint32_t i = slot_of(t, s) - 1;
    uint64_t bit = UINT64_C(1) << i % 64;
    t->to_serve[i / 64] = serve ? t->to_serve[i / 64] | bit : t->to_serve[i / 64] & ~bit;
}

struct session *session_next_to_serve(const struct session_table *t, const struct session *s)
{
    uint32_t i = s ? slot_of(t, s) : 0;
    for (uint32_t word = i / 64; word < t->words; word++, i = 64 * word) {
        uint64_t bits = t->to_serve[word] >> i % 64;
        if (bits) return &t->sessions[i + (uint32_t)__builtin_ctzll(bits)];
    }
    return NULL;
}

const char *session_state_name(uint8_t state)
{
    static const char *const names[] = {"catching up", "ready",      "training", "sending",
                                        "waiting",     "evaluating", "finished"};
    return state < sizeof names / sizeof *names ? names[state] : "?";
}
