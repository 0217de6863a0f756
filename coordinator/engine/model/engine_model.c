/* The first JOIN defines the run: layout, data set and theta_0. */
#include "coordinator/engine/model/engine_model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/config/config_init.h"
#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "common/tensor/hf_config.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"
#include "coordinator/ledger/checkpoint_folder.h"
#include "coordinator/ledger/init_folder.h"
#include "coordinator/outer/outer_arrays.h"

struct init_folder *engine_initial_folder(const struct engine *e)
{
    return e->store->ops->init_folder ? e->store->ops->init_folder(e->store) : NULL;
}

const char *engine_initial_found(const struct engine *e)
{
    struct init_folder *folder = engine_initial_folder(e);
    return folder && config_is_external(&e->config) ? init_folder_path(folder) : NULL;
}

static enum status forget_initial(struct engine *e, struct err *err)
{
    e->init_dir = e->ledger.init_dir = NULL;
    return init_folder_remove(engine_initial_folder(e), err);
}

/* The folder may have changed since the settings were read. A folder without config.json passes. */
static enum status init_fits(struct engine *e, struct err *err)
{
    struct config init;
    if (config_is_external(&e->config)) return STATUS_OK; /* its tensors are those of the worker's layout */
    enum status status = config_init_load(&init, e->init_dir, err);
    if (status != STATUS_OK) return status == STATUS_NOTFOUND ? STATUS_OK : status;
    return config_init_model(&e->config, NULL, &init, e->init_dir, err);
}

static bool is_uploaded(const struct engine *e)
{
    return e->init_dir && e->init_dir == engine_initial_found(e);
}

/* INVALID: the uploaded folder does not hold the tensors that are not exchanged, but checkpoints need them. */
static enum status check_uploaded(const struct engine *e, const struct msg_join *m, const struct frozen *frozen,
                                  struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct safetensors file;
    if (!is_uploaded(e) || !m->frozen_whole || !frozen->n) return STATUS_OK;
    if (snprintf(path, sizeof path, "%s/" FROZEN_FILE, e->init_dir) >= (int)sizeof path)
        return err_set(err, STATUS_INVALID, "the path of the run folder is too long");
    enum status status = safetensors_open(&file, path, err);
    if (status == STATUS_OK) status = frozen_check_file(frozen, &file, err);
    safetensors_close(&file);
    return status == STATUS_OK || status == STATUS_NOMEM ? status : (err->code = STATUS_INVALID);
}

/* Computes the hashes of theta_0. The ledger gets it, unless it is read from a folder: then it is read, and checked,
 * again. */
static enum status initial_hashes(struct engine *e, const struct msg_join *m, const struct layout *layout,
                                  const struct frozen *frozen, struct record_model *model, struct err *err)
{
    ledger_place(&e->ledger, layout);
    float *theta = outer_array_alloc(e->ledger.state_file, layout->n_params, sizeof *theta);
    if (!theta)
        return err_set(err, STATUS_NOMEM, "no memory for %llu parameters", (unsigned long long)layout->n_params);
    bool recorded;
    const struct frozen *others = m->frozen_any ? NULL : frozen; /* another quantization has other tensors */
    enum status status = e->init_dir ? hf_folder_load_part(e->init_dir, layout, others, theta, err) : STATUS_OK;
    if (e->init_dir && status == STATUS_OK) status = checkpoint_folder_check(e->init_dir, &recorded, err);
    if (status != STATUS_OK && status != STATUS_NOMEM) { /* a wrong model.init_from: a restart would not help */
        if (!is_uploaded(e)) err_prefix(err, "model.init_from");
        status = err->code = STATUS_INVALID;
    }
    model->n_hashes = layout->n_fragments;
    for (uint32_t f = 0; status == STATUS_OK && f < layout->n_fragments; f++) {
        const struct fragment *frag = &layout->fragments[f];
        if (!e->init_dir) layout_fill(layout, f, e->config.run.seed, theta + frag->offset);
        model->hashes[f] = hash_floats(NULL, theta + frag->offset, frag->count);
    }
    mem_free(e->ledger.initial);
    e->ledger.initial = status == STATUS_OK && !e->init_dir ? theta : NULL;
    if (e->ledger.initial) return status;
    mem_free(theta);
    const int file = e->ledger.state_file; /* nothing else is in it yet */
    if (file >= 0 && status == STATUS_OK && ftruncate(file, 0))
        status = err_set(err, STATUS_IO, "cannot shorten the file of the outer state: %s", strerror(errno));
    return status;
}

/* The file of data.tokenizer; NULL: "bytes" or "none". */
static const char *tokenizer_file(const struct engine *e)
{
    const char *name = e->ledger.region ? "none" : e->config.data.tokenizer; /* upstream's checkpoints hold it */
    return strcmp(name, "bytes") && strcmp(name, "none") ? name : NULL;
}

enum status engine_check_sources(const struct engine *e, struct err *err)
{
    void *text;
    size_t size;
    if (e->init_dir && hf_folder_check(e->init_dir, err) != STATUS_OK) {
        err_prefix(err, "model.init_from");
        return STATUS_INVALID;
    }
    if (!tokenizer_file(e)) return STATUS_OK;
    enum status status = hf_tokenizer_read(tokenizer_file(e), &text, &size, err);
    if (status == STATUS_OK) mem_free(text);
    if (status == STATUS_OK || status == STATUS_NOMEM) return status;
    err_prefix(err, "data.tokenizer");
    return err->code = STATUS_INVALID;
}

enum status engine_keep_files(struct engine *e, const struct frozen *frozen, bool anew, struct err *err)
{
    struct err why = {0};
    if (!e->store->ops->files_keep) return STATUS_OK;
    if (anew) TRY(engine_check_sources(e, err));
    enum status status =
        e->store->ops->files_keep(e->store, e->init_dir, tokenizer_file(e), config_is_external(&e->config),
                                  frozen && frozen->n ? frozen : NULL, anew, &why);
    if (status == STATUS_OK) return STATUS_OK;
    if (anew) return err_set(err, status, "%s", why.msg);
    log_warn("writing checkpoints without a tokenizer: %s", why.msg);
    return STATUS_OK;
}

/* The config.json of checkpoints: the worker's text with the special token ids of init_dir. *out NULL: unchanged. */
static enum status model_text(const struct engine *e, const char *given, char **out, struct err *err)
{
    *out = NULL;
    if (!e->init_dir || config_is_external(&e->config)) return STATUS_OK;
    enum status status = hf_config_with_ids(given, e->init_dir, out, err);
    if (*out && strlen(*out) >= WIRE_CONFIG_MAX) { /* only a hostile worker sends so long a text */
        mem_free(*out);
        *out = NULL;
    }
    if (status == STATUS_OK || status == STATUS_NOMEM) return status;
    err_prefix(err, "model.init_from");
    return err->code = STATUS_INVALID;
}

static enum status write_model(struct engine *e, const struct msg_join *m, const struct layout *layout,
                               const struct frozen *frozen, struct err *err)
{
    struct record_model model = {.train_hash = m->train_hash,
                                 .val_hash = m->val_hash,
                                 .train_samples = m->train_samples,
                                 .val_samples = m->val_samples,
                                 .sample_tokens = m->sample_tokens,
                                 .layout = m->layout,
                                 .layout_size = m->layout_size,
                                 .frozen = m->frozen ? m->frozen : (const uint8_t *)"",
                                 .frozen_size = m->frozen_size,
                                 .frozen_whole = m->frozen_whole};
    char *text;
    if (e->init_dir) TRY(init_fits(e, err));
    TRY(initial_hashes(e, m, layout, frozen, &model, err));
    TRY(model_text(e, m->model_config, &text, err));
    model.model_config = text ? text : m->model_config;
    model.model_config_size = strlen(model.model_config);
    enum status status = ledger_write(&e->ledger, RECORD_MODEL, &model, NULL, err);
    mem_free(text);
    return status;
}

/* The memory of this machine in bytes; UINT64_MAX: unknown. */
static uint64_t memory_total(void)
{
    uint64_t left, total;
    host_memory(&left, &total);
    return total ? total : UINT64_MAX;
}

/* The bytes that a file of the run folder can hold if memory is short (coordinator/ledger/place/state_file.h). */
static uint64_t bytes_in_file(const struct engine *e, const struct layout *layout)
{
    uint64_t bytes = outer_arrays_bytes(&e->config, layout);
    return store_folder(e->store) && bytes <= e->store->ops->free_bytes(e->store) ? bytes : 0;
}

/* Refuses the worker and returns false if the model does not fit this machine, or a fragment does not fit its codec. If
 * theta alone is too large, the codecs are not checked. */
static bool memory_suffices(struct engine *e, uint64_t peer, const struct msg_join *m, const struct layout *layout)
{
    uint64_t need = layout->n_params * sizeof(float), all = memory_total(), in_file = bytes_in_file(e, layout);
    char wants[MEMORY_TEXT_MAX], has[MEMORY_TEXT_MAX];
    struct err why = {0};
    enum status status = STATUS_OK;
    if (need < all || in_file)
        status = outer_state_bytes(&need, &e->config, layout, e->config.coordinator.min_workers, &why);
    if (need > all && in_file) need -= in_file;
    if (status_is_permanent(status))
        engine_refuse(e, peer, m->name, REFUSE_LAYOUT, "the coordinator cannot serve the model of '%s': %s", m->name,
                      why.msg);
    else if (need > all)
        engine_refuse(e, peer, m->name, REFUSE_LAYOUT,
                      "the model of '%s' has %llu parameters: the coordinator would need at "
                      "least %s of memory and has %s",
                      m->name, (unsigned long long)layout->n_params, memory_text(need, wants), memory_text(all, has));
    else
        return true;
    return false;
}

bool engine_has_memory(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    uint64_t need = 0, all = memory_total();
    uint32_t workers = 1;
    char wants[MEMORY_TEXT_MAX], has[MEMORY_TEXT_MAX];
    struct err why = {0};
    for_each_session(e, s) workers += memcmp(s->uuid, m->uuid, WIRE_UUID) != 0;
    if (outer_state_bytes(&need, &e->config, &e->ledger.layout, workers, &why) != STATUS_OK) return true;
    if (e->ledger.state_file >= 0) need -= outer_arrays_bytes(&e->config, &e->ledger.layout);
    uint64_t theta = e->ledger.layout.n_params * sizeof(float);
    need += min_u64(UPLOAD_CREDIT + e->ledger.held.most, workers * theta);
    need += min_u64(e->chunks.n * (uint64_t)DOWNLOAD_CHUNK, theta);
    if (need <= all) return true;
    engine_refuse(e, peer, m->name, REFUSE_FULL,
                  "the run has no memory for '%s': with %u workers the coordinator would need %s of memory and has %s; "
                  "it gets a place when another worker leaves",
                  m->name, workers, memory_text(need, wants), memory_text(all, has));
    return false;
}

/* Refuses the worker and returns false if its JOIN cannot start a run. */
static bool first_join_fits(struct engine *e, uint64_t peer, const struct msg_join *m, const struct layout *layout,
                            const struct frozen *frozen)
{
    bool external = config_is_external(&e->config), apart = true;
    for (uint32_t i = 0; i < layout->n_tensors; i++) apart = apart && !frozen_find(frozen, layout->tensors[i].name);
    if (!layout->n_fragments || layout_hash(layout) != m->layout_hash)
        engine_refuse(e, peer, m->name, REFUSE_MALFORMED, "the layout of '%s' is malformed", m->name);
    else if (!apart || frozen_file_most(frozen) > FROZEN_BYTES_MAX)
        engine_refuse(e, peer, m->name, REFUSE_MALFORMED, "the list of frozen tensors of '%s' is malformed", m->name);
    else if (!m->sample_tokens)
        engine_refuse(e, peer, m->name, REFUSE_DATASET, "samples of '%s' have no tokens", m->name);
    else if (!external && m->sample_tokens != e->config.model.block_size)
        engine_refuse(e, peer, m->name, REFUSE_CONFIG, "samples of '%s' have %u tokens, but model.block_size is %u",
                      m->name, m->sample_tokens, e->config.model.block_size);
    else if (!external && !m->train_samples)
        engine_refuse(e, peer, m->name, REFUSE_DATASET, "the training data of '%s' has no sample of %u tokens", m->name,
                      m->sample_tokens);
    else
        return memory_suffices(e, peer, m, layout);
    return false;
}

enum status engine_read_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct layout *layout,
                              struct frozen *frozen, bool *fits_p, struct err *err)
{
    struct reader r = reader_of(m->layout, m->layout_size);
    enum status status = layout_decode(layout, &r), listed = frozen_decode(frozen, m->frozen, m->frozen_size);
    *fits_p = false;
    if (status == STATUS_NOMEM || listed == STATUS_NOMEM) return err_set(err, STATUS_NOMEM, "no memory for the layout");
    if (listed != STATUS_OK)
        engine_refuse(e, peer, m->name, REFUSE_MALFORMED, "the list of frozen tensors of '%s' is malformed", m->name);
    else if (status != STATUS_OK || !reader_done(&r))
        engine_refuse(e, peer, m->name, REFUSE_MALFORMED, "the layout of '%s' is malformed", m->name);
    else
        *fits_p = first_join_fits(e, peer, m, layout, frozen);
    return STATUS_OK;
}

/* model.family external: a folder that does not fit the worker's layout is the worker's fault, not the run's. An
 * uploaded one is removed. */
static enum status refuse_initial(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err)
{
    char why[400];
    snprintf(why, sizeof why, "%.390s", err->msg);
    *err = (struct err){0};
    engine_refuse(e, peer, m->name, REFUSE_LAYOUT, "the run's initial model does not fit that of '%s': %s", m->name,
                  why);
    return is_uploaded(e) ? forget_initial(e, err) : STATUS_OK;
}

/* The first JOIN, whose layout fits. */
struct definition {
    struct engine *e;
    const struct msg_join *join;
    const struct layout *layout;
    const struct frozen *frozen;
    bool refused; /* the initial model does not fit the worker's */
};

/* Long work: it reads all of the initial model. */
static enum status define(void *arg, struct err *err)
{
    struct definition *d = arg;
    struct engine *e = d->e;
    enum status status = check_uploaded(e, d->join, d->frozen, err);
    d->refused = status == STATUS_INVALID;
    if (status != STATUS_OK) return status;
    TRY(engine_keep_files(e, d->join->frozen_whole ? d->frozen : NULL, true, err));
    status = write_model(e, d->join, d->layout, d->frozen, err);
    d->refused = status == STATUS_INVALID && config_is_external(&e->config);
    return status;
}

enum status engine_define_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err)
{
    struct layout layout;
    struct frozen frozen = {0};
    struct err why = {0};
    bool fits;
    assert(!e->ledger.modelled && !e->n_kept);
    layout_init(&layout);
    enum status status = engine_read_model(e, peer, m, &layout, &frozen, &fits, err);
    if (status == STATUS_OK && fits) {
        struct definition d = {.e = e, .join = m, .layout = &layout, .frozen = &frozen};
        status = engine_long(e, ENGINE_SYNCS, define, &d, &why);
        if (d.refused) status = refuse_initial(e, peer, m, &why);
        if (status != STATUS_OK) (void)err_set(err, status, "%s", why.msg);
    }
    layout_finish(&layout);
    frozen_finish(&frozen);
    return status;
}
