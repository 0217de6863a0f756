#include "wire/msg_table.h"

#include "common/format/field_rows.h"

const struct field wire_number[] = {{.name = "number", .kind = FIELD_U64, .max = UINT64_MAX}, END};
static const struct field part[] = {F64_ANY(wire_part, sum), U64(wire_part, tokens), END};
const struct field wire_version_fields[] = {U64(wire_version, version), U64(wire_version, hash), END};
const struct field wire_range_fields[] = {U64(wire_range, start), U64(wire_range, count), END};
static const struct field step[] = {
    U64(metrics_step, round),    U32(metrics_step, step),
    F64(metrics_step, position), F32_ANY(metrics_step, loss),
    F32(metrics_step, lr),       F32_ANY(metrics_step, grad_norm),
    U64(metrics_step, tokens),   U32(metrics_step, step_us),
    U64(metrics_step, age_us),   END,
};

static const struct field hello[] = {
    BYTES(msg_hello, uuid), BYTES(msg_hello, run_id), LINE(msg_hello, name, 1), LINE(msg_hello, software, 0), END,
};
static const struct field config[] = {
    BYTES(msg_config, run_id),
    U64(msg_config, config_hash),
    TEXT(msg_config, text, WIRE_CONFIG_MAX - 1),
    END,
};
static const struct field join[] = {
    BYTES(msg_join, uuid),
    LINE(msg_join, name, 1),
    U64(msg_join, config_hash),
    U64(msg_join, layout_hash),
    U64(msg_join, train_hash),
    U64(msg_join, val_hash),
    U64(msg_join, train_samples),
    U64(msg_join, val_samples),
    U32(msg_join, sample_tokens),
    U32(msg_join, ranks),
    LINE(msg_join, devices, 0),
    U64(msg_join, round),
    COUNT(msg_join, n_held, 0, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_join, held, n_held, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    BLOB(msg_join, layout, layout_size, 1, WIRE_BODY_MAX),
    TEXT(msg_join, model_config, WIRE_CONFIG_MAX - 1),
    BOOL(msg_join, frozen_any),
    BOOL(msg_join, frozen_whole),
    BLOB(msg_join, frozen, frozen_size, 0, WIRE_BODY_MAX),
    END,
};
static const struct field welcome[] = {
    U64(msg_welcome, session),
    U32(msg_welcome, worker_id),
    U32_IN(msg_welcome, heartbeat_ms, 1, UINT32_MAX),
    BOOL(msg_welcome, resume),
    BOOLS(msg_welcome, shorter, taken_back),
    U64(msg_welcome, assigned),
    COUNT(msg_welcome, n_fragments, 1, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_welcome, current, n_fragments, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_welcome, snapshot, n_fragments, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    END,
};
/* REFUSE is decoded in every protocol version: unknown codes must pass, because the text explains them. */
static const struct field refuse[] = {U16(msg_refuse, code, 1, UINT16_MAX), REMARK(msg_refuse, text), END};
static const struct field bind[] = {U64(msg_bind, session), END};
static const struct field heartbeat[] = {
    U64(msg_heartbeat, session),
    U64(msg_heartbeat, sent_us),
    U64(msg_heartbeat, round),
    U32(msg_heartbeat, step),
    U32(msg_heartbeat, steps),
    U8(msg_heartbeat, state, 0, WORKER_FINISHED),
    F64(msg_heartbeat, step_s),
    U64(msg_heartbeat, eval_id),
    U64(msg_heartbeat, train_hash),
    U64(msg_heartbeat, val_hash),
    COUNT(msg_heartbeat, n_fragments, 0, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_heartbeat, versions, n_fragments, wire_number, LAYOUT_FRAGMENTS_MAX),
    U64(msg_heartbeat, received),
    U64(msg_heartbeat, expected),
    U64(msg_heartbeat, rate),
    U32_IN(msg_heartbeat, workers, 1, WIRE_REGION_MAX),
    END,
};
static const struct field heartbeat_ack[] = {
    U64(msg_heartbeat_ack, sent_us),
    REMARK(msg_heartbeat_ack, waiting_for),
    END,
};
static const struct field assign[] = {
    U64(msg_assign, round),
    U32(msg_assign, worker_id),
    WORK_STEPS(msg_assign, 1),
    F64_ANY(msg_assign, lr),
    F64_ANY(msg_assign, epoch),
    WORK_RANGES(msg_assign),
    COUNT(msg_assign, n_fragments, 1, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_assign, versions, n_fragments, wire_number, LAYOUT_FRAGMENTS_MAX),
    END,
};
static const struct field eval[] = {
    U64_IN(msg_eval, eval_id, 1, UINT64_MAX),
    U64(msg_eval, start),
    U64(msg_eval, count),
    U64_IN(msg_eval, part, 1, UINT64_MAX),
    U64_IN(msg_eval, wanted, 1, UINT64_MAX),
    COUNT(msg_eval, n_fragments, 1, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_eval, versions, n_fragments, wire_number, LAYOUT_FRAGMENTS_MAX),
    END,
};
static const struct field eval_result[] = {
    U64(msg_eval_result, session),
    U64_IN(msg_eval_result, eval_id, 1, UINT64_MAX),
    U64(msg_eval_result, start),
    U64(msg_eval_result, count),
    F64_ANY(msg_eval_result, loss_sum),
    U64(msg_eval_result, tokens),
    COUNT(msg_eval_result, n_parts, 0, WIRE_PARTS_MAX),
    LIST(msg_eval_result, parts, n_parts, part, WIRE_PARTS_MAX),
    END,
};
static const struct field offer[] = {
    U64(msg_offer, session),
    U64(msg_offer, round),
    U32_IN(msg_offer, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U8(msg_offer, form, 0, DELTA_GRADIENT),
    U64(msg_offer, base_version),
    U64_IN(msg_offer, bytes, 1, UINT64_MAX),
    U32(msg_offer, crc),
    U64(msg_offer, tokens),
    U32(msg_offer, steps),
    F64_ANY(msg_offer, loss_sum),
    F32(msg_offer, norm),
    U64(msg_offer, compute_us),
    END,
};
static const struct field credit[] = {
    U64(msg_credit, round),
    U32_IN(msg_credit, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U64(msg_credit, have),
    U64(msg_credit, upto),
    END,
};
static const struct field reject[] = {
    U64(msg_reject, round),
    U32_IN(msg_reject, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U16(msg_reject, code, REJECT_LATE, REJECT_LAST),
    REMARK(msg_reject, text),
    END,
};
static const struct field get[] = {
    U64(msg_get, session),
    U8(msg_get, kind, OBJECT_UPDATE, OBJECT_SNAPSHOT),
    U32_IN(msg_get, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U64(msg_get, version),
    U64(msg_get, offset),
    U64_IN(msg_get, length, 1, UINT64_MAX),
    END,
};
static const struct field chunk[] = {
    U8(msg_chunk, kind, OBJECT_DELTA, OBJECT_INITIAL),
    U32_IN(msg_chunk, fragment, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U64(msg_chunk, key),
    U64(msg_chunk, offset),
    U64(msg_chunk, total),
    U32(msg_chunk, crc),
    BLOB(msg_chunk, data, size, 1, WIRE_CHUNK_MAX),
    END,
};
static const struct field metrics[] = {
    U64(msg_metrics, session),
    U64(msg_metrics, bytes_up),
    U64(msg_metrics, bytes_down),
    U64(msg_metrics, round),
    F32(msg_metrics, compute_s),
    F32(msg_metrics, compress_s),
    F32(msg_metrics, send_s),
    F32(msg_metrics, wait_s),
    F32(msg_metrics, apply_s),
    COUNT(msg_metrics, n_steps, 0, WIRE_METRICS_MAX),
    LIST(msg_metrics, steps, n_steps, step, WIRE_METRICS_MAX),
    END,
};
static const struct field leave[] = {U64(msg_leave, session), BOOL(msg_leave, finished), REMARK(msg_leave, text), END};
static const struct field done[] = {
    COUNT(msg_done, n_fragments, 0, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_done, final, n_fragments, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    REMARK(msg_done, text),
    END,
};
static const struct field status[] = {END};
static const struct field status_reply[] = {TEXT(msg_status_reply, json, WIRE_STATUS_MAX - 1), END};
static const struct field enrol[] = {BYTES(msg_enrol, key), LINE(msg_enrol, name, 1), END};
static const struct field enrolled[] = {BYTES(msg_enrolled, key), END};
static const struct field upload[] = {
    U64(msg_upload, upload), U64(msg_upload, have), U64(msg_upload, upto), REMARK(msg_upload, text), END,
};

static const struct field probe[] = {
    U64(msg_probe, id),
    U32_IN(msg_probe, want, 0, WIRE_PROBE_MAX),
    BLOB(msg_probe, data, size, 0, WIRE_PROBE_MAX),
    END,
};
static const struct field probe_reply[] = {
    U64(msg_probe_reply, id),
    U32(msg_probe_reply, wait_s),
    BLOB(msg_probe_reply, data, size, 0, WIRE_PROBE_MAX),
    END,
};

static const struct field saves[] = {
    U64(msg_saves, session), U32_IN(msg_saves, every, 1, UINT32_MAX), U32(msg_saves, worst), U64(msg_saves, round), END,
};
static const struct field note[] = {REMARK(msg_note, text), END};

static const struct field model[] = {END};
static const struct field model_reply[] = {
    BYTES(msg_model_reply, run_id),
    LINE(msg_model_reply, run, 0),
    U64(msg_model_reply, round),
    U64(msg_model_reply, rounds),
    BOOL(msg_model_reply, done),
    U64(msg_model_reply, snapshot_round),
    U64(msg_model_reply, bytes),
    COUNT(msg_model_reply, n_fragments, 0, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_model_reply, current, n_fragments, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    LIST(msg_model_reply, snapshot, n_fragments, wire_version_fields, LAYOUT_FRAGMENTS_MAX),
    REMARK(msg_model_reply, waiting_for),
    END,
};
static const struct field fetch[] = {
    U64(msg_fetch, id),
    U8(msg_fetch, kind, FETCH_UPDATE, FETCH_FILE),
    U32_IN(msg_fetch, index, 0, LAYOUT_FRAGMENTS_MAX - 1),
    U64(msg_fetch, version),
    U64(msg_fetch, offset),
    U32_IN(msg_fetch, want, 1, WIRE_FETCH_MAX),
    END,
};
static const struct field fetch_reply[] = {
    U64(msg_fetch_reply, id),
    U32(msg_fetch_reply, wait_ms),
    U64(msg_fetch_reply, total),
    BLOB(msg_fetch_reply, data, size, 0, WIRE_FETCH_MAX),
    END,
};

/* A range whose end does not fit in 64 bits would wrap in every later sum. */
static bool range_wraps(uint64_t start, uint64_t count)
{
    return count > UINT64_MAX - start;
}

static const char *check_assign(const void *body)
{
    const struct msg_assign *m = body;
    for (uint32_t i = 0; i < m->n_ranges; i++)
        if (range_wraps(m->ranges[i].start, m->ranges[i].count)) return "range ends beyond 64 bits";
    return NULL;
}

static const char *check_eval(const void *body)
{
    const struct msg_eval *m = body;
    uint64_t n = msg_eval_parts(m->count, m->part);
    if (n > WIRE_PARTS_MAX) return "more parts than a result holds";
    if (m->wanted & ~msg_eval_all(n)) return "a wanted part is beyond the windows";
    return range_wraps(m->start, m->count) ? "range ends beyond 64 bits" : NULL;
}

static const char *check_eval_result(const void *body)
{
    const struct msg_eval_result *m = body;
    return range_wraps(m->start, m->count) ? "range ends beyond 64 bits" : NULL;
}

static const char *check_get(const void *body)
{
    const struct msg_get *m = body;
    return range_wraps(m->offset, m->length) ? "range ends beyond 64 bits" : NULL;
}

static const char *check_chunk(const void *body)
{
    const struct msg_chunk *m = body;
    return m->size > m->total || m->offset > m->total - m->size ? "data ends beyond the object" : NULL;
}

const struct msg_spec *msg_spec_of(unsigned type)
{
    static const struct msg_spec specs[] = {
        [MSG_HELLO] = {hello, NULL},
        [MSG_CONFIG] = {config, NULL},
        [MSG_JOIN] = {join, NULL},
        [MSG_WELCOME] = {welcome, NULL},
        [MSG_REFUSE] = {refuse, NULL},
        [MSG_BIND] = {bind, NULL},
        [MSG_HEARTBEAT] = {heartbeat, NULL},
        [MSG_HEARTBEAT_ACK] = {heartbeat_ack, NULL},
        [MSG_ASSIGN] = {assign, check_assign},
        [MSG_EVAL] = {eval, check_eval},
        [MSG_EVAL_RESULT] = {eval_result, check_eval_result},
        [MSG_OFFER] = {offer, NULL},
        [MSG_CREDIT] = {credit, NULL},
        [MSG_REJECT] = {reject, NULL},
        [MSG_GET] = {get, check_get},
        [MSG_CHUNK] = {chunk, check_chunk},
        [MSG_METRICS] = {metrics, NULL},
        [MSG_LEAVE] = {leave, NULL},
        [MSG_DONE] = {done, NULL},
        [MSG_STATUS] = {status, NULL},
        [MSG_STATUS_REPLY] = {status_reply, NULL},
        [MSG_ENROL] = {enrol, NULL},
        [MSG_ENROLLED] = {enrolled, NULL},
        [MSG_UPLOAD] = {upload, NULL},
        [MSG_PROBE] = {probe, NULL},
        [MSG_PROBE_REPLY] = {probe_reply, NULL},
        [MSG_NOTE] = {note, NULL},
        [MSG_MODEL] = {model, NULL},
        [MSG_MODEL_REPLY] = {model_reply, NULL},
        [MSG_FETCH] = {fetch, NULL},
        [MSG_FETCH_REPLY] = {fetch_reply, NULL},
        [MSG_SAVES] = {saves, NULL},
    };
    bool known = type < sizeof specs / sizeof specs[0] && specs[type].fields;
    return known ? &specs[type] : NULL;
}
