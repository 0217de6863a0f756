#include "coordinator/ledger/checkpoint.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/format/field_rows.h"
#include "coordinator/outer/outer_arrays.h"
#include "wire/msg_table.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "float arrays are written as little-endian bytes");

/* The digit is the format: FORMAT_PLAIN and the bits of what the file has in addition. All four are read. */
static const char magic[8] = {'A', 'T', 'O', 'L', 'L', 'S', '4', '\n'};

enum {
    FORMAT_PLAIN = '4',
    FORMAT_TAKEN = 1, /* rounds of the run were taken back: the head lists them */
    FORMAT_HALF = 2,  /* the arrays are bf16 (outer.state), not fp32 */
    FORMAT_LAST = FORMAT_PLAIN + FORMAT_TAKEN + FORMAT_HALF,
    FORMAT_AT = 6
};
enum { PREFIX = 24, HEAD_MAX = 1 << 30 };

/* --- members ------------------------------------------------------------------------------------------------------ */

/* One fragment of a member, and of its open work. */
struct mark {
    uint64_t merged, merged_in;
};
struct work_part {
    uint64_t version;
    uint8_t state;
    uint16_t code;
};

static const struct field name_fields[] = {BYTES(member, uuid), LINE(member, name, 0), END};
static const struct field member_fields[] = {
    BOOL(member, active),
    BOOL(member, in_step),
    U64(member, next_round),
    U64(member, tokens),
    U64(member, steps),
    U64(member, compute_us),
    END,
};
static const struct field mark_fields[] = {U64(mark, merged), U64(mark, merged_in), END};
static const struct field open_fields[] = {BOOL(member, work.open), END};
static const struct field work_fields[] = {
    BOOL(assignment, merged), U64(assignment, round),  WORK_STEPS(assignment, 1),
    F64(assignment, peak),    WORK_RANGES(assignment), END,
};
static const struct field part_fields[] = {
    U64(work_part, version),
    U8(work_part, state, 0, PART_DROPPED),
    U16(work_part, code, 0, UINT16_MAX),
    END,
};
/* Its strikes, and each fragment of its last delta. */
static const struct field gate_fields[] = {U32(member, strikes), U64(member, struck_us), END};
static const struct field sample_fields[] = {F32(gate_sample, norm), F32(gate_sample, reach), END};

static void work_encode(const struct assignment *work, uint32_t n_fragments, struct writer *w)
{
    fields_put(work_fields, work, w);
    for (uint32_t f = 0; f < n_fragments; f++) {
        struct work_part part = {work->versions[f], work->parts[f].state, work->parts[f].code};
        if (part.state == PART_HELD) part.state = PART_WAITED; /* its DELTA record follows in the next segment */
        fields_put(part_fields, &part, w);
    }
}

static void member_encode(const struct member *m, uint32_t n_fragments, struct writer *w)
{
    fields_put(name_fields, m, w);
    fields_put(member_fields, m, w);
    for (uint32_t f = 0; f < n_fragments; f++)
        fields_put(mark_fields, &(struct mark){m->merged[f], m->merged_in[f]}, w);
    fields_put(open_fields, m, w);
    if (m->work.open) work_encode(&m->work, n_fragments, w);
}

static void work_decode(struct assignment *work, uint32_t n_fragments, struct reader *r)
{
    fields_read(work_fields, work, r);
    for (uint32_t f = 0; f < n_fragments; f++) {
        struct work_part part;
        fields_read(part_fields, &part, r);
        if (part.state == PART_HELD) reader_fail(r);
        work->versions[f] = part.version;
        work->parts[f] = (struct part){.state = part.state, .code = part.code};
    }
}

static enum status member_decode(struct round *round, uint32_t n_fragments, struct reader *r)
{
    struct member who, *m;
    fields_read(name_fields, &who, r);
    if (r->bad) return STATUS_CORRUPT;
    TRY(member_add(&round->members, who.uuid, who.name, &m));
    fields_read(member_fields, m, r);
    for (uint32_t f = 0; f < n_fragments; f++) {
        struct mark mark;
        fields_read(mark_fields, &mark, r);
        m->merged[f] = mark.merged;
        m->merged_in[f] = mark.merged_in;
    }
    fields_read(open_fields, m, r);
    if (!r->bad && m->work.open) work_decode(&m->work, n_fragments, r);
    return r->bad ? STATUS_CORRUPT : STATUS_OK;
}

static void gates_encode(const struct round *r, uint32_t n_fragments, struct writer *w)
{
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct member *m = r->members.members[i];
        fields_put(gate_fields, m, w);
        fields_put_all(sample_fields, m->last, sizeof *m->last, n_fragments, w);
    }
}

static void gates_decode(struct round *r, uint32_t n_fragments, struct reader *in)
{
    for (uint32_t i = 0; i < r->members.n && !in->bad; i++) {
        struct member *m = r->members.members[i];
        fields_read(gate_fields, m, in);
        fields_read_all(sample_fields, m->last, sizeof *m->last, n_fragments, in);
        for (uint32_t f = 0; f < n_fragments; f++)
            if (m->last[f].norm < 0 || m->last[f].reach < 0) reader_fail(in);
    }
}

/* --- the head ----------------------------------------------------------------------------------------------------- */

/* Versions and hashes of the fragments, in turn. */
static const struct field version_fields[] = {
    {.name = "version", .kind = FIELD_U64, .max = UINT64_MAX},
    {.name = "hash",
     .kind = FIELD_U64,
     .at = offsetof(struct checkpoint_info, hashes) - offsetof(struct checkpoint_info, versions),
     .max = UINT64_MAX},
    END,
};
static const struct field info_fields[] = {
    U64(checkpoint_info, round),
    U64(checkpoint_info, segment),
    COUNT(checkpoint_info, n_fragments, 1, LAYOUT_FRAGMENTS_MAX),
    LIST(checkpoint_info, versions, n_fragments, version_fields, LAYOUT_FRAGMENTS_MAX),
    END,
};
const struct field checkpoint_head_fields[] = {
    STRUCT(checkpoint_head, info, info_fields),
    COUNT(checkpoint_head, n, 0, OUTER_ARRAYS_MAX),
    LIST(checkpoint_head, hashes, n, wire_number, OUTER_ARRAYS_MAX),
    STRUCT(checkpoint_head, run, record_run_fields),
    COUNT(checkpoint_head, n_earlier, 0, LEDGER_EARLIER_MAX),
    LIST(checkpoint_head, earlier, n_earlier, wire_number, LEDGER_EARLIER_MAX),
    BLOB(checkpoint_head, model, model_size, 0, HEAD_MAX),
    END,
};
static const struct field closed_fields[] = {{.name = "closed", .kind = FIELD_BOOL}, END};
static const struct field ledger_fields[] = {
    U64(ledger, starts),
    STRUCT(ledger, clock, record_clock_fields),
    U64(ledger, eval_round),
    BOOL(ledger, evaluated),
    BOOLS(ledger, eval_final, eval_by_one),
    BOOL(ledger, done),
    F64_ANY(ledger, eval_loss_sum),
    U64(ledger, eval_tokens),
    U64(ledger, round.round),
    BOOL(ledger, round.open),
    LIST(ledger, round.closed, layout.n_fragments, closed_fields, LAYOUT_FRAGMENTS_MAX),
    U32(ledger, round.n_assigned),
    U64(ledger, round.again),
    U32(ledger, round.again_steps),
    U32(ledger, round.again_before),
    U64(ledger, round.steps_committed),
    U64(ledger, round.steps_outstanding),
    U64(ledger, round.tokens),
    U64(ledger, round.worker_steps),
    U64(ledger, round.compute_us),
    F64_ANY(ledger, round.loss_sum),
    END,
};
/* Only of a region, at the end of the head. */
static const struct field region_fields[] = {
    BOOL(ledger, round.region.sealed), U64(ledger, round.region.granted),   U32(ledger, round.region.steps),
    F64(ledger, round.region.step0),   F64(ledger, round.region.step_rate), END,
};
/* Only with the bit FORMAT_TAKEN, at the end of the head. */
static const struct field taken_fields[] = {
    COUNT(ledger, n_taken, 1, LEDGER_TAKEN_MAX),
    LIST(ledger, taken, n_taken, record_taken_fields, LEDGER_TAKEN_MAX),
    END,
};
struct count {
    uint32_t members;
};
static const struct field count_fields[] = {COUNT(count, members, 0, MEMBERS_MAX), END};

const struct field_part checkpoint_parts[] = {
    {"begin", checkpoint_head_fields},
    {"totals", ledger_fields},
    {"lease book", lease_book_fields},
    {"each free range", wire_range_fields},
    {"each lease", lease_fields},
    {"number of members", count_fields},
    {"each member: identity", name_fields},
    {"its totals", member_fields},
    {"its fragments", mark_fields},
    {"its work", open_fields},
    {"its work, if open", work_fields},
    {"its work: fragments", part_fields},
    {"each member: strikes", gate_fields},
    {"its last delta: fragments", sample_fields},
    {"a region", region_fields},
    {"formats 5 and 7: what was taken back", taken_fields},
    {0},
};

/* The first part of the head. It borrows from the ledger. */
static void head_of(const struct ledger *l, uint64_t round, uint64_t segment, struct checkpoint_head *head)
{
    struct outer_array arrays[OUTER_ARRAYS_MAX];
    *head = (struct checkpoint_head){
        .info = {.round = round, .segment = segment, .n_fragments = l->layout.n_fragments},
        .n = (uint32_t)outer_arrays_list(&l->outer, arrays),
        .run = {.config_hash = l->config_hash, .config_text = l->config_text, .config_size = strlen(l->config_text)},
        .n_earlier = l->n_earlier,
        .model = l->model_record,
        .model_size = l->model_record_size,
    };
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        head->info.versions[f] = l->round.versions[f];
        head->info.hashes[f] = l->outer.fragments[f].hash;
    }
    for (uint32_t i = 0; i < head->n; i++)
        head->hashes[i] =
            outer_array_hash(l->outer.pool, arrays[i].data, arrays[i].count, outer_arrays_half(&l->outer));
    memcpy(head->run.run_id, l->run_id, WIRE_UUID);
    memcpy(head->earlier, l->earlier, sizeof head->earlier);
}

static void head_encode(const struct ledger *l, const struct checkpoint_head *head, struct writer *w)
{
    const struct round *r = &l->round;
    const uint32_t F = l->layout.n_fragments;
    fields_put(checkpoint_head_fields, head, w);
    fields_put(ledger_fields, l, w);
    lease_encode(&r->leases, w);
    fields_put(count_fields, &(struct count){r->members.n}, w);
    for (uint32_t i = 0; i < r->members.n; i++) member_encode(r->members.members[i], F, w);
    gates_encode(r, F, w);
    if (l->region) fields_put(region_fields, l, w);
    if (l->n_taken) fields_put(taken_fields, l, w);
}

/* taken: the head lists what was taken back */
static enum status round_decode(struct ledger *l, bool taken, struct reader *r)
{
    struct round *round = &l->round;
    struct count count;
    const uint32_t F = l->layout.n_fragments;
    fields_read(ledger_fields, l, r);
    if (round->again_steps > round->p.max_steps || round->again_before > round->again_steps) reader_fail(r);
    TRY(lease_decode(&round->leases, r));
    fields_read(count_fields, &count, r);
    for (uint32_t i = 0; !r->bad && i < count.members; i++) TRY(member_decode(round, F, r));
    gates_decode(round, F, r);
    if (l->region) fields_read(region_fields, l, r);
    if (taken) fields_read(taken_fields, l, r);
    round_recount(round);
    return r->bad ? STATUS_CORRUPT : round_check(round);
}

static enum status head_decode(struct ledger *l, struct checkpoint_head *head, bool taken, struct reader *r,
                               struct err *err)
{
    struct outer_array arrays[OUTER_ARRAYS_MAX];
    fields_read(checkpoint_head_fields, head, r);
    if (r->bad) return STATUS_CORRUPT;
    TRY(ledger_set_run(l, &head->run, err));
    memcpy(l->earlier, head->earlier, sizeof l->earlier);
    l->n_earlier = head->n_earlier;
    TRY(ledger_set_model(l, head->model, head->model_size, err));
    if (head->info.n_fragments != l->layout.n_fragments || head->n != outer_arrays_list(&l->outer, arrays))
        return STATUS_CORRUPT;
    memcpy(l->round.versions, head->info.versions, sizeof l->round.versions);
    TRY(round_decode(l, taken, r));
    return reader_done(r) ? STATUS_OK : STATUS_CORRUPT;
}

/* --- save and load ------------------------------------------------------------------------------------------------ */

enum status checkpoint_carry_held(struct ledger *l, struct err *err)
{
    struct store *store = l->journal.store;
    uint8_t head[RECORD_DELTA_HEAD], *payload = l->outer.payload;
    bool any = false;
    for_each_member(&l->round.members, m) {
        struct assignment *work = &m->work;
        for (uint32_t f = 0; work->open && f < l->layout.n_fragments; f++) {
            struct part *part = &work->parts[f];
            if (part->state != PART_HELD) continue;
            assert(part->bytes <= l->outer.payload_cap);
            struct record_delta copy = {.id = m->id, .fragment = f, .round = work->round, .part = *part};
            struct writer w = writer_of(head, sizeof head);
            record_encode(RECORD_DELTA, &copy, &w);
            struct store_part parts[2] = {{head, w.pos}, {payload, part->bytes}};
            struct journal_ref at, from = part->at;
            const uint8_t *held = held_find(&l->held, part->place, from);
            if (held)
                parts[1].data = held;
            else
                TRY(store->ops->segment_read(store, from.segment, from.offset, payload, part->bytes, err));
            TRY(journal_append(&l->journal, RECORD_DELTA, parts, 2, &at, err));
            part->at = (struct journal_ref){at.segment, at.offset + RECORD_DELTA_HEAD};
            held_move(&l->held, part->place, from, part->at);
            any = true;
        }
    }
    return any ? journal_sync(&l->journal, err) : STATUS_OK;
}

enum status checkpoint_save(const struct ledger *l, struct store *store, uint64_t round, uint64_t segment,
                            struct err *err)
{
    struct outer_array arrays[OUTER_ARRAYS_MAX];
    struct store_part parts[1 + OUTER_ARRAYS_MAX];
    struct checkpoint_head head;
    struct writer count = writer_counting();
    size_t n = outer_arrays_list(&l->outer, arrays);
    head_of(l, round, segment, &head);
    head_encode(l, &head, &count);
    size_t size = count.pos;
    uint8_t *blob = mem_alloc(1, PREFIX + size);
    if (!blob) return err_set(err, STATUS_NOMEM, "no memory for a checkpoint");
    struct writer w = writer_of(blob + PREFIX, size);
    head_encode(l, &head, &w);
    assert(!w.bad && w.pos == size);
    struct writer prefix = writer_of(blob, PREFIX);
    put_bytes(&prefix, magic, sizeof magic);
    blob[FORMAT_AT] =
        (uint8_t)(FORMAT_PLAIN + (l->n_taken ? FORMAT_TAKEN : 0) + (outer_arrays_half(&l->outer) ? FORMAT_HALF : 0));
    put_u64(&prefix, size);
    put_u32(&prefix, crc32c(0, blob + PREFIX, size));
    put_u32(&prefix, 0);
    assert(!prefix.bad && prefix.pos == PREFIX);
    parts[0] = (struct store_part){blob, PREFIX + size};
    for (size_t i = 0; i < n; i++)
        parts[1 + i] =
            (struct store_part){arrays[i].data, arrays[i].count * outer_value_bytes(outer_arrays_half(&l->outer))};
    struct store_checkpoint checkpoint = {.round = round,
                                          .layout = &l->layout,
                                          .theta = l->outer.theta,
                                          .config_json = l->model_config,
                                          .state = parts,
                                          .n_state = 1 + n};
    enum status status = store->ops->checkpoint_write(store, &checkpoint, err);
    mem_free(blob);
    return status;
}

static enum status bad(struct err *err, uint64_t round, const char *what)
{
    if (round == CHECKPOINT_ANY) return err_set(err, STATUS_CORRUPT, "coordinator_state.bin %s", what);
    return err_set(err, STATUS_CORRUPT, "checkpoint round_%06llu: its coordinator_state.bin %s",
                   (unsigned long long)round, what);
}

static enum status check_magic(const uint8_t prefix[PREFIX], uint64_t round, struct err *err)
{
    uint8_t other[sizeof magic], format = prefix[FORMAT_AT];
    memcpy(other, magic, sizeof magic);
    other[FORMAT_AT] = format;
    bool ours = format >= FORMAT_PLAIN && format <= FORMAT_LAST;
    if (ours && !memcmp(prefix, other, sizeof other)) return STATUS_OK;
    if (format < '1' || format > '9' || memcmp(prefix, other, sizeof other) != 0)
        return bad(err, round, "has an unknown format");
    return err_set(
        err, STATUS_UNSUPPORTED,
        "checkpoint round_%06llu has format %c, this program reads %c to %c: continue with the release that began "
        "the run, or start a new run from the checkpoint (model.init_from)",
        (unsigned long long)round, format, FORMAT_PLAIN, FORMAT_LAST);
}

/* The state of a checkpoint in a store. */
struct state {
    struct store *store;
    uint64_t round;
    uint8_t *head; /* [size] */
    size_t size;
    bool taken, half;   /* the bits of its format */
    uint64_t at, total; /* bytes read so far; of the file */
};

static enum status read_state(struct state *f, void *dst, size_t size, struct err *err)
{
    assert(f->at <= f->total);
    if (size > f->total - f->at) return bad(err, f->round, "is too short");
    TRY(f->store->ops->checkpoint_state_read(f->store, f->round, f->at, dst, size, err));
    f->at += size;
    return STATUS_OK;
}

/* Reads and checks the head. The caller frees f->head (mem_free). */
static enum status read_head(struct state *f, struct store *store, uint64_t round, struct err *err)
{
    uint8_t prefix[PREFIX];
    *f = (struct state){.store = store, .round = round};
    TRY(store->ops->checkpoint_state_size(store, round, &f->total, err));
    TRY(read_state(f, prefix, sizeof prefix, err));
    struct reader r = reader_of(prefix + sizeof magic, PREFIX - sizeof magic);
    uint64_t size = get_u64(&r);
    uint32_t crc = get_u32(&r);
    TRY(check_magic(prefix, round, err));
    f->taken = (prefix[FORMAT_AT] - FORMAT_PLAIN) & FORMAT_TAKEN;
    f->half = (prefix[FORMAT_AT] - FORMAT_PLAIN) & FORMAT_HALF;
    if (get_u32(&r)) return bad(err, round, "has an unknown format");
    if (size > HEAD_MAX || size > f->total - PREFIX) return bad(err, round, "is too short");
    f->head = mem_alloc(1, size);
    if (!f->head) return err_set(err, STATUS_NOMEM, "no memory to read a checkpoint");
    f->size = size;
    enum status status = read_state(f, f->head, size, err);
    if (status == STATUS_OK && crc32c(0, f->head, size) != crc) status = bad(err, round, "is damaged");
    if (status != STATUS_OK) mem_free(f->head);
    return status;
}

enum status checkpoint_look(struct store *store, uint64_t round, struct checkpoint_info *info, struct err *err)
{
    struct state file;
    TRY(read_head(&file, store, round, err));
    struct reader r = reader_of(file.head, file.size);
    fields_read(info_fields, info, &r);
    mem_free(file.head);
    return r.bad || info->round != round ? bad(err, round, "is damaged") : STATUS_OK;
}

/* Reads an array and compares its hash. */
static enum status read_array(struct state *f, void *dst, size_t count, uint64_t hash, struct pool *pool,
                              struct err *err)
{
    TRY(read_state(f, dst, count * outer_value_bytes(f->half), err));
    return outer_array_hash(pool, dst, count, f->half) == hash ? STATUS_OK : bad(err, f->round, "is damaged");
}

static enum status load_arrays(struct ledger *l, struct state *f, const uint64_t *hashes, struct err *err)
{
    struct outer_array arrays[OUTER_ARRAYS_MAX];
    size_t n = outer_arrays_list(&l->outer, arrays);
    if (f->half != outer_arrays_half(&l->outer)) return bad(err, f->round, "has another outer.state than the run");
    for (size_t i = 0; i < n; i++) TRY(read_array(f, arrays[i].data, arrays[i].count, hashes[i], l->outer.pool, err));
    return f->at == f->total ? STATUS_OK : bad(err, f->round, "is too long");
}

static enum status changed(struct err *err, uint64_t round)
{
    static const char what[] = "model.safetensors was changed after it was written";
    if (round == CHECKPOINT_ANY) return err_set(err, STATUS_CORRUPT, "%s", what);
    return err_set(err, STATUS_CORRUPT, "checkpoint round_%06llu: %s", (unsigned long long)round, what);
}

enum status checkpoint_load(struct ledger *l, struct store *store, uint64_t round, struct checkpoint_info *info,
                            struct err *err)
{
    struct state file;
    struct checkpoint_head head = {0};
    TRY(read_head(&file, store, round, err));
    struct reader r = reader_of(file.head, file.size);
    enum status status = head_decode(l, &head, file.taken, &r, err);
    *info = head.info;
    mem_free(file.head);
    if (status == STATUS_CORRUPT || status == STATUS_STATE || (status == STATUS_OK && info->round != round))
        return bad(err, round, "is damaged");
    if (status != STATUS_OK) return status;
    TRY(load_arrays(l, &file, head.hashes, err));
    status = store->ops->checkpoint_theta_read(store, round, &l->layout, 0, l->outer.theta, l->layout.n_params, err);
    if (status == STATUS_CORRUPT || status == STATUS_NOTFOUND) {
        err_prefix(err, "checkpoint round_%06llu", (unsigned long long)round);
        return STATUS_CORRUPT;
    }
    if (status != STATUS_OK) return status;
    outer_state_rehash(&l->outer);
    for (uint32_t f = 0; f < l->layout.n_fragments; f++)
        if (l->outer.fragments[f].hash != info->hashes[f]) return changed(err, round);
    return STATUS_OK;
}

/* --- check -------------------------------------------------------------------------------------------------------- */

/* Decodes the head up to the layout, which the caller finishes. */
static enum status head_decode_layout(struct layout *layout, struct checkpoint_head *head, struct reader *r)
{
    struct record_model model = {0};
    fields_read(checkpoint_head_fields, head, r);
    if (r->bad) return STATUS_CORRUPT;
    TRY(record_decode(RECORD_MODEL, &model, head->model, head->model_size));
    struct reader inner = reader_of(model.layout, model.layout_size);
    TRY(layout_decode(layout, &inner));
    bool whole = reader_done(&inner) && layout->n_fragments == head->info.n_fragments && layout->n_params;
    return whole ? STATUS_OK : STATUS_CORRUPT;
}

/* Vectors of n_params values come first, then the residuals: none, or one of each fragment of trained tensors. The
 * settings decide how many there are; the size of the file does, too. */
static enum status check_arrays(struct state *f, const struct layout *layout, const struct checkpoint_head *head,
                                float *room, struct err *err)
{
    assert(layout->n_params > 0); /* head_decode_layout */
    const uint32_t F = layout_first_mean(layout), n = head->n;
    const uint64_t each = outer_value_bytes(f->half), whole = layout->n_params * each, bytes = f->total - f->at;
    uint64_t trained = 0;
    for (uint32_t i = 0; i < F; i++) trained += layout->fragments[i].count * each;
    bool has_residuals = F && n >= F && bytes == (n - F) * whole + trained;
    uint32_t residuals = has_residuals ? F : 0;
    if (!has_residuals && bytes != n * whole) return bad(err, f->round, "has a wrong size");
    for (uint32_t i = 0; i < n; i++) {
        bool vector = i < n - residuals;
        size_t count = vector ? layout->n_params : layout->fragments[i - (n - residuals)].count;
        TRY(read_array(f, room, count, head->hashes[i], NULL, err));
    }
    assert(f->at == f->total);
    return STATUS_OK;
}

static enum status check_theta(struct store *store, uint64_t round, const struct layout *layout,
                               const struct checkpoint_info *info, float *room, struct err *err)
{
    TRY(store->ops->checkpoint_theta_read(store, round, layout, 0, room, layout->n_params, err));
    for (uint32_t f = 0; f < layout->n_fragments; f++)
        if (hash_floats(NULL, room + layout->fragments[f].offset, layout->fragments[f].count) != info->hashes[f])
            return changed(err, round);
    return STATUS_OK;
}

enum status checkpoint_check(struct store *store, uint64_t round, struct checkpoint_info *info, struct err *err)
{
    struct state file;
    struct checkpoint_head head = {0};
    struct layout layout;
    float *room = NULL;
    TRY(read_head(&file, store, round, err));
    struct reader r = reader_of(file.head, file.size);
    layout_init(&layout);
    enum status status = head_decode_layout(&layout, &head, &r);
    *info = head.info;
    mem_free(file.head);
    if (status == STATUS_CORRUPT || (status == STATUS_OK && round != CHECKPOINT_ANY && info->round != round))
        status = bad(err, round, "is damaged");
    else if (status == STATUS_OK && !(room = mem_alloc(layout.n_params, sizeof *room)))
        status = err_set(err, STATUS_NOMEM, "no memory to check a checkpoint");
    if (status == STATUS_OK) status = check_arrays(&file, &layout, &head, room, err);
    if (status == STATUS_OK) status = check_theta(store, round, &layout, info, room, err);
    mem_free(room);
    layout_finish(&layout);
    return status;
}

enum status checkpoint_compare(const struct ledger *l, struct store *store, uint64_t round, const char **differs_p,
                               struct err *err)
{
    struct state file;
    struct checkpoint_head own, head = {0};
    *differs_p = NULL;
    TRY(read_head(&file, store, round, err));
    struct reader r = reader_of(file.head, file.size);
    fields_read(checkpoint_head_fields, &head, &r);
    head_of(l, round, head.info.segment, &own);
    bool same_arrays = head.n == own.n && !memcmp(head.hashes, own.hashes, own.n * sizeof *own.hashes);
    mem_free(file.head);
    if (r.bad || head.info.round != round) return bad(err, round, "is damaged");
    const uint32_t F = own.info.n_fragments;
    if (head.info.n_fragments != F || memcmp(head.info.versions, own.info.versions, F * sizeof *own.info.versions) != 0)
        *differs_p = "its versions";
    else if (memcmp(head.info.hashes, own.info.hashes, F * sizeof *own.info.hashes) != 0)
        *differs_p = "its parameters";
    else if (!same_arrays)
        *differs_p = "the outer momentum or a residual in it";
    return STATUS_OK;
}
