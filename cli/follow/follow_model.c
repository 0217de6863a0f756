#include "cli/follow/follow_model.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/base/pool.h"
#include "common/base/units.h"
#include "common/config/codec_choice.h"
#include "compress/apply_update.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "snapshots are stored in place");

enum { THREADS_MAX = 8, UPDATE_HEAD_MAX = 512 };

void follow_model_finish(struct follow_model *m)
{
    for (uint32_t i = 0; i < LAYOUT_FRAGMENTS_MAX; i++) codec_destroy(m->down[i]);
    layout_finish(&m->layout);
    mem_free(m->config_json);
    mem_free(m->theta);
    mem_free(m->named);
    mem_free(m->object);
    pool_destroy(m->pool);
    *m = (struct follow_model){0};
}

/* --- objects in memory -------------------------------------------------------------------------------------------- */

struct holding {
    struct follow_model *m;
    size_t most;
};

static enum status hold(void *ctx, uint64_t offset, const uint8_t *data, size_t size, uint64_t total, struct err *err)
{
    const struct holding *h = ctx;
    struct follow_model *m = h->m;
    if (total > h->most)
        return err_set(err, STATUS_CORRUPT, "the coordinator offers an object of %s, which is too large",
                       units_bytes((double)total).text);
    if (total > m->cap) {
        uint8_t *larger = mem_resize(m->object, m->cap, total);
        if (!larger) return err_set(err, STATUS_NOMEM, "no memory for %s", units_bytes((double)total).text);
        m->object = larger;
        m->cap = total;
    }
    memcpy(m->object + offset, data, size);
    m->size = total;
    return STATUS_OK;
}

/* --- description -------------------------------------------------------------------------------------------------- */

static enum status take_settings(struct follow_model *m, const char *text, struct err *err)
{
    static struct config_sources sources; /* large */
    config_defaults(&m->config, &sources);
    TRY(config_parse(&m->config, &sources, text, strlen(text), "settings of the run", CONFIG_COORDINATOR, err));
    m->updates = !config_may_relay(&m->config);
    for (uint32_t i = 0; m->updates && i < m->layout.n_fragments; i++) {
        char spec[CODEC_SPEC_MAX];
        config_down_spec(&m->config, layout_is_mean(&m->layout, i), spec);
        TRY(codec_create_for_fragment(&m->down[i], spec, &m->layout, i, err));
    }
    return STATUS_OK;
}

static enum status take_description(struct follow_model *m, struct err *err)
{
    static struct model_object described; /* large */
    if (model_object_decode(&described, m->object, m->size) != STATUS_OK)
        return err_set(err, STATUS_CORRUPT, "the coordinator's description of the model is damaged");
    struct reader r = reader_of(described.layout, described.layout_size);
    if (layout_decode(&m->layout, &r) != STATUS_OK || !reader_done(&r))
        return err_set(err, STATUS_CORRUPT, "the coordinator's layout of the model is damaged");
    m->n_files = described.n_files;
    memcpy(m->files, described.files, sizeof m->files);
    m->config_json = mem_strdup(described.config_json);
    m->theta = mem_alloc(m->layout.n_params, sizeof *m->theta);
    m->named = mem_alloc(WIRE_NAMED_MAX, sizeof *m->named);
    if (!m->config_json || !m->theta || !m->named)
        return err_set(err, STATUS_NOMEM, "no memory for the parameters (%s)",
                       units_bytes((double)m->layout.n_params * sizeof(float)).text);
    if (pool_create(pool_cores(THREADS_MAX), POOL_FLOATS_EXACT, &m->pool) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "cannot start threads");
    return take_settings(m, described.settings, err);
}

enum status follow_model_describe(struct follow_model *m, struct follow_link *l, struct err *err)
{
    struct holding whole = {m, MODEL_OBJECT_MAX};
    if (m->described) return STATUS_OK;
    TRY(follow_link_fetch(l, FETCH_MODEL, 0, 0, hold, &whole, err));
    layout_init(&m->layout);
    TRY(take_description(m, err));
    m->described = true;
    return STATUS_OK;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

struct loading {
    struct follow_model *m;
    uint32_t fragment;
    uint8_t head[SNAPSHOT_HEAD_BYTES];
};

static enum status load(void *ctx, uint64_t offset, const uint8_t *data, size_t size, uint64_t total, struct err *err)
{
    struct loading *l = ctx;
    const struct fragment *f = &l->m->layout.fragments[l->fragment];
    if (total != SNAPSHOT_HEAD_BYTES + f->count * sizeof(float))
        return err_set(err, STATUS_CORRUPT, "the snapshot of fragment %u has another size than its layout",
                       l->fragment);
    for (; size && offset < SNAPSHOT_HEAD_BYTES; size--) l->head[offset++] = *data++;
    if (size) memcpy((uint8_t *)(l->m->theta + f->offset) + (offset - SNAPSHOT_HEAD_BYTES), data, size);
    return STATUS_OK;
}

static enum status check_hash(struct follow_model *m, uint32_t fragment, uint64_t want, struct err *err)
{
    const struct fragment *f = &m->layout.fragments[fragment];
    if (hash_floats(m->pool, m->theta + f->offset, f->count) == want) return STATUS_OK;
    return err_set(err, STATUS_MISMATCH, "fragment %u has other parameters than the run: loading a snapshot", fragment);
}

static enum status load_fragment(struct follow_model *m, struct follow_link *link, uint32_t i, struct wire_version v,
                                 struct err *err)
{
    struct loading l = {.m = m, .fragment = i};
    struct snapshot_head head;
    TRY(follow_link_fetch(link, FETCH_SNAPSHOT, i, v.version, load, &l, err));
    if (snapshot_head_decode(&head, l.head, sizeof l.head) != STATUS_OK || head.fragment != i ||
        head.version != v.version)
        return err_set(err, STATUS_CORRUPT, "the snapshot of fragment %u is damaged", i);
    TRY(check_hash(m, i, head.hash, err));
    m->held[i] = v;
    return STATUS_OK;
}

static enum status apply(struct follow_model *m, uint32_t i, struct err *err)
{
    struct update u;
    struct codec_view view;
    float *theta = m->theta + m->layout.fragments[i].offset;
    if (update_decode(&u, m->named, WIRE_NAMED_MAX, m->object, m->size) != STATUS_OK || u.fragment != i ||
        u.version != m->held[i].version + 1 || strcmp(u.codec, codec_spec(m->down[i])) != 0 ||
        codec_open(m->down[i], u.payload, u.payload_size, NULL, &view) != STATUS_OK)
        return err_set(err, STATUS_CORRUPT, "update %llu of fragment %u is damaged",
                       (unsigned long long)m->held[i].version + 1, i);
    apply_update_view(m->pool, &view, u.form == UPDATE_PARAMETERS, theta);
    m->held[i] = (struct wire_version){u.version, u.theta_hash};
    return check_hash(m, i, u.theta_hash, err);
}

static enum status update_fragment(struct follow_model *m, struct follow_link *link, uint32_t i, uint64_t version,
                                   struct err *err)
{
    struct holding whole = {m, codec_bound(m->down[i]) + UPDATE_HEAD_MAX + WIRE_NAMED_MAX * (size_t)24};
    while (m->held[i].version < version) {
        TRY(follow_link_fetch(link, FETCH_UPDATE, i, m->held[i].version + 1, hold, &whole, err));
        TRY(apply(m, i, err));
        m->update_bytes += m->size - m->last_bytes[i];
        m->last_bytes[i] = m->size;
    }
    return STATUS_OK;
}

bool follow_model_is_costly(const struct follow_model *m, uint64_t rounds)
{
    return (double)m->update_bytes * (double)rounds > (double)m->layout.n_params * sizeof(float);
}

/* True: a snapshot and the updates after it have fewer bytes than the updates since `held`. */
static bool is_shorter(const struct follow_model *m, const struct msg_model_reply *r)
{
    double by_updates = 0, by_snapshot = (double)m->layout.n_params * sizeof(float);
    for (uint32_t f = 0; f < r->n_fragments; f++) {
        uint64_t held = m->held[f].version, current = r->current[f].version, snapshot = r->snapshot[f].version;
        if (held > current) return true; /* another history: the coordinator went back */
        by_updates += (double)(current - held) * (double)m->last_bytes[f];
        by_snapshot += (double)(current - min_u64(snapshot, current)) * (double)m->last_bytes[f];
    }
    return by_snapshot < by_updates;
}

static enum status load_all(struct follow_model *m, struct follow_link *l, const struct msg_model_reply *r,
                            struct err *err)
{
    m->loaded = false;
    for (uint32_t i = 0; i < r->n_fragments; i++) TRY(load_fragment(m, l, i, r->snapshot[i], err));
    m->loaded = true;
    m->round = r->snapshot_round;
    return STATUS_OK;
}

static enum status update_all(struct follow_model *m, struct follow_link *l, const struct msg_model_reply *r,
                              struct err *err)
{
    for (uint32_t i = 0; i < r->n_fragments; i++) {
        TRY(update_fragment(m, l, i, r->current[i].version, err));
        if (m->held[i].hash != r->current[i].hash)
            return err_set(err, STATUS_MISMATCH, "fragment %u has other parameters than the run: loading a snapshot",
                           i);
    }
    m->round = r->round;
    return STATUS_OK;
}

enum status follow_model_read(struct follow_model *m, struct follow_link *l, const struct msg_model_reply *newest,
                              struct err *err)
{
    assert(m->described);
    if (newest->n_fragments != m->layout.n_fragments)
        return err_set(err, STATUS_CORRUPT, "the coordinator's model has changed");
    bool load = !m->loaded || (m->updates ? is_shorter(m, newest) : m->round != newest->snapshot_round);
    if (load) TRY(load_all(m, l, newest, err));
    if (!m->updates) return STATUS_OK;
    enum status status = update_all(m, l, newest, err);
    /* Between two rounds, or not at all what the run has: the next call loads a snapshot. */
    if (status != STATUS_OK && status != STATUS_INTERRUPTED && status != STATUS_CLOSED) m->loaded = false;
    return status;
}

bool follow_model_resume(struct follow_model *m, const uint64_t *versions, uint64_t round, uint64_t theta_hash)
{
    if (layout_theta_hash(&m->layout, m->theta) != theta_hash) return false;
    for (uint32_t i = 0; i < m->layout.n_fragments; i++) {
        const struct fragment *f = &m->layout.fragments[i];
        m->held[i] = (struct wire_version){versions[i], hash_floats(m->pool, m->theta + f->offset, f->count)};
    }
    m->round = round;
    return m->loaded = true;
}
