/* The initial model of a run of model.family external: the first worker uploads it to RUN/init, and the run goes on as
 * if model.init_from named that folder.
 *
 * - One worker uploads. Others wait; one of them takes over when the connection of the uploader is closed, or it is
 *   silent for INITIAL_SILENT_US.
 * - The upload is not part of the run's state: after a restart it begins again.
 * - Before a byte is written: the layout of JOIN passes all checks of a first JOIN, and the sizes of all files follow
 *   from it or are limited. The head comes first.
 * - The bytes are only accepted from the key of that JOIN, in order, below the granted offset. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/model/engine_model.h"
#include "coordinator/engine/state/engine_effects.h"
#include "coordinator/ledger/init_folder.h"

enum {
    INITIAL_SILENT_US = 30000000,
    TENSOR_TEXT_MAX = 1024,                             /* of one tensor in the header of model.safetensors */
    LOST_CHUNKS = UPLOAD_CREDIT / 2 / RATE_CHUNK_BYTES, /* allowed again after each JOIN: twice the first credit */
};

bool engine_wants_initial(const struct engine *e)
{
    return !e->ledger.modelled && !e->init_dir && config_is_external(&e->config) && !e->ledger.region;
}

void engine_initial_drop(struct engine *e)
{
    mem_free(e->initial.join);
    e->initial = (struct engine_initial){0};
}

/* Keeps a copy of JOIN: it defines the model when all bytes are here. */
static enum status keep_join(struct engine_initial *u, const struct msg_join *m, struct err *err)
{
    size_t text = strlen(m->model_config) + 1;
    u->join = mem_alloc(1, sizeof *u->join + m->layout_size + m->frozen_size + text);
    if (!u->join) return err_set(err, STATUS_NOMEM, "no memory for a layout");
    uint8_t *layout = (uint8_t *)(u->join + 1), *frozen = layout + m->layout_size;
    char *config = (char *)frozen + m->frozen_size;
    memcpy(layout, m->layout, m->layout_size);
    if (m->frozen_size) memcpy(frozen, m->frozen, m->frozen_size);
    memcpy(config, m->model_config, text);
    *u->join = *m;
    u->join->layout = layout;
    u->join->frozen = frozen;
    u->join->model_config = config;
    return STATUS_OK;
}

static enum status send_upload(struct engine *e)
{
    const struct engine_initial *u = &e->initial;
    struct msg m = {.type = MSG_UPLOAD, .upload = {.upload = u->id, .have = u->have, .upto = u->upto}};
    return engine_send(e, u->control, WIRE_CONTROL, &m);
}

/* Bytes that the upload has at most, without the small files. */
static uint64_t most_bytes(const struct engine_initial *u)
{
    return u->most + u->most_frozen;
}

const char *engine_initial_text(const struct engine *e, char *out, size_t cap)
{
    const struct engine_initial *u = &e->initial;
    uint64_t silent_us = e->now_us - u->heard_us;
    snprintf(out, cap, "the initial model, which %s uploads (%s of %s", u->join->name,
             units_bytes((double)u->have).text, units_bytes((double)(u->total ? u->total : most_bytes(u))).text);
    if (silent_us >= ENGINE_SILENT_US)
        text_add(out, cap, ", silent for %s", units_whole_seconds((double)silent_us * 1e-6).text);
    text_add(out, cap, ")");
    return out;
}

void engine_initial_wait(struct engine *e, uint64_t peer)
{
    struct engine_initial *u = &e->initial;
    for (uint32_t i = 0; i < u->n_others; i++)
        if (u->others[i] == peer) return;
    if (u->n_others < ENGINE_OTHERS) u->others[u->n_others++] = peer;
}

void engine_initial_reassure(struct engine *e)
{
    const struct engine_initial *u = &e->initial;
    struct msg m = {.type = MSG_UPLOAD};
    if (u->id && send_upload(e) != STATUS_OK) log_debug("cannot send UPLOAD: the worker will repeat JOIN");
    snprintf(m.upload.text, sizeof m.upload.text, "the coordinator, which stores the initial model");
    for (uint32_t i = 0; i < u->n_others; i++)
        if (engine_send(e, u->others[i], WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send UPLOAD");
}

/* Tells another worker to wait. False: it takes over. */
static bool must_wait(struct engine *e, uint64_t peer)
{
    struct msg m = {.type = MSG_UPLOAD};
    if (e->now_us - e->initial.heard_us >= INITIAL_SILENT_US || send_upload(e) == STATUS_CLOSED) return false;
    engine_initial_wait(e, peer);
    engine_initial_text(e, m.upload.text, sizeof m.upload.text);
    if (engine_send(e, peer, WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send UPLOAD: it will join again");
    return true;
}

static enum status begin(struct engine *e, uint64_t peer, const struct msg_join *m, const struct layout *layout,
                         const struct frozen *frozen, struct err *err)
{
    struct engine_initial *u = &e->initial;
    TRY(init_folder_begin(engine_initial_folder(e), err));
    TRY(keep_join(u, m, err));
    u->id = engine_draw(e);
    u->control = peer;
    u->heard_us = e->now_us;
    u->upto = upload_credit(&e->sessions.uploads);
    u->most = layout->n_params * sizeof(float) + (uint64_t)layout->n_tensors * TENSOR_TEXT_MAX + TENSOR_TEXT_MAX;
    u->most_frozen = m->frozen_whole && frozen->n ? frozen_file_most(frozen) : 0;
    rate_grant(&e->rate, e->speaker, RATE_CHUNK, 2 * (double)((most_bytes(u) + HF_FILES_BYTES_MAX) / RATE_CHUNK_BYTES));
    log_info("waiting for the initial model, which %s uploads: %llu parameters", m->name,
             (unsigned long long)layout->n_params);
    engine_progress(e);
    return STATUS_OK;
}

/* The uploader repeats its JOIN. */
static bool is_uploader(const struct engine *e, const struct msg_join *m)
{
    const struct engine_initial *u = &e->initial;
    return u->id && !memcmp(u->join->uuid, m->uuid, WIRE_UUID) && u->join->layout_hash == m->layout_hash &&
           u->join->frozen_size == m->frozen_size && u->join->frozen_whole == m->frozen_whole &&
           (!m->frozen_size || !memcmp(u->join->frozen, m->frozen, m->frozen_size));
}

enum status engine_initial_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err)
{
    struct engine_initial *u = &e->initial;
    struct layout layout;
    struct frozen frozen = {0};
    bool fits;
    if (u->id && memcmp(u->join->uuid, m->uuid, WIRE_UUID) != 0 && must_wait(e, peer)) return STATUS_OK;
    if (!is_uploader(e, m)) {
        if (!engine_initial_folder(e)) return err_set(err, STATUS_UNSUPPORTED, "this store keeps no initial model");
        if (u->id) log_info("%s takes over the upload of the initial model from %s", m->name, u->join->name);
        engine_initial_drop(e);
        layout_init(&layout);
        enum status status = engine_read_model(e, peer, m, &layout, &frozen, &fits, err);
        if (status == STATUS_OK && fits) status = begin(e, peer, m, &layout, &frozen, err);
        layout_finish(&layout);
        frozen_finish(&frozen);
        if (status != STATUS_OK || !fits) return status;
    }
    u->control = peer;
    u->heard_us = e->now_us;
    rate_grant(&e->rate, e->speaker, RATE_CHUNK, LOST_CHUNKS);
    if (send_upload(e) != STATUS_OK) log_debug("cannot send UPLOAD: the worker will repeat JOIN");
    return STATUS_OK;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static bool may_upload(const struct engine *e, uint64_t peer)
{
    struct engine_peer p;
    if (!e->io.peer) return true;
    return e->io.peer(e->io.ctx, peer, &p) && !memcmp(p.key, e->initial.join->uuid, WIRE_UUID);
}

static void refuse(struct engine *e, const char *why)
{
    const struct engine_initial *u = &e->initial;
    engine_refuse(e, u->control, u->join->name, REFUSE_LAYOUT, "the initial model of '%s' is refused: %s",
                  u->join->name, why);
    engine_initial_drop(e);
    engine_progress(e);
}

/* False: the upload was refused. The first checkpoint is written at once, so all of it must fit twice. */
static bool disk_suffices(struct engine *e, uint64_t total)
{
    uint64_t left = e->store->ops->free_bytes(e->store);
    char why[256];
    if (total <= left / 2) return true;
    snprintf(why, sizeof why,
             "it has %s, and the first checkpoint needs as much again, but the disk of the run folder has %s left: "
             "free some, or start the run with another --dir",
             units_bytes((double)total).text, units_bytes((double)left).text);
    refuse(e, why);
    return false;
}

/* Takes the head from the first chunk; false: the upload was refused. */
static bool take_head(struct engine *e, const struct msg_chunk *m)
{
    struct engine_initial *u = &e->initial;
    struct err why = {0};
    uint64_t small = 0;
    bool fits = true, has_frozen = false;
    if (initial_head_decode(&u->head, m->data, m->size, &why) != STATUS_OK) {
        refuse(e, why.msg);
        return false;
    }
    for (uint32_t i = 0; i < u->head.n_files; i++) {
        const struct initial_file *file = &u->head.files[i];
        bool model = !strcmp(file->name, INITIAL_MODEL), frozen = !strcmp(file->name, INITIAL_FROZEN);
        if (model || frozen)
            fits = fits && file->size <= (model ? u->most : u->most_frozen);
        else
            small += file->size;
        has_frozen = has_frozen || frozen;
    }
    if (!fits || has_frozen != (u->most_frozen > 0) || small > HF_FILES_BYTES_MAX ||
        m->total != initial_total(&u->head)) {
        refuse(e, "the sizes of its files do not fit its layout");
        return false;
    }
    if (!disk_suffices(e, m->total)) return false;
    u->total = m->total;
    u->have = initial_head_size(&u->head);
    u->left = u->head.files[0].size;
    return true;
}

/* Writes bytes [u->have, ...) of the object. */
static enum status take_bytes(struct engine *e, const uint8_t *data, size_t size, struct err *err)
{
    struct engine_initial *u = &e->initial;
    while (size) {
        assert(u->file < u->head.n_files && u->left);
        size_t n = u->left < size ? (size_t)u->left : size;
        TRY(init_folder_write(engine_initial_folder(e), u->head.files[u->file].name, data, n, err));
        data += n;
        size -= n;
        u->have += n;
        u->left -= n;
        if (!u->left && ++u->file < u->head.n_files) u->left = u->head.files[u->file].size;
    }
    return STATUS_OK;
}

/* The next write closes a file, which may be large. */
static bool ends_file(const struct engine_initial *u, size_t size)
{
    return size > u->left || u->left == u->head.files[u->file].size;
}

static enum status sync_files(void *folder, struct err *err)
{
    return init_folder_sync(folder, err);
}

static enum status commit(void *folder, struct err *err)
{
    return init_folder_commit(folder, err);
}

/* All bytes are here: the run starts from them. The upload ends when its worker has joined; until then it is answered.
 */
static enum status complete(struct engine *e, struct err *err)
{
    struct engine_initial *u = &e->initial;
    struct init_folder *folder = engine_initial_folder(e);
    if (send_upload(e) != STATUS_OK) log_debug("cannot send UPLOAD: the worker will repeat JOIN");
    TRY(engine_long(e, ENGINE_SYNCS, commit, folder, err));
    log_info("received the initial model of %s: %s", u->join->name, units_bytes((double)u->total).text);
    e->init_dir = e->ledger.init_dir = init_folder_path(folder);
    return STATUS_OK;
}

enum status engine_initial_chunk(struct engine *e, uint64_t peer, const struct msg_chunk *m, bool *complete_p,
                                 struct err *err)
{
    struct engine_initial *u = &e->initial;
    *complete_p = false;
    if (!u->id || m->key != u->id || !may_upload(e, peer)) return STATUS_OK;
    u->heard_us = e->now_us;
    if (m->offset != u->have || m->size > m->total - m->offset || m->offset + m->size > u->upto ||
        (u->total && m->total != u->total))
        return STATUS_OK;
    size_t head = 0;
    if (!u->total) {
        if (!take_head(e, m)) return STATUS_OK;
        head = (size_t)u->have;
    }
    if (ends_file(u, m->size - head)) TRY(engine_long(e, ENGINE_SYNCS, sync_files, engine_initial_folder(e), err));
    TRY(take_bytes(e, m->data + head, m->size - head, err));
    engine_progress(e);
    assert(u->have <= u->total);
    *complete_p = u->have == u->total;
    if (*complete_p) return complete(e, err);
    if (u->have < u->told + UPLOAD_STEP) return STATUS_OK;
    u->told = u->have;
    u->upto = u->have + min_u64(upload_credit(&e->sessions.uploads), u->total - u->have);
    if (send_upload(e) != STATUS_OK) log_debug("cannot send UPLOAD: the worker will repeat JOIN");
    return STATUS_OK;
}
