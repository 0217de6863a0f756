#include "worker/outer/outer_initial.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/tensor/safetensors.h"
#include "wire/initial.h"
#include "worker/outer/delta_host.h"
#include "worker/sync/sync.h"

struct outer_initial {
    uint64_t total;
    uint8_t head[INITIAL_HEAD_MAX];
    struct safetensors_tensor *tensors; /* [n_tensors] by name */
    uint8_t *model_head;                /* of model.safetensors */
    struct outer_part *parts;           /* [n_parts] the object end to end */
    uint32_t n_parts;
    uint8_t chunk[SYNC_CHUNK];
};

static void add_part(struct outer_initial *in, const void *data, size_t size)
{
    in->parts[in->n_parts++] = (struct outer_part){data, size};
    in->total += size;
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

static enum status make(struct outer_initial *in, const struct outer_model *model, struct err *err)
{
    struct initial_head head = {0};
    const struct layout *layout = model->layout;
    uint64_t bytes = 0;
    size_t size;
    safetensors_of_theta(in->tensors, layout, model->initial);
    TRY(safetensors_head(in->tensors, layout->n_tensors, &in->model_head, &size, err));
    for (uint32_t i = 0; i < model->n_files; i++)
        if (model->files[i].size) TRY(add_file(&head, &model->files[i], &bytes, err));
    struct initial_file *last = &head.files[head.n_files++];
    snprintf(last->name, sizeof last->name, "%s", INITIAL_MODEL);
    last->size = size + layout->n_params * sizeof(float);
    add_part(in, in->head, initial_head_encode(&head, in->head));
    for (uint32_t i = 0; i < model->n_files; i++)
        if (model->files[i].size) add_part(in, model->files[i].data, model->files[i].size);
    add_part(in, in->model_head, size);
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        add_part(in, in->tensors[i].data, safetensors_tensor_bytes(&in->tensors[i]));
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
    if (in) in->parts = mem_alloc((size_t)model->layout->n_tensors + model->n_files + 2, sizeof *in->parts);
    enum status status =
        in && in->tensors && in->parts ? make(in, model, err) : err_set(err, STATUS_NOMEM, "no memory for an upload");
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
    mem_free(in->model_head);
    mem_free(in->parts);
    mem_free(in);
}

uint64_t outer_initial_total(const struct outer_initial *in)
{
    return in->total;
}

const uint8_t *outer_initial_read(struct outer_initial *in, uint64_t offset, size_t length)
{
    size_t got = 0;
    assert(length <= sizeof in->chunk && offset <= in->total && length <= in->total - offset);
    for (uint32_t i = 0; i < in->n_parts && got < length; i++) {
        const struct outer_part *part = &in->parts[i];
        if (offset >= part->size) {
            offset -= part->size;
            continue;
        }
        size_t n = part->size - offset < length - got ? part->size - (size_t)offset : length - got;
        memcpy(in->chunk + got, (const uint8_t *)part->data + offset, n);
        got += n;
        offset = 0;
    }
    assert(got == length);
    return in->chunk;
}
