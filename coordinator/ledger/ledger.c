#include "coordinator/ledger/ledger.h"

#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "coordinator/ledger/place/state_file.h"
#include "coordinator/ledger/update_compute.h"

enum status ledger_init(struct ledger *l, struct config *config, const char *init_dir, struct err *err)
{
    *l = (struct ledger){.config = config, .init_dir = init_dir, .state_file = -1};
    l->named = mem_alloc(WIRE_NAMED_MAX, sizeof *l->named);
    return l->named ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the ledger");
}

void ledger_finish(struct ledger *l)
{
    if (l->modelled) {
        outer_state_finish(&l->outer);
        round_finish(&l->round);
        layout_finish(&l->layout);
    }
    update_log_finish(&l->log);
    mem_free(l->initial);
    if (l->placed && l->state_file >= 0) close(l->state_file);
    held_finish(&l->held);
    mem_free(l->config_text);
    frozen_finish(&l->frozen);
    mem_free(l->model_record);
    mem_free(l->model_config);
    mem_free(l->grants);
    mem_free(l->named);
    memset(l, 0, sizeof *l);
}

static char *copy_text(const char *text, size_t size)
{
    char *copy = mem_alloc(1, size + 1);
    if (copy) memcpy(copy, text, size);
    return copy;
}

/* Takes the keys that belong to the run from its settings' text. */
static enum status take_config(struct ledger *l, const char *text, size_t size, struct err *err)
{
    struct config *then = mem_alloc(1, sizeof *then);
    struct config_sources sources;
    struct err why = {0};
    if (!then) return err_set(err, STATUS_NOMEM, "no memory for the run's settings");
    config_defaults(then, &sources);
    enum status status = config_parse(then, &sources, text, size, "settings", CONFIG_FILE, &why);
    if (then->outer.state == OUTER_AUTO) then->outer.state = OUTER_FP32; /* of a release without the key */
    if (status == STATUS_OK)
        config_take_run(l->config, then);
    else
        status = err_set(
            err, STATUS_UNSUPPORTED,
            "this program cannot read the settings of the run (%s): continue with the release that began it", why.msg);
    mem_free(then);
    return status;
}

static void note_earlier(struct ledger *l)
{
    if (l->n_earlier == LEDGER_EARLIER_MAX) {
        memmove(l->earlier + 1, l->earlier + 2, (LEDGER_EARLIER_MAX - 2) * sizeof *l->earlier);
        l->n_earlier--;
    }
    l->earlier[l->n_earlier++] = l->config_hash;
    assert(l->n_earlier <= LEDGER_EARLIER_MAX);
}

enum status ledger_set_run(struct ledger *l, const struct record_run *run, struct err *err)
{
    if (l->modelled && memcmp(l->run_id, run->run_id, WIRE_UUID) != 0) return STATUS_STATE;
    char *text = copy_text(run->config_text, run->config_size);
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for the run's settings");
    enum status status = take_config(l, text, run->config_size, err);
    if (status != STATUS_OK) {
        mem_free(text);
        return status;
    }
    mem_free(l->config_text);
    l->config_text = text;
    if (l->modelled) note_earlier(l);
    memcpy(l->run_id, run->run_id, WIRE_UUID);
    l->config_hash = config_run_hash(l->config);
    l->begun = true;
    return STATUS_OK;
}

void ledger_place(struct ledger *l, const struct layout *layout)
{
    if (l->placed) return;
    l->placed = true;
    if (l->folder) l->state_file = state_file_open(l->folder, l->config, layout);
}

enum status ledger_set_model(struct ledger *l, const uint8_t *body, size_t size, struct err *err)
{
    if (l->modelled || !l->begun) return STATUS_STATE;
    l->model_record = mem_alloc(1, size);
    if (!l->model_record) return err_set(err, STATUS_NOMEM, "no memory for the model's description");
    memcpy(l->model_record, body, size);
    l->model_record_size = size;
    TRY(record_decode(RECORD_MODEL, &l->model, l->model_record, size));
    l->model_config = copy_text(l->model.model_config, l->model.model_config_size);
    enum status listed = frozen_decode(&l->frozen, l->model.frozen, l->model.frozen_size);
    if (!l->model_config || listed == STATUS_NOMEM)
        return err_set(err, STATUS_NOMEM, "no memory for the model's description");
    TRY(listed);
    struct reader r = reader_of(l->model.layout, l->model.layout_size);
    layout_init(&l->layout);
    enum status status = layout_decode(&l->layout, &r);
    if (status == STATUS_OK && !reader_done(&r)) status = STATUS_CORRUPT;
    if (status == STATUS_OK && l->layout.n_fragments != l->model.n_hashes) status = STATUS_CORRUPT;
    if (status != STATUS_OK) {
        layout_finish(&l->layout);
        return status;
    }
    assert(l->layout.n_fragments > 0 && l->layout.n_fragments <= LAYOUT_FRAGMENTS_MAX);
    round_init(&l->round, l->config, l->layout.n_fragments);
    if (l->region) round_follow(&l->round);
    l->round.first_mean = layout_first_mean(&l->layout);
    l->modelled = true; /* from here on ledger_finish cleans up */
    float *theta = l->initial;
    l->initial = NULL;
    ledger_place(l, &l->layout);
    TRY(outer_state_init_with(&l->outer, l->config, &l->layout, l->state_file, theta, err));
    if (l->region) outer_state_follow(&l->outer);
    return STATUS_OK;
}

enum status ledger_room(struct ledger *l)
{
    uint32_t need = l->round.members.n + 1;
    if (need <= l->cap_grants) return STATUS_OK;
    struct round_grant *grown = mem_alloc(2 * (size_t)need, sizeof *grown);
    if (!grown) return STATUS_NOMEM;
    mem_free(l->grants);
    l->grants = grown;
    l->cap_grants = 2 * need;
    assert(l->cap_grants > l->round.members.n);
    return STATUS_OK;
}

/* --- folds of the small records ----------------------------------------------------------------------------------- */

/* The decoded body of a small record; OPEN and MODEL are decoded into the ledger's own memory. */
union small {
    struct record_run run;
    struct record_member member;
    struct record_delta delta;
    struct record_drop drop;
    struct record_eval eval;
    struct record_clock clock;
    struct record_val val;
    struct round_upstream grant;
    struct record_seal seal;
    struct record_jump jump;
    struct record_taken taken;
};

/* With a model: a change of settings (--change). The run may then be longer than before. */
static enum status fold_run(struct ledger *l, const struct record_run *run, struct err *err)
{
    TRY(ledger_set_run(l, run, err));
    if (!l->modelled) return STATUS_OK;
    round_fold_settings(&l->round, l->config);
    if (round_over(&l->round)) return STATUS_OK;
    l->done = l->eval_final = false;
    return STATUS_OK;
}

static enum status fold_start(struct ledger *l, size_t size)
{
    if (size || !l->begun) return STATUS_CORRUPT;
    if (!l->done) l->starts++; /* a start after the end of the run continues nothing */
    return STATUS_OK;
}

static enum status fold_model(struct ledger *l, const struct journal_record *record, struct err *err)
{
    bool computed = l->initial != NULL;
    TRY(ledger_set_model(l, record->body, record->size, err));
    l->absent = l->region;
    if (l->region) return STATUS_OK; /* JUMP follows */
    if (computed)
        outer_state_rehash(&l->outer);
    else
        TRY(outer_state_fill(&l->outer, l->init_dir, err));
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        if (l->outer.fragments[f].hash != l->model.hashes[f])
            return err_set(err, STATUS_MISMATCH, "the initial parameters differ from those this run started with%s%s",
                           l->init_dir ? ": restore the files in " : "", l->init_dir ? l->init_dir : "");
        TRY(update_log_start(&l->log, f, 0, l->outer.fragments[f].hash));
    }
    return STATUS_OK;
}

/* The caller has the parameters: it clears `absent`. */
static enum status fold_jump(struct ledger *l, const struct record_jump *jump)
{
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    if (!l->region || jump->n_fragments != l->layout.n_fragments) return STATUS_STATE;
    for (uint32_t f = 0; f < jump->n_fragments; f++) {
        versions[f] = jump->versions[f].version;
        l->outer.fragments[f].hash = jump->versions[f].hash;
        TRY(update_log_start(&l->log, f, versions[f], jump->versions[f].hash));
    }
    round_fold_jump(&l->round, versions);
    l->absent = true;
    return STATUS_OK;
}

/* Also changes the record of the model, which checkpoints contain. */
static enum status fold_val(struct ledger *l, const struct record_val *val)
{
    if (l->model.val_samples) return STATUS_STATE;
    struct writer w = writer_of(l->model_record, l->model_record_size);
    l->model.val_hash = val->hash;
    l->model.val_samples = val->samples;
    record_encode(RECORD_MODEL, &l->model, &w);
    assert(!w.bad && w.pos == l->model_record_size);
    return STATUS_OK;
}

static enum status fold_member(struct round *round, const struct record_member *m)
{
    if (m->what == RECORD_MEMBER_JOIN) return round_fold_join(round, m->id, m->uuid, m->name);
    if (m->what == RECORD_MEMBER_READMIT) return round_fold_readmit(round, m->id);
    return round_fold_leave(round, m->id);
}

static enum status fold_open(struct ledger *l, const struct journal_record *record)
{
    TRY(ledger_room(l));
    struct record_open m = {.n_fragments = l->layout.n_fragments, .cap = l->cap_grants, .open = {.grants = l->grants}};
    TRY(record_decode(RECORD_OPEN, &m, record->body, record->size));
    l->clock = m.clock;
    return round_fold_open(&l->round, &m.open);
}

static enum status fold_delta(struct ledger *l, struct journal_ref at, struct record_delta *m)
{
    m->part.at = (struct journal_ref){at.segment, at.offset + RECORD_DELTA_HEAD};
    if (m->fragment >= l->layout.n_fragments || m->part.bytes > l->outer.delta_cap) return STATUS_CORRUPT;
    return round_fold_delta(&l->round, m->id, m->round, m->fragment, &m->part);
}

static enum status fold_eval(struct ledger *l, const struct record_eval *m)
{
    l->clock = m->clock;
    l->evaluated = true;
    l->eval_round = m->round;
    l->eval_final = m->final;
    l->eval_by_one = m->by_one;
    l->eval_loss_sum = m->loss_sum;
    l->eval_tokens = m->tokens;
    return STATUS_OK;
}

static enum status fold_taken(struct ledger *l, const struct record_taken *taken)
{
    if (l->n_taken == LEDGER_TAKEN_MAX) memmove(l->taken, l->taken + 1, --l->n_taken * sizeof *l->taken);
    l->taken[l->n_taken++] = *taken;
    return STATUS_OK;
}

static enum status fold_done(struct ledger *l, const struct record_clock *clock)
{
    l->clock = *clock;
    l->done = true;
    return STATUS_OK;
}

static enum status fold(struct ledger *l, const struct journal_record *record, struct err *err)
{
    union small m;
    const uint16_t type = record->type;
    bool early = type == RECORD_RUN || type == RECORD_START || type == RECORD_MODEL || type == RECORD_CLOCK;
    if (!early && !l->modelled) return STATUS_CORRUPT;
    if (l->modelled) l->round.clock_us = l->clock.elapsed_us;
    if (type == RECORD_START) return fold_start(l, record->size);
    if (type == RECORD_MODEL) return fold_model(l, record, err);
    if (type == RECORD_OPEN) return fold_open(l, record);
    if (!record_name(type)) return STATUS_CORRUPT;
    memset(&m, 0, sizeof m);
    TRY(record_decode((enum record_type)type, &m, record->body, record->size));
    switch (type) {
    case RECORD_RUN: return fold_run(l, &m.run, err);
    case RECORD_MEMBER: return fold_member(&l->round, &m.member);
    case RECORD_DELTA: return fold_delta(l, record->at, &m.delta);
    case RECORD_DROP: return round_fold_drop(&l->round, m.drop.id, m.drop.round, m.drop.fragment, m.drop.code);
    case RECORD_EVAL: return fold_eval(l, &m.eval);
    case RECORD_DONE: return fold_done(l, &m.clock);
    case RECORD_VAL: return fold_val(l, &m.val);
    case RECORD_GRANT: return round_fold_grant(&l->round, &m.grant);
    case RECORD_SEAL: return round_fold_seal(&l->round, m.seal.round);
    case RECORD_JUMP: return fold_jump(l, &m.jump);
    case RECORD_CLOCK: l->clock = m.clock; return STATUS_OK;
    case RECORD_TAKEN: return fold_taken(l, &m.taken);
    default: return STATUS_CORRUPT;
    }
}

/* payload: of a delta, with its checksum `crc`, or NULL. */
static enum status append(struct ledger *l, enum record_type type, const struct store_part *body,
                          const struct store_part *payload, uint32_t crc, struct err *err)
{
    struct journal_record record = {.type = (uint16_t)type, .body = body->data, .size = body->size};
    if (payload)
        TRY(journal_append_known(&l->journal, type, body, payload, crc, &record.at, err));
    else
        TRY(journal_append(&l->journal, type, body, 1, &record.at, err));
    enum status status = fold(l, &record, err);
    if (status == STATUS_OK || (err && err->code == status)) return status;
    return err_set(err, status, "internal: a %s record contradicts the state (%s)", record_name(type),
                   status_text(status));
}

enum status ledger_write(struct ledger *l, enum record_type type, const void *record, const struct store_part *payload,
                         struct err *err)
{
    uint8_t small[RECORD_SMALL_MAX], *body = small;
    size_t size = record_size(type, record);
    assert(type != RECORD_UPDATE && (payload != NULL) == (type == RECORD_DELTA));
    if (size > sizeof small) body = mem_alloc(1, size);
    if (!body) return err_set(err, STATUS_NOMEM, "no memory for a %s record", record_name(type));
    struct writer w = writer_of(body, size);
    record_encode(type, record, &w);
    assert(!w.bad && w.pos == size);
    uint32_t crc = payload ? ((const struct record_delta *)record)->part.crc : 0;
    enum status status = append(l, type, &(struct store_part){body, size}, payload, crc, err);
    if (body != small) mem_free(body);
    return status;
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

static enum status fold_update(struct ledger *l, const struct update *u, struct journal_ref at, size_t size)
{
    struct round_named named[WIRE_NAMED_MAX];
    for (uint32_t i = 0; i < u->n_named; i++) named[i] = (struct round_named){u->named[i].worker_id, u->named[i].round};
    struct update_entry entry = {u->theta_hash, {at.segment, at.offset + RECORD_CLOCK_BYTES}, size};
    assert(size > sizeof(uint32_t) + u->payload_size);
    if (u->fragment < l->round.first_mean) memcpy(l->down, u->codec, sizeof l->down);
    l->down_bytes = size;
    l->down_relay = strcmp(u->codec, "relay") == 0 ? size - sizeof(uint32_t) - u->payload_size : 0;
    l->round.clock_us = l->clock.elapsed_us;
    TRY(round_fold_update(&l->round, u->fragment, u->version, named, u->n_named));
    assert(l->round.versions[u->fragment] == u->version);
    return update_log_add(&l->log, u->fragment, u->version, &entry);
}

/* Appends an update and folds it in. */
static enum status append_update(struct ledger *l, const struct update *u, const struct record_clock *clock,
                                 struct err *err)
{
    size_t size;
    struct journal_ref at;
    uint8_t head[RECORD_CLOCK_BYTES];
    if (update_encode(u, l->outer.payload, l->outer.payload_cap, &size) != STATUS_OK)
        return err_set(err, STATUS_LIMIT, "cannot encode the update of fragment %u", u->fragment);
    struct writer w = writer_of(head, sizeof head);
    record_encode(RECORD_UPDATE, clock, &w);
    struct store_part start = {head, sizeof head}, object = {l->outer.payload, size};
    TRY(journal_append_known(&l->journal, RECORD_UPDATE, &start, &object, update_crc(object.data, size), &at, err));
    for (uint32_t i = 0; i < u->n_named; i++) {
        const struct part *part = &member_by_id(&l->round.members, u->named[i].worker_id)->work.parts[u->fragment];
        held_drop(&l->held, part->place, part->at);
    }
    assert(clock->elapsed_us >= l->clock.elapsed_us);
    l->clock = *clock;
    enum status status = fold_update(l, u, at, size);
    return status == STATUS_OK ? status : err_set(err, status, "internal: an update contradicts the state");
}

enum status ledger_close(struct ledger *l, const struct round_close *close, const struct record_clock *clock,
                         struct err *err)
{
    struct update u;
    TRY(update_compute(l, close, &u, err));
    assert(u.version == l->round.versions[close->fragment] + 1 && u.n_named == close->n);
    return append_update(l, &u, clock, err);
}

/* --- a region ----------------------------------------------------------------------------------------------------- */

static enum status follow(struct ledger *l, const struct update *u, struct err *err)
{
    enum status status = l->absent ? STATUS_STATE : outer_state_apply(&l->outer, u);
    if (status == STATUS_MISMATCH)
        return err_set(err, status,
                       "update %llu of fragment %u gives other parameters than upstream's: a memory fault, or another "
                       "version of atoll",
                       (unsigned long long)u->version, u->fragment);
    return status;
}

enum status ledger_publish(struct ledger *l, const struct update *upstream, bool taken,
                           const struct record_clock *clock, struct err *err)
{
    struct update u = *upstream;
    assert(l->region && !l->absent);
    u.named = l->named;
    u.n_named = 0;
    for_each_member(&l->round.members, m) {
        if (!taken || !l->round.region.sealed || !member_has(m, u.fragment, PART_HELD)) continue;
        assert(u.n_named < WIRE_NAMED_MAX);
        l->named[u.n_named++] = (struct update_named){m->id, m->work.round, m->work.parts[u.fragment].tokens};
    }
    enum status status = follow(l, &u, err);
    if (status == STATUS_OK) return append_update(l, &u, clock, err);
    if (err && err->code == status) return status;
    return err_set(err, status, "cannot follow update %llu of fragment %u", (unsigned long long)u.version, u.fragment);
}

/* --- replay ------------------------------------------------------------------------------------------------------- */

static enum status damaged(struct err *err, const struct journal_record *record, const char *why)
{
    const char *name = record_name(record->type) ? record_name(record->type) : "unknown";
    return err_set(err, STATUS_CORRUPT, "journal/%08llu.log, record %s at byte %llu: %s",
                   (unsigned long long)record->at.segment, name, (unsigned long long)record->at.offset, why);
}

enum status ledger_read_update(const struct journal_record *record, struct update_named *named, struct update *u)
{
    if (record->size < RECORD_CLOCK_BYTES) return STATUS_CORRUPT;
    return update_decode(u, named, WIRE_NAMED_MAX, record->body + RECORD_CLOCK_BYTES,
                         record->size - RECORD_CLOCK_BYTES);
}

/* Not damage: the record has a good checksum, and the records before it fit. */
static enum status other_update(struct err *err, const struct journal_record *record)
{
    (void)damaged(err, record,
                  "the recomputed update differs from this one; continue with the program version that wrote the run");
    if (err) err->code = STATUS_MISMATCH;
    return STATUS_MISMATCH;
}

static enum status replay_update(struct ledger *l, const struct journal_record *record, struct err *err)
{
    struct update_named *named = mem_alloc(WIRE_NAMED_MAX, sizeof *named);
    struct update u, computed;
    struct round_close close = {0};
    enum status status = named ? record_decode(RECORD_UPDATE, &l->clock, record->body, record->size) : STATUS_NOMEM;
    if (status == STATUS_OK) status = ledger_read_update(record, named, &u);
    if (status == STATUS_OK && (u.fragment >= l->layout.n_fragments || (!u.n_named && !l->region)))
        status = STATUS_CORRUPT;
    if (status == STATUS_OK && l->region) status = follow(l, &u, err);
    if (status == STATUS_OK && !l->region) {
        close.fragment = u.fragment;
        for (uint32_t i = 0; i < u.n_named && status == STATUS_OK; i++) {
            const struct member *m = member_by_id(&l->round.members, named[i].worker_id);
            if (!m || !m->work.open || m->work.parts[u.fragment].state != PART_HELD) status = STATUS_STATE;
            assert(close.n < WIRE_NAMED_MAX);
            close.ids[close.n++] = named[i].worker_id;
        }
    }
    bool computes = !l->region && !l->skims;
    if (status == STATUS_OK && computes) status = update_compute(l, &close, &computed, err);
    if (status == STATUS_OK && computes &&
        (computed.theta_hash != u.theta_hash || computed.payload_size != u.payload_size ||
         memcmp(computed.payload, u.payload, u.payload_size) != 0))
        status = other_update(err, record);
    if (status == STATUS_OK) status = fold_update(l, &u, record->at, record->size - RECORD_CLOCK_BYTES);
    mem_free(named);
    return status;
}

enum status ledger_replay(struct ledger *l, const struct journal_record *record, struct err *err)
{
    enum status status;
    if (record->type == RECORD_UPDATE)
        status = l->modelled ? replay_update(l, record, err) : STATUS_STATE;
    else
        status = fold(l, record, err);
    if (status == STATUS_OK || (err && err->code == status)) return status;
    return damaged(err, record, "contradicts the records before it");
}

/* Behind a jump, the log begins at its versions. */
static enum status index_jump(struct ledger *l, const struct journal_record *record, struct err *err)
{
    struct record_jump jump = {0};
    if (record_decode(RECORD_JUMP, &jump, record->body, record->size) != STATUS_OK ||
        jump.n_fragments != l->layout.n_fragments)
        return damaged(err, record, "is malformed");
    for (uint32_t f = 0; f < jump.n_fragments; f++)
        TRY(update_log_start(&l->log, f, jump.versions[f].version, jump.versions[f].hash));
    return STATUS_OK;
}

enum status ledger_index(struct ledger *l, const struct journal_record *record, struct err *err)
{
    struct update u;
    if (record->type == RECORD_JUMP) return index_jump(l, record, err);
    if (record->type != RECORD_UPDATE) return STATUS_OK;
    if (ledger_read_update(record, l->named, &u) != STATUS_OK) return damaged(err, record, "is malformed");
    struct update_entry entry = {
        u.theta_hash, {record->at.segment, record->at.offset + RECORD_CLOCK_BYTES}, record->size - RECORD_CLOCK_BYTES};
    if (u.fragment >= l->layout.n_fragments || update_log_add(&l->log, u.fragment, u.version, &entry) != STATUS_OK)
        return damaged(err, record, "does not follow the update before it");
    return STATUS_OK;
}

void ledger_lost_count(struct ledger_lost *lost, const struct journal_record *record)
{
    struct update u;
    if (record->type != RECORD_UPDATE || ledger_read_update(record, lost->named, &u) != STATUS_OK ||
        u.fragment >= LAYOUT_FRAGMENTS_MAX)
        return;
    if (u.version > lost->versions[u.fragment]) lost->versions[u.fragment] = u.version;
    lost->updates++;
}

uint64_t ledger_lost_rounds(const struct ledger_lost *lost, const struct ledger *l)
{
    uint64_t all = UINT64_MAX, kept = l->modelled ? round_done(&l->round) : 0;
    for (uint32_t f = 0; l->modelled && f < l->layout.n_fragments; f++) {
        uint64_t held = l->round.versions[f], end = lost->versions[f] > held ? lost->versions[f] : held;
        if (end < all) all = end;
    }
    return l->modelled && l->config->train.method != METHOD_ASYNC && all > kept ? all - kept : 0;
}
