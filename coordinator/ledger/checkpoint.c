#include "coordinator/ledger/checkpoint.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "float arrays are written as little-endian bytes");

static const char magic[8] = {'A', 'T', 'O', 'L', 'L', 'S', '3', '\n'}; /* the digit is the format */

enum { FORMAT_AT = 6, PREFIX = 24, HEAD_MAX = 1 << 30, ARRAYS_MAX = 2 + LAYOUT_FRAGMENTS_MAX };

/* --- float arrays in the order they are stored -------------------------------------------------------------------- */

struct array {
    float *data;
    size_t count;
};

static size_t list_arrays(const struct ledger *l, struct array out[ARRAYS_MAX])
{
    size_t n = 0;
    if (l->outer.m) out[n++] = (struct array){l->outer.m, l->layout.n_params};
    if (l->outer.v) out[n++] = (struct array){l->outer.v, l->layout.n_params};
    for (uint32_t f = 0; f < l->layout.n_fragments; f++)
        if (l->outer.fragments[f].residual.residual)
            out[n++] = (struct array){l->outer.fragments[f].residual.residual, l->layout.fragments[f].count};
    assert(n <= ARRAYS_MAX);
    return n;
}

/* --- members ------------------------------------------------------------------------------------------------------ */

static size_t member_size(const struct member *m, uint32_t n_fragments)
{
    size_t size = WIRE_UUID + 2 + strlen(m->name) + 1 + 1 + 8 + 3 * 8 + 16 * (size_t)n_fragments + 1;
    if (m->work.open) size += 1 + 8 + 4 + 8 + 8 + 8 + 4 + 16 * (size_t)m->work.n_ranges + (8 + 3) * (size_t)n_fragments;
    return size;
}

static void work_encode(const struct assignment *work, uint32_t n_fragments, struct writer *w)
{
    put_u8(w, work->merged);
    put_u64(w, work->round);
    put_u32(w, work->steps);
    put_f64(w, work->step0);
    put_f64(w, work->step_rate);
    put_f64(w, work->peak);
    put_ranges(w, work->ranges, work->n_ranges);
    for (uint32_t f = 0; f < n_fragments; f++) {
        put_u64(w, work->versions[f]);
        bool held =
            work->parts[f].state == PART_HELD; /* its DELTA record follows in the segment after the checkpoint */
        put_u8(w, held ? PART_WAITED : work->parts[f].state);
        put_u16(w, work->parts[f].code);
    }
}

static void member_encode(const struct member *m, uint32_t n_fragments, struct writer *w)
{
    const size_t start = w->pos;
    const struct assignment *work = &m->work;
    put_bytes(w, m->uuid, WIRE_UUID);
    put_str(w, m->name);
    put_u8(w, m->active);
    put_u8(w, m->in_step);
    put_u64(w, m->next_round);
    put_u64(w, m->tokens);
    put_u64(w, m->steps);
    put_u64(w, m->compute_us);
    for (uint32_t f = 0; f < n_fragments; f++) {
        put_u64(w, m->merged[f]);
        put_u64(w, m->merged_in[f]);
    }
    put_u8(w, work->open);
    if (work->open) work_encode(work, n_fragments, w);
    assert(w->bad || w->pos - start == member_size(m, n_fragments));
}

static void work_decode(struct assignment *work, uint32_t n_fragments, struct reader *r)
{
    work->open = true;
    work->merged = get_u8(r) == 1;
    work->round = get_u64(r);
    work->steps = get_u32(r);
    work->step0 = get_f64(r);
    work->step_rate = get_f64(r);
    work->peak = get_f64(r);
    work->n_ranges = get_ranges(r, work->ranges);
    for (uint32_t f = 0; f < n_fragments; f++) {
        work->versions[f] = get_u64(r);
        work->parts[f] = (struct part){.state = get_u8(r)};
        work->parts[f].code = get_u16(r);
        if (work->parts[f].state > PART_DROPPED || work->parts[f].state == PART_HELD) reader_fail(r);
    }
}

static enum status member_decode(struct round *round, uint32_t n_fragments, struct reader *r)
{
    char name[WIRE_NAME_MAX];
    struct member *m;
    const uint8_t *uuid = get_bytes(r, WIRE_UUID);
    get_str(r, name, sizeof name);
    if (r->bad) return STATUS_CORRUPT;
    TRY(member_add(&round->members, uuid, name, &m));
    m->active = get_u8(r) == 1;
    m->in_step = get_u8(r) == 1;
    m->next_round = get_u64(r);
    m->tokens = get_u64(r);
    m->steps = get_u64(r);
    m->compute_us = get_u64(r);
    for (uint32_t f = 0; f < n_fragments; f++) {
        m->merged[f] = get_u64(r);
        m->merged_in[f] = get_u64(r);
    }
    if (get_u8(r) == 1) work_decode(&m->work, n_fragments, r);
    return r->bad ? STATUS_CORRUPT : STATUS_OK;
}

/* --- the last deltas and the strikes of members ------------------------------------------------------------------- */

static size_t gates_size(const struct round *r, uint32_t n_fragments)
{
    return (12 + 8 * (size_t)n_fragments) * r->members.n;
}

static void gates_encode(const struct round *r, uint32_t n_fragments, struct writer *w)
{
    const size_t start = w->pos;
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct member *m = r->members.members[i];
        put_u32(w, m->strikes);
        put_u64(w, m->struck_us);
        for (uint32_t f = 0; f < n_fragments; f++) {
            put_f32(w, m->last[f].norm);
            put_f32(w, m->last[f].reach);
        }
    }
    assert(w->bad || w->pos - start == gates_size(r, n_fragments));
}

static void gates_decode(struct round *r, uint32_t n_fragments, struct reader *in)
{
    for (uint32_t i = 0; i < r->members.n; i++) {
        struct member *m = r->members.members[i];
        m->strikes = get_u32(in);
        m->struck_us = get_u64(in);
        for (uint32_t f = 0; f < n_fragments; f++) {
            struct gate_sample last = {.norm = get_f32(in)};
            last.reach = get_f32(in);
            if (!(last.norm >= 0 && last.reach >= 0 && isfinite(last.norm) && isfinite(last.reach))) reader_fail(in);
            m->last[f] = last;
        }
    }
}

/* --- the head ----------------------------------------------------------------------------------------------------- */

static size_t head_size(const struct ledger *l)
{
    struct array arrays[ARRAYS_MAX];
    uint32_t F = l->layout.n_fragments;
    size_t size = 8 + 8 + 4 + 16 * (size_t)F + 4 + 8 * list_arrays(l, arrays);
    size += WIRE_UUID + 8 + 4 + strlen(l->config_text) + 4 + l->model_record_size;
    size += 8 + RECORD_CLOCK_BYTES + 8 + 3 + 8 + 8;
    size += 8 + 1 + F + 4 + 8 + 8 + 8 + 8 + 8 + 8;
    size += 4 + 8 * (size_t)l->n_earlier + 8 + 4 + 4;
    size += 20 * (size_t)F + lease_encoded_size(&l->round.leases) + 4;
    for (uint32_t i = 0; i < l->round.members.n; i++) size += member_size(l->round.members.members[i], F);
    return size + gates_size(&l->round, F);
}

static void info_encode(const struct ledger *l, uint64_t round, uint64_t segment, struct writer *w)
{
    put_u64(w, round);
    put_u64(w, segment);
    put_u32(w, l->layout.n_fragments);
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        put_u64(w, l->round.versions[f]);
        put_u64(w, l->outer.fragments[f].hash);
    }
}

static void info_decode(struct checkpoint_info *info, struct reader *r)
{
    memset(info, 0, sizeof *info);
    info->round = get_u64(r);
    info->segment = get_u64(r);
    info->n_fragments = get_u32(r);
    if (!info->n_fragments || info->n_fragments > LAYOUT_FRAGMENTS_MAX) {
        info->n_fragments = 0;
        reader_fail(r);
    }
    for (uint32_t f = 0; f < info->n_fragments; f++) {
        info->versions[f] = get_u64(r);
        info->hashes[f] = get_u64(r);
    }
}

static void round_encode(const struct ledger *l, struct writer *w)
{
    const struct round *r = &l->round;
    put_u64(w, r->round);
    put_u8(w, r->open);
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) put_u8(w, r->closed[f]);
    put_u32(w, r->n_assigned);
    put_u64(w, r->again);
    put_u32(w, r->again_steps);
    put_u32(w, r->again_before);
    put_u64(w, r->steps_committed);
    put_u64(w, r->steps_outstanding);
    put_u64(w, r->tokens);
    put_u64(w, r->worker_steps);
    put_u64(w, r->compute_us);
    put_f64(w, r->loss_sum);
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        put_u32(w, l->outer.fragments[f].buffered);
        put_u64(w, l->outer.fragments[f].merged);
        put_u64(w, l->outer.fragments[f].merged_tokens);
    }
    lease_encode(&r->leases, w);
    put_u32(w, r->members.n);
    for (uint32_t i = 0; i < r->members.n; i++) member_encode(r->members.members[i], l->layout.n_fragments, w);
    gates_encode(r, l->layout.n_fragments, w);
}

static enum status round_decode(struct ledger *l, const struct checkpoint_info *info, struct reader *r)
{
    struct round *round = &l->round;
    memcpy(round->versions, info->versions, sizeof round->versions);
    round->round = get_u64(r);
    round->open = get_u8(r) == 1;
    for (uint32_t f = 0; f < info->n_fragments; f++) round->closed[f] = get_u8(r) == 1;
    round->n_assigned = get_u32(r);
    round->again = get_u64(r);
    round->again_steps = get_u32(r);
    round->again_before = get_u32(r);
    if (round->again_steps > round->p.max_steps || round->again_before > round->again_steps) reader_fail(r);
    round->steps_committed = get_u64(r);
    round->steps_outstanding = get_u64(r);
    round->tokens = get_u64(r);
    round->worker_steps = get_u64(r);
    round->compute_us = get_u64(r);
    round->loss_sum = get_f64(r);
    for (uint32_t f = 0; f < info->n_fragments; f++) {
        l->outer.fragments[f].buffered = get_u32(r);
        l->outer.fragments[f].merged = get_u64(r);
        l->outer.fragments[f].merged_tokens = get_u64(r);
    }
    TRY(lease_decode(&round->leases, r));
    uint32_t n = get_u32(r);
    for (uint32_t i = 0; i < n && !r->bad; i++) TRY(member_decode(round, info->n_fragments, r));
    if (!r->bad) gates_decode(round, info->n_fragments, r);
    return r->bad ? STATUS_CORRUPT : round_check(round);
}

static void head_encode(const struct ledger *l, uint64_t round, uint64_t segment, struct writer *w)
{
    struct array arrays[ARRAYS_MAX];
    size_t n = list_arrays(l, arrays);
    info_encode(l, round, segment, w);
    put_u32(w, (uint32_t)n);
    for (size_t i = 0; i < n; i++) put_u64(w, hash_floats(l->outer.pool, arrays[i].data, arrays[i].count));
    struct record_run run = {
        .config_hash = l->config_hash, .config_text = l->config_text, .config_size = strlen(l->config_text)};
    memcpy(run.run_id, l->run_id, WIRE_UUID);
    record_run_encode(&run, w);
    put_u32(w, l->n_earlier);
    for (uint32_t i = 0; i < l->n_earlier; i++) put_u64(w, l->earlier[i]);
    put_u32(w, (uint32_t)l->model_record_size);
    put_bytes(w, l->model_record, l->model_record_size);
    put_u64(w, l->starts);
    record_clock_encode(&l->clock, w);
    put_u64(w, l->eval_round);
    put_u8(w, l->evaluated);
    put_u8(w, (uint8_t)(l->eval_final | l->eval_by_one << 1));
    put_u8(w, l->done);
    put_f64(w, l->eval_loss_sum);
    put_u64(w, l->eval_tokens);
    round_encode(l, w);
}

/* The part of a head that needs no settings. Texts and the model are borrowed from the reader. */
struct head {
    uint32_t n; /* arrays */
    uint64_t hashes[ARRAYS_MAX];
    struct record_run run;
    uint64_t earlier[LEDGER_EARLIER_MAX];
    uint32_t n_earlier;
    const uint8_t *model;
    size_t model_size;
};

static enum status head_begin(struct head *head, struct checkpoint_info *info, struct reader *r)
{
    *head = (struct head){0};
    info_decode(info, r);
    head->n = get_u32(r);
    if (head->n > ARRAYS_MAX) return STATUS_CORRUPT;
    for (uint32_t i = 0; i < head->n; i++) head->hashes[i] = get_u64(r);
    const uint8_t *id = get_bytes(r, WIRE_UUID);
    if (id) memcpy(head->run.run_id, id, WIRE_UUID);
    head->run.config_hash = get_u64(r);
    head->run.config_size = get_u32(r);
    head->run.config_text = (const char *)get_bytes(r, head->run.config_size);
    head->n_earlier = get_u32(r);
    if (head->n_earlier > LEDGER_EARLIER_MAX) return STATUS_CORRUPT;
    for (uint32_t i = 0; i < head->n_earlier; i++) head->earlier[i] = get_u64(r);
    head->model_size = get_u32(r);
    head->model = get_bytes(r, head->model_size);
    return r->bad ? STATUS_CORRUPT : STATUS_OK;
}

static enum status head_decode(struct ledger *l, struct checkpoint_info *info, struct head *head, struct reader *r,
                               struct err *err)
{
    struct array arrays[ARRAYS_MAX];
    TRY(head_begin(head, info, r));
    TRY(ledger_set_run(l, &head->run, err));
    memcpy(l->earlier, head->earlier, sizeof l->earlier);
    l->n_earlier = head->n_earlier;
    TRY(ledger_set_model(l, head->model, head->model_size, err));
    l->starts = get_u64(r);
    record_clock_decode(&l->clock, r);
    l->eval_round = get_u64(r);
    l->evaluated = get_u8(r) == 1;
    uint8_t eval_flags = get_u8(r);
    l->eval_final = eval_flags & 1;
    l->eval_by_one = eval_flags & 2;
    l->done = get_u8(r) == 1;
    l->eval_loss_sum = get_f64(r);
    l->eval_tokens = get_u64(r);
    if (r->bad || info->n_fragments != l->layout.n_fragments || head->n != list_arrays(l, arrays))
        return STATUS_CORRUPT;
    TRY(round_decode(l, info, r));
    return reader_done(r) ? STATUS_OK : STATUS_CORRUPT;
}

/* --- save and load ------------------------------------------------------------------------------------------------ */

enum status checkpoint_save(const struct ledger *l, struct store *store, uint64_t round, uint64_t segment,
                            struct err *err)
{
    struct array arrays[ARRAYS_MAX];
    struct store_part parts[1 + ARRAYS_MAX];
    size_t n = list_arrays(l, arrays), size = head_size(l);
    uint8_t *blob = mem_alloc(1, PREFIX + size);
    if (!blob) return err_set(err, STATUS_NOMEM, "no memory for a checkpoint");
    struct writer w = writer_of(blob + PREFIX, size);
    head_encode(l, round, segment, &w);
    assert(!w.bad && w.pos == size);
    struct writer prefix = writer_of(blob, PREFIX);
    put_bytes(&prefix, magic, sizeof magic);
    put_u64(&prefix, size);
    put_u32(&prefix, crc32c(0, blob + PREFIX, size));
    put_u32(&prefix, 0);
    assert(!prefix.bad && prefix.pos == PREFIX);
    parts[0] = (struct store_part){blob, PREFIX + size};
    for (size_t i = 0; i < n; i++) parts[1 + i] = (struct store_part){arrays[i].data, arrays[i].count * sizeof(float)};
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
    if (!memcmp(prefix, magic, sizeof magic)) return STATUS_OK;
    memcpy(other, magic, sizeof magic);
    other[FORMAT_AT] = format;
    if (format < '0' || format > '9' || memcmp(prefix, other, sizeof other) != 0)
        return bad(err, round, "has an unknown format");
    return err_set(err, STATUS_UNSUPPORTED,
                   "checkpoint round_%06llu has format %c, this program reads %c: continue with the release that began "
                   "the run, or start a new run from the checkpoint (model.init_from)",
                   (unsigned long long)round, format, magic[FORMAT_AT]);
}

/* Reads and checks the head. The caller owns *head_p (mem_free). */
static enum status read_head(struct store *store, uint64_t round, uint8_t **head_p, size_t *size_p, uint64_t *total_p,
                             struct err *err)
{
    uint8_t prefix[PREFIX];
    TRY(store->ops->checkpoint_state_size(store, round, total_p, err));
    if (*total_p < PREFIX) return bad(err, round, "is too short");
    TRY(store->ops->checkpoint_state_read(store, round, 0, prefix, sizeof prefix, err));
    struct reader r = reader_of(prefix + sizeof magic, PREFIX - sizeof magic);
    uint64_t size = get_u64(&r);
    uint32_t crc = get_u32(&r);
    TRY(check_magic(prefix, round, err));
    if (get_u32(&r)) return bad(err, round, "has an unknown format");
    if (size > HEAD_MAX || size > *total_p - PREFIX) return bad(err, round, "is too short");
    uint8_t *head = mem_alloc(1, size);
    if (!head) return err_set(err, STATUS_NOMEM, "no memory to read a checkpoint");
    enum status status = store->ops->checkpoint_state_read(store, round, PREFIX, head, size, err);
    if (status == STATUS_OK && crc32c(0, head, size) != crc) status = bad(err, round, "is damaged");
    if (status != STATUS_OK) {
        mem_free(head);
        return status;
    }
    *head_p = head;
    *size_p = size;
    return STATUS_OK;
}

enum status checkpoint_look(struct store *store, uint64_t round, struct checkpoint_info *info, struct err *err)
{
    uint8_t *head = NULL;
    size_t size = 0;
    uint64_t total;
    TRY(read_head(store, round, &head, &size, &total, err));
    struct reader r = reader_of(head, size);
    info_decode(info, &r);
    mem_free(head);
    return r.bad || info->round != round ? bad(err, round, "is damaged") : STATUS_OK;
}

static enum status load_arrays(struct ledger *l, struct store *store, uint64_t round, const uint64_t *hashes,
                               uint64_t at, uint64_t total, struct err *err)
{
    struct array arrays[ARRAYS_MAX];
    size_t n = list_arrays(l, arrays);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = arrays[i].count * sizeof(float);
        assert(at <= total);
        if (bytes > total - at) return bad(err, round, "is too short");
        TRY(store->ops->checkpoint_state_read(store, round, at, arrays[i].data, bytes, err));
        if (hash_floats(l->outer.pool, arrays[i].data, arrays[i].count) != hashes[i])
            return bad(err, round, "is damaged");
        at += bytes;
    }
    return at == total ? STATUS_OK : bad(err, round, "is too long");
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
    uint8_t *bytes = NULL;
    struct head head;
    size_t size = 0;
    uint64_t total;
    TRY(read_head(store, round, &bytes, &size, &total, err));
    struct reader r = reader_of(bytes, size);
    enum status status = head_decode(l, info, &head, &r, err);
    mem_free(bytes);
    if (status == STATUS_CORRUPT || status == STATUS_STATE || (status == STATUS_OK && info->round != round))
        return bad(err, round, "is damaged");
    if (status != STATUS_OK) return status;
    TRY(load_arrays(l, store, round, head.hashes, PREFIX + size, total, err));
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
static enum status head_decode_layout(struct layout *layout, struct checkpoint_info *info, struct head *head,
                                      struct reader *r)
{
    struct record_model model;
    TRY(head_begin(head, info, r));
    TRY(record_model_decode(&model, head->model, head->model_size));
    struct reader inner = reader_of(model.layout, model.layout_size);
    TRY(layout_decode(layout, &inner));
    return reader_done(&inner) && layout->n_fragments == info->n_fragments && layout->n_params ? STATUS_OK
                                                                                               : STATUS_CORRUPT;
}

/* Vectors of n_params floats come first, then the residuals: none, or one of each fragment of trained tensors. The
 * settings decide how many there are; the size of the file does, too. */
static enum status check_arrays(struct store *store, uint64_t round, const struct layout *layout,
                                const uint64_t *hashes, uint32_t n, uint64_t at, uint64_t total, float *room,
                                struct err *err)
{
    assert(layout->n_params > 0); /* head_decode_layout */
    const uint32_t F = layout_first_mean(layout);
    const uint64_t whole = layout->n_params * sizeof(float), bytes = total - at;
    uint64_t trained = 0;
    for (uint32_t f = 0; f < F; f++) trained += layout->fragments[f].count * sizeof(float);
    bool has_residuals = F && n >= F && bytes == (n - F) * whole + trained;
    uint32_t residuals = has_residuals ? F : 0;
    if (!has_residuals && bytes != n * whole) return bad(err, round, "has a wrong size");
    for (uint32_t i = 0; i < n; i++) {
        bool vector = i < n - residuals;
        size_t count = vector ? layout->n_params : layout->fragments[i - (n - residuals)].count;
        TRY(store->ops->checkpoint_state_read(store, round, at, room, count * sizeof *room, err));
        if (hash_floats(NULL, room, count) != hashes[i]) return bad(err, round, "is damaged");
        at += count * sizeof *room;
    }
    assert(at == total);
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
    uint8_t *bytes = NULL;
    struct head head;
    size_t size = 0;
    uint64_t total;
    struct layout layout;
    float *room = NULL;
    TRY(read_head(store, round, &bytes, &size, &total, err));
    struct reader r = reader_of(bytes, size);
    layout_init(&layout);
    enum status status = head_decode_layout(&layout, info, &head, &r);
    mem_free(bytes);
    if (status == STATUS_CORRUPT || (status == STATUS_OK && round != CHECKPOINT_ANY && info->round != round))
        status = bad(err, round, "is damaged");
    else if (status == STATUS_OK && !(room = mem_alloc(layout.n_params, sizeof *room)))
        status = err_set(err, STATUS_NOMEM, "no memory to check a checkpoint");
    if (status == STATUS_OK)
        status = check_arrays(store, round, &layout, head.hashes, head.n, PREFIX + size, total, room, err);
    if (status == STATUS_OK) status = check_theta(store, round, &layout, info, room, err);
    mem_free(room);
    layout_finish(&layout);
    return status;
}
