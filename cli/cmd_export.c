/* atoll export: checks a checkpoint and writes it as a Hugging Face folder. Every tensor is read, checked against
 * config.json and the recorded hashes, and written again, so a written folder loads. */
#include <assert.h>
#include <stdio.h>
#include <sys/stat.h>

#include "cli/verbs.h"
#include "common/base/mem.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "common/tensor/safetensors.h"
#include "coordinator/run_folder.h"
#include "worker/model/model.h"

/* Builds the layout that config.json describes. */
static enum status layout_of_folder(struct layout *layout, const char *folder, struct err *err)
{
    struct model_config config;
    TRY(hf_config_load(&config, folder, err));
    const struct model_family *family = model_family_find(config.family);
    assert(family); /* hf_config_load takes no other */
    return family->layout(&config, layout, err);
}

struct content {
    uint32_t tensors;
    uint64_t params;
};

/* Counts the tensors of model.safetensors: a program of the run defined them (model.family external). */
static enum status count_tensors(struct content *content, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct safetensors st;
    TRY(run_folder_path(path, sizeof path, folder, "model.safetensors", err));
    TRY(safetensors_open(&st, path, err));
    *content = (struct content){.tensors = st.n};
    for (uint32_t i = 0; i < st.n; i++) content->params += st.entries[i].count;
    safetensors_close(&st);
    return STATUS_OK;
}

/* recorded: the folder is a checkpoint of a run, so its model may be a program's own. *copy_p: it is. */
static enum status layout_of(struct layout *layout, const char *folder, bool recorded, struct content *content,
                             bool *copy_p, struct err *err)
{
    enum status status = layout_of_folder(layout, folder, err);
    *copy_p = recorded && (status == STATUS_UNSUPPORTED || status == STATUS_NOTFOUND);
    *content = (struct content){layout->n_tensors, layout->n_params};
    if (!*copy_p) return status;
    *err = (struct err){0};
    return count_tensors(content, folder, err);
}

static enum status copy_model(const struct layout *layout, const char *from, const char *to, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *config = NULL;
    char *text = NULL;
    size_t size;
    enum status status = STATUS_OK;
    float *theta = mem_alloc(layout->n_params, sizeof *theta);
    if (!theta)
        return err_set(err, STATUS_NOMEM, "no memory for %llu parameters", (unsigned long long)layout->n_params);
    TRY_GOTO(hf_folder_load(from, layout, theta, err), out);
    TRY_GOTO(run_folder_path(path, sizeof path, from, "config.json", err), out);
    TRY_GOTO(file_read(path, HF_CONFIG_MAX, &config, &size, err), out);
    TRY_GOTO(hf_config_in_float32(config, size, &text, err), out);
    interrupt_catch();
    TRY_GOTO(hf_folder_write(to, layout, theta, text, from, err), out);
    status = hf_files_check_config(from, err);
    if (status != STATUS_OK && dir_remove_flat(to, NULL) != STATUS_OK)
        err_prefix(err, "%.300s may lack its tokenizer and cannot be removed", to);
out:
    mem_free(theta);
    mem_free(config);
    mem_free(text);
    return status;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    char folder[FILEIO_PATH_MAX], out[FILEIO_PATH_MAX], age[2 * FILEIO_PATH_MAX];
    struct layout layout;
    (void)ctx;
    TRY(run_folder_name(out, sizeof out, o->args[1], err));
    TRY(run_folder_checkpoint(o->args[0], folder, sizeof folder, err));
    struct stat st;
    if (!lstat(out, &st) &&
        S_ISLNK(st.st_mode)) /* the new folder is renamed to this path, which would replace the link */
        return err_set(err, STATUS_EXISTS, "%s is a symbolic link: choose a new folder, or remove the link", out);
    if (!run_folder_empty(out))
        return err_set(err, STATUS_EXISTS, "%s exists and is not empty: choose a new folder, or remove it", out);
    const char *checked;
    struct content content;
    bool recorded, copy;
    TRY(run_folder_check(folder, &recorded, &checked, err));
    layout_init(&layout);
    size_t there = dir_existing_length(out);
    enum status status = layout_of(&layout, folder, recorded, &content, &copy, err);
    if (status == STATUS_OK && copy) { /* config.json, if there is one, is copied with the other small files */
        interrupt_catch();
        status = hf_folder_copy(out, folder, err);
    } else if (status == STATUS_OK) {
        status = copy_model(&layout, folder, out, err);
    }
    if (status != STATUS_OK) dir_remove_made(out, there);
    if (status == STATUS_OK)
        text_print(stdout, "%s: %u tensors, %llu parameters, from %s\n%s: %s\n", out, content.tensors,
                   (unsigned long long)content.params, folder, folder, checked);
    if (status == STATUS_OK && *run_folder_age(folder, age, sizeof age)) text_print(stdout, "%s: %s\n", out, age);
    layout_finish(&layout);
    return status;
}

int cmd_export(int argc, char **argv)
{
    struct options o = {
        .resumable = true,
        .program = "atoll export",
        .usage = "RUN|CHECKPOINT OUT",
        .about = "Check a checkpoint and write it to OUT as a Hugging Face folder: model.safetensors (fp32), "
                 "config.json, and\n"
                 "tokenizer and generation_config.json if present. RUN means its newest checkpoint.\n"
                 "A checkpoint of a run is checked against the hashes in its coordinator_state.bin. Another folder\n"
                 "has no such record: names, shapes, sizes and finite values are checked.",
        .args_min = 2,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run, NULL);
}
