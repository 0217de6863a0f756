#include "worker/outer/outer_initial.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/tensor/safetensors.h"
#include "wire/initial.h"
#include "worker/outer/delta_host.h"
#include "worker/sync/sync.h"

/* A piece of the object. */
struct piece {
    const void *data; /* NULL: the values of a frozen tensor, which the program reads */
    uint64_t size;
    uint32_t frozen; /* its index in model->frozen */
};

struct outer_initial {
    const struct outer_model *model;
    uint64_t total;
    uint8_t head[INITIAL_HEAD_MAX];
    struct safetensors_tensor *tensors; /* [n_tensors] by name */
    struct safetensors_tensor *frozen;  /* [model->frozen->n] in the order of their file */
    uint8_t *model_head, *frozen_head;  /* of model.safetensors and frozen.safetensors */
    struct piece *pieces;               /* [n_pieces] the object end to end */
    uint32_t n_pieces;
    uint8_t chunk[SYNC_CHUNK];
};

static void add_piece(struct outer_initial *in, struct piece piece)
{
    in->pieces[in->n_pieces++] = piece;
    in->total += piece.size;
}

static void add_part(struct outer_initial *in, const void *data, size_t size)
{
    add_piece(in, (struct piece){.data = data, .size = size});
}

static uint32_t n_frozen(const struct outer_model *model)
{
    return model->frozen && model->frozen_read ? model->frozen->n : 0;
}

static enum status add_file(struct initial_head *head, const struct outer_file *file, uint64_t *bytes, struct err *err)
{
    if (!hf_files_allowed(file->name))
        return err_set(err, STATUS_INVALID, "the file '%.80s' does not belong to a model folder: leave it out",
                       file->name);
    *bytes += file->size;
    if (*bytes > HF_FILES_BYTES_MAX || head->n_files >= HF_FILES_MAX)
        return err_set(err, STATUS_INVALID, "the model's files exceed %d MiB or %d files: leave some out",
                       HF_FILES_BYTES_MAX >> 20, HF_FILES_MAX);
    struct initial_file *f = &head->files[head->n_files++];
    snprintf(f->name, sizeof f->name, "%s", file->name);
    f->size = file->size;
    return STATUS_OK;
}

/* Makes the header of frozen.safetensors and adds the file to the head. */
static enum status make_frozen_head(struct outer_initial *in, const struct outer_model *model,
                                    struct initial_head *head, size_t *size_p, struct err *err)
{
    uint32_t n = n_frozen(model);
    *size_p = 0;
    if (!n) return STATUS_OK;
    frozen_entries(model->frozen, in->frozen);
    TRY(safetensors_head(in->frozen, n, &in->frozen_head, size_p, err));
    struct initial_file *file = &head->files[head->n_files++];
    snprintf(file->name, sizeof file->name, "%s", INITIAL_FROZEN);
    file->size = *size_p;
    for (uint32_t i = 0; i < n; i++) file->size += in->frozen[i].bytes;
    return STATUS_OK;
}

static void add_frozen(struct outer_initial *in, const struct outer_model *model, size_t head_size)
{
    uint32_t n = n_frozen(model);
    if (n) add_part(in, in->frozen_head, head_size);
    for (uint32_t i = 0; i < n; i++) {
        const struct frozen_tensor *t = frozen_find(model->frozen, in->frozen[i].name);
        assert(t);
        add_piece(in, (struct piece){.size = t->bytes, .frozen = (uint32_t)(t - model->frozen->tensors)});
    }
}

static enum status make(struct outer_initial *in, const struct outer_model *model, struct err *err)
{
    struct initial_head head = {0};
    const struct layout *layout = model->layout;
    uint64_t bytes = 0;
    size_t size, frozen_size;
    in->model = model;
    safetensors_of_theta(in->tensors, layout, model->initial);
    TRY(safetensors_head(in->tensors, layout->n_tensors, &in->model_head, &size, err));
    for (uint32_t i = 0; i < model->n_files; i++)
        if (model->files[i].size) TRY(add_file(&head, &model->files[i], &bytes, err));
    struct initial_file *last = &head.files[head.n_files++];
    snprintf(last->name, sizeof last->name, "%s", INITIAL_MODEL);
    last->size = size + layout->n_params * sizeof(float);
    TRY(make_frozen_head(in, model, &head, &frozen_size, err));
    add_part(in, in->head, initial_head_encode(&head, in->head));
    for (uint32_t i = 0; i < model->n_files; i++)
        if (model->files[i].size) add_part(in, model->files[i].data, model->files[i].size);
    add_part(in, in->model_head, size);
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        add_part(in, in->tensors[i].data, safetensors_tensor_bytes(&in->tensors[i]));
    add_frozen(in, model, frozen_size);
    assert(in->total == initial_total(&head));
    return STATUS_OK;
}

enum status outer_initial_open(struct outer_initial **initial_p, const struct outer_model *model, struct err *err)
{
    if (!model->initial)
        return err_set(err, STATUS_INVALID,
                       "the run has no model yet, and this worker has no parameters to start from");
    char text[DELTA_HOST_TEXT];
    if (delta_host_nonfinite_text(model->layout, model->initial, text))
        return err_set(err, STATUS_NONFINITE, "the model cannot start the run: %s: initialize it, then join again",
                       text);
    struct outer_initial *in = mem_alloc(1, sizeof *in);
    if (in) in->tensors = mem_alloc(model->layout->n_tensors, sizeof *in->tensors);
    if (in) in->frozen = mem_alloc(n_frozen(model), sizeof *in->frozen);
    size_t pieces = (size_t)model->layout->n_tensors + model->n_files + n_frozen(model) + 3;
    if (in) in->pieces = mem_alloc(pieces, sizeof *in->pieces);
    bool room = in && in->tensors && in->frozen && in->pieces;
    enum status status = room ? make(in, model, err) : err_set(err, STATUS_NOMEM, "no memory for an upload");
    if (status == STATUS_OK)
        *initial_p = in;
    else
        outer_initial_close(in);
    return status;
}

void outer_initial_close(struct outer_initial *in)
{
    if (!in) return;
    mem_free(in->tensors);
    mem_free(in->frozen);
    mem_free(in->model_head);
    mem_free(in->frozen_head);
    mem_free(in->pieces);
    mem_free(in);
}

uint64_t outer_initial_total(const struct outer_initial *in)
{
    return in->total;
}

/* Copies bytes [offset, offset + n) of a piece. */
static enum status copy(struct outer_initial *in, const struct piece *piece, uint64_t offset, uint8_t *out, size_t n,
                        struct err *err)
{
    const struct outer_model *model = in->model;
    if (piece->data) memcpy(out, (const uint8_t *)piece->data + offset, n);
    if (piece->data || !model->frozen_read(model->frozen_ctx, piece->frozen, offset, out, n)) return STATUS_OK;
    return err_set(err, STATUS_IO, "the program cannot read the frozen tensor '%s', which checkpoints hold",
                   model->frozen->tensors[piece->frozen].name);
}

const uint8_t *outer_initial_read(struct outer_initial *in, uint64_t offset, size_t length, struct err *err)
{
    size_t got = 0;
    assert(length <= sizeof in->chunk && offset <= in->total && length <= in->total - offset);
    for (uint32_t i = 0; i < in->n_pieces && got < length; i++) {
        const struct piece *piece = &in->pieces[i];
        if (offset >= piece->size) {
            offset -= piece->size;
            continue;
        }
        size_t n = piece->size - offset < length - got ? (size_t)(piece->size - offset) : length - got;
        if (copy(in, piece, offset, in->chunk + got, n, err) != STATUS_OK) return NULL;
        got += n;
        offset = 0;
    }
    assert(got == length);
    return in->chunk;
}
