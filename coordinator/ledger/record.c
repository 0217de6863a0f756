#include "coordinator/ledger/record.h"

#include <assert.h>
#include <math.h>

#include "common/format/field_rows.h"
#include "wire/msg_table.h"

const struct field record_clock_fields[] = {
    U64(record_clock, elapsed_us), U64(record_clock, bytes_up),   U64(record_clock, bytes_down),
    U64(record_clock, other_up),   U64(record_clock, other_down), END,
};
const struct field record_run_fields[] = {
    BYTES(record_run, run_id),
    U64(record_run, config_hash),
    BLOB(record_run, config_text, config_size, 0, WIRE_CONFIG_MAX - 1),
    END,
};
static const struct field start[] = {END};
static const struct field model[] = {
    U64(record_model, train_hash),
    U64(record_model, val_hash),
    U64(record_model, train_samples),
    U64(record_model, val_samples),
    U32(record_model, sample_tokens),
    BLOB(record_model, layout, layout_size, 0, UINT32_MAX),
    BLOB(record_model, model_config, model_config_size, 0, WIRE_CONFIG_MAX - 1),
    COUNT(record_model, n_hashes, 0, LAYOUT_FRAGMENTS_MAX),
    LIST(record_model, hashes, n_hashes, wire_number, LAYOUT_FRAGMENTS_MAX),
    END,
};
static const struct field model_frozen[] = {
    BOOL(record_model, frozen_whole),
    BLOB(record_model, frozen, frozen_size, 0, UINT32_MAX),
    END,
};
static const struct field member[] = {
    U8(record_member, what, 0, RECORD_MEMBER_READMIT),
    U32(record_member, id),
    BYTES(record_member, uuid),
    LINE(record_member, name, 0),
    END,
};
static const struct field open_head[] = {
    STRUCT(record_open, clock, record_clock_fields),
    LIST(record_open, open.versions, n_fragments, wire_number, LAYOUT_FRAGMENTS_MAX),
    U32(record_open, open.n),
    END,
};
static const struct field grant[] = {
    U32(round_grant, id), U64(round_grant, round), WORK_STEPS(round_grant, 1), WORK_RANGES(round_grant), END,
};
static const struct field delta[] = {
    U32(record_delta, id),
    U32(record_delta, fragment),
    U64(record_delta, round),
    U64(record_delta, part.base_version),
    U64(record_delta, part.tokens),
    U64(record_delta, part.bytes),
    U64(record_delta, part.compute_us),
    F64_ANY(record_delta, part.loss_sum),
    U32(record_delta, part.steps),
    U32(record_delta, part.crc),
    F32_ANY(record_delta, part.norm),
    END,
};
static const struct field drop[] = {
    U32(record_drop, id),
    U32(record_drop, fragment),
    U64(record_drop, round),
    U16(record_drop, code, 0, UINT16_MAX),
    END,
};
static const struct field eval[] = {
    STRUCT(record_eval, clock, record_clock_fields),
    U64(record_eval, round),
    BOOLS(record_eval, final, by_one),
    F64_ANY(record_eval, loss_sum),
    U64(record_eval, tokens),
    END,
};
static const struct field val[] = {U64(record_val, hash), U64_IN(record_val, samples, 1, UINT64_MAX), END};
static const struct field grant_fields[] = {
    U64(round_upstream, round),
    WORK_STEPS(round_upstream, 1),
    BOOL(round_upstream, kept),
    WORK_RANGES(round_upstream),
    END,
};
static const struct field seal[] = {U64(record_seal, round), END};
static const struct field jump[] = {
    COUNT(record_jump, n_fragments, 1, LAYOUT_FRAGMENTS_MAX),
    LIST(record_jump, versions, n_fragments, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    END,
};
const struct field record_taken_fields[] = {
    U8(record_taken, what, 0, RECORD_TAKEN_EXCLUDE),
    U64(record_taken, time_s),
    U64(record_taken, round),
    U64(record_taken, before),
    LINE(record_taken, name, 0),
    END,
};

static const struct {
    const char *name;
    const struct field *fields, *more;
} records[] = {
    [RECORD_RUN] = {"RUN", record_run_fields, NULL},
    [RECORD_START] = {"START", start, NULL},
    [RECORD_MODEL] = {"MODEL", model, model_frozen},
    [RECORD_MEMBER] = {"MEMBER", member, NULL},
    [RECORD_OPEN] = {"OPEN", open_head, grant},
    [RECORD_DELTA] = {"DELTA", delta, NULL},
    [RECORD_DROP] = {"DROP", drop, NULL},
    [RECORD_UPDATE] = {"UPDATE", record_clock_fields, NULL},
    [RECORD_EVAL] = {"EVAL", eval, NULL},
    [RECORD_DONE] = {"DONE", record_clock_fields, NULL},
    [RECORD_VAL] = {"VAL", val, NULL},
    [RECORD_GRANT] = {"GRANT", grant_fields, NULL},
    [RECORD_SEAL] = {"SEAL", seal, NULL},
    [RECORD_JUMP] = {"JUMP", jump, NULL},
    [RECORD_CLOCK] = {"CLOCK", record_clock_fields, NULL},
    [RECORD_TAKEN] = {"TAKEN", record_taken_fields, NULL},
};

const char *record_name(uint16_t type)
{
    return type < sizeof records / sizeof *records ? records[type].name : NULL;
}

const struct field *record_fields(enum record_type type)
{
    return records[type].fields;
}

const struct field *record_more(enum record_type type)
{
    return records[type].more;
}

void record_encode(enum record_type type, const void *record, struct writer *w)
{
    fields_put(records[type].fields, record, w);
    if (type == RECORD_MODEL && ((const struct record_model *)record)->frozen) fields_put(model_frozen, record, w);
    if (type == RECORD_OPEN) {
        const struct round_open *open = &((const struct record_open *)record)->open;
        fields_put_all(grant, open->grants, sizeof *open->grants, open->n, w);
    }
}

size_t record_size(enum record_type type, const void *record)
{
    struct writer w = writer_counting();
    record_encode(type, record, &w);
    return w.pos;
}

static void read_grants(struct record_open *m, struct reader *r)
{
    if (m->open.n > m->cap) reader_fail(r);
    if (r->bad) m->open.n = 0;
    fields_read_all(grant, m->open.grants, sizeof *m->open.grants, m->open.n, r);
}

/* The payload is not read. */
static void skip_payload(const struct record_delta *m, struct reader *r)
{
    if (reader_left(r) && reader_left(r) != m->part.bytes) reader_fail(r);
    get_bytes(r, reader_left(r));
}

enum status record_decode(enum record_type type, void *record, const uint8_t *body, size_t size)
{
    struct reader r = reader_of(body, size);
    fields_read(records[type].fields, record, &r);
    if (type == RECORD_MODEL && reader_left(&r)) fields_read(model_frozen, record, &r);
    if (type == RECORD_OPEN) read_grants(record, &r);
    if (type == RECORD_DELTA) skip_payload(record, &r);
    if (type == RECORD_UPDATE) get_bytes(&r, reader_left(&r));
    if (type == RECORD_EVAL && isnan(((const struct record_eval *)record)->loss_sum)) return STATUS_CORRUPT;
    return reader_done(&r) ? STATUS_OK : STATUS_CORRUPT;
}
