/* Takes tensors out of a model folder as they are: those that a run does not exchange. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_folder.h"

struct taking {
    const struct frozen *list;
    struct safetensors_tensor *tensors; /* [list->n] data NULL: not found yet */
    struct safetensors *maps;           /* [n_maps] open files: they hold the data */
    uint32_t n_maps;
};

static enum status take_file(struct taking *t, const char *folder, const char *name, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct safetensors *st = &t->maps[t->n_maps];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    TRY(safetensors_open(st, path, err));
    t->n_maps++;
    for (uint32_t i = 0; i < st->n; i++) {
        const struct safetensors_entry *e = &st->entries[i];
        const struct frozen_tensor *wanted = frozen_find(t->list, e->name);
        if (!wanted || !frozen_is(wanted, e)) continue;
        struct safetensors_tensor *out = &t->tensors[wanted - t->list->tensors];
        out->data = e->data;
    }
    return STATUS_OK;
}

static enum status take_shards(struct taking *t, const char *folder, const json_t *map, struct err *err)
{
    json_t *done = json_object(), *value;
    const char *tensor;
    enum status status = done ? STATUS_OK : STATUS_NOMEM;
    t->maps = mem_alloc(json_object_size(map), sizeof *t->maps);
    if (!t->maps) status = STATUS_NOMEM;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (status != STATUS_OK || !file || strchr(file, '/') || json_object_get(done, file)) continue;
        status = json_object_set_new(done, file, json_true()) ? STATUS_NOMEM : take_file(t, folder, file, err);
    }
    json_decref(done);
    return status;
}

static enum status take_folder(struct taking *t, const char *folder, struct err *err)
{
    static const char *const names[] = {"model.safetensors", "adapter_model.safetensors"};
    char path[FILEIO_PATH_MAX];
    void *text;
    size_t size;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    bool sharded = file_exists(path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char whole[FILEIO_PATH_MAX];
        snprintf(whole, sizeof whole, "%s/%s", folder, names[i]);
        if (!file_exists(whole) || (sharded && i)) continue;
        t->maps = mem_alloc(1, sizeof *t->maps);
        return t->maps ? take_file(t, folder, names[i], err) : STATUS_NOMEM;
    }
    TRY(file_read(path, SAFETENSORS_HEADER_MAX, &text, &size, err));
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    enum status status = take_shards(t, folder, json_object_get(root, "weight_map"), err);
    json_decref(root);
    mem_free(text);
    return status;
}

static const struct frozen_tensor *first_missing(const struct taking *t)
{
    for (uint32_t i = 0; i < t->list->n; i++)
        if (!t->tensors[i].data) return &t->list->tensors[i];
    return NULL;
}

enum status hf_folder_take(const char *folder, const struct frozen *list, const char *path, struct err *err)
{
    struct taking t = {.list = list, .tensors = mem_alloc(list->n, sizeof *t.tensors)};
    enum status status = STATUS_NOMEM;
    if (t.tensors) {
        frozen_entries(list, t.tensors);
        status = take_folder(&t, folder, err);
    }
    if (status == STATUS_NOMEM) status = err_set(err, status, "no memory to read %.300s", folder);
    if (status == STATUS_OK) {
        const struct frozen_tensor *missing = first_missing(&t);
        status = missing ? err_set(err, STATUS_NOTFOUND,
                                   "%.300s lacks the frozen tensor '%.191s' with dtype %s and its shape", folder,
                                   missing->name, missing->dtype)
                         : safetensors_write(path, t.tensors, list->n, err);
    }
    for (uint32_t i = 0; i < t.n_maps; i++) safetensors_close(&t.maps[i]);
    mem_free(t.maps);
    mem_free(t.tensors);
    return status;
}
