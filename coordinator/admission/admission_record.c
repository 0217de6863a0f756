/* The MEMBER record: a worker gets, loses or keeps its place in the journal. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_round.h"

enum status admission_write_member(struct engine *e, enum record_member_what what, uint32_t id,
                                   const uint8_t uuid[WIRE_UUID], const char *name, struct err *err)
{
    struct record_member m = {.what = (uint8_t)what, .id = id};
    memcpy(m.uuid, uuid, WIRE_UUID);
    snprintf(m.name, sizeof m.name, "%s", name);
    return engine_write(e, RECORD_MEMBER, &m, NULL, err);
}

enum status admission_lose_place(struct engine *e, enum record_member_what what, const struct member *m,
                                 struct err *err)
{
    assert(what != RECORD_MEMBER_JOIN);
    if (!m || !m->active || e->ledger.done) return STATUS_OK;
    return admission_write_member(e, what, m->id, m->uuid, m->name, err);
}
