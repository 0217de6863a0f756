#include "coordinator/round/member.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/median.h"
#include "common/base/mem.h"

void member_table_init(struct member_table *t, uint32_t n_fragments)
{
    *t = (struct member_table){.n_fragments = n_fragments};
}

static void member_destroy(struct member *m)
{
    if (!m) return;
    mem_free(m->merged);
    mem_free(m->merged_in);
    mem_free(m->have);
    mem_free(m->last);
    mem_free(m->work.versions);
    mem_free(m->work.parts);
    mem_free(m);
}

void member_table_finish(struct member_table *t)
{
    for (uint32_t i = 0; i < t->n; i++) member_destroy(t->members[i]);
    mem_free(t->members);
    memset(t, 0, sizeof *t);
}

static struct member *member_create(uint32_t n_fragments)
{
    struct member *m = mem_alloc(1, sizeof *m);
    if (!m) return NULL;
    m->n_fragments = n_fragments;
    m->merged = mem_alloc(n_fragments, sizeof *m->merged);
    m->merged_in = mem_alloc(n_fragments, sizeof *m->merged_in);
    m->have = mem_alloc(n_fragments, sizeof *m->have);
    m->last = mem_alloc(n_fragments, sizeof *m->last);
    m->work.versions = mem_alloc(n_fragments, sizeof *m->work.versions);
    m->work.parts = mem_alloc(n_fragments, sizeof *m->work.parts);
    if (m->merged && m->merged_in && m->have && m->last && m->work.versions && m->work.parts) return m;
    member_destroy(m);
    return NULL;
}

enum status member_add(struct member_table *t, const uint8_t uuid[WIRE_UUID], const char *name,
                       struct member **member_p)
{
    if (t->n == MEMBERS_MAX) return STATUS_LIMIT;
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 8;
        struct member **grown = mem_resize(t->members, t->cap * sizeof *grown, cap * sizeof *grown);
        if (!grown) return STATUS_NOMEM;
        t->members = grown;
        t->cap = cap;
    }
    struct member *m = member_create(t->n_fragments);
    if (!m) return STATUS_NOMEM;
    assert(t->n < t->cap && !m->work.open);
    m->id = t->n;
    m->active = true;
    memcpy(m->uuid, uuid, WIRE_UUID);
    snprintf(m->name, sizeof m->name, "%s", name);
    t->members[t->n++] = m;
    *member_p = m;
    return STATUS_OK;
}

bool member_is_vacant(const struct member *m)
{
    return !m->active && !m->work.open && !m->tokens;
}

void member_replace(struct member *m, const uint8_t uuid[WIRE_UUID], const char *name)
{
    assert(member_is_vacant(m) && !m->steps && !m->in_step);
    struct member fresh = {.id = m->id, .n_fragments = m->n_fragments, .active = true, .next_round = m->next_round};
    fresh.merged = m->merged;
    fresh.merged_in = m->merged_in;
    fresh.have = m->have;
    fresh.last = m->last;
    fresh.work.versions = m->work.versions;
    fresh.work.parts = m->work.parts;
    for (uint32_t f = 0; f < m->n_fragments; f++) {
        assert(!m->merged[f] && !m->merged_in[f]);
        m->have[f] = 0;
        m->last[f] = (struct gate_sample){0};
        m->work.versions[f] = 0;
        m->work.parts[f] = (struct part){0};
    }
    memcpy(fresh.uuid, uuid, WIRE_UUID);
    snprintf(fresh.name, sizeof fresh.name, "%s", name);
    *m = fresh;
}

uint32_t member_free_place(const struct member_table *t)
{
    for_each_member(t, m) {
        if (member_is_vacant(m)) return m->id;
    }
    return t->n < MEMBERS_MAX ? t->n : UINT32_MAX;
}

struct member *member_by_id(const struct member_table *t, uint32_t id)
{
    assert(id >= t->n || t->members[id]->id == id);
    return id < t->n ? t->members[id] : NULL;
}

struct member *member_by_uuid(const struct member_table *t, const uint8_t uuid[WIRE_UUID])
{
    for_each_member(t, m) {
        if (!memcmp(m->uuid, uuid, WIRE_UUID)) return m;
    }
    return NULL;
}

uint32_t member_count_active(const struct member_table *t)
{
    return t->n_active;
}

bool member_has(const struct member *m, uint32_t fragment, enum part_state state)
{
    return m->work.open && m->work.parts[fragment].state == state;
}

bool member_waits(const struct member *m)
{
    return m->work.open && m->work.waited;
}

struct member *member_next(const struct member_table *t, const struct member *m)
{
    uint32_t i = m ? m->id + 1 : 0;
    return i < t->n ? t->members[i] : NULL;
}

enum { SPEEDS_LEAST = 3 };

static const double speed_window_s = 10;

void member_speed_add(struct member_speed *s, const struct member_times *times, uint32_t steps)
{
    double step[MEMBER_SPEEDS], down[MEMBER_SPEEDS], up[MEMBER_SPEEDS], covered_s = 0;
    uint32_t n = 0;
    assert(s->next < MEMBER_SPEEDS && s->n <= MEMBER_SPEEDS && times->step_s >= 0 && steps > 0);
    s->at[s->next].times = *times;
    s->at[s->next].all_s = times->step_s * steps;
    s->next = (s->next + 1) % MEMBER_SPEEDS;
    if (s->n < MEMBER_SPEEDS) s->n++;
    for (; n < s->n && (n < SPEEDS_LEAST || covered_s < speed_window_s); n++) {
        uint32_t i = (s->next + MEMBER_SPEEDS - 1 - n) % MEMBER_SPEEDS;
        covered_s += s->at[i].all_s;
        step[n] = s->at[i].times.step_s;
        down[n] = s->at[i].times.down_s;
        up[n] = s->at[i].times.up_s;
    }
    s->usual = (struct member_times){median_of(step, n), median_of(down, n), median_of(up, n)};
}
