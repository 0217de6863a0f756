/* atoll export: checks a checkpoint and writes it as a Hugging Face folder. Every tensor is read, checked against
 * config.json and the recorded hashes, and written again, so a written folder loads. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/export/export_model.h"
#include "cli/verbs.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/tensor/hf_config.h"
#include "coordinator/run_folder.h"
#include "worker/model/model.h"

#define SHARD_MOST ((uint64_t)5000000000) /* the default of save_pretrained in transformers */
#define SIZE_MOST 1e18

/* Builds the layout that config.json describes. */
static enum status layout_of_folder(struct layout *layout, const char *folder, struct err *err)
{
    struct model_config config;
    TRY(hf_config_load(&config, folder, err));
    const struct model_family *family = model_family_find(config.family);
    assert(family); /* hf_config_load takes no other */
    return family->layout(&config, layout, err);
}

/* "5GB": a number and a unit of Hugging Face, powers of 1000 or 1024. */
static enum status parse_size(const char *text, uint64_t *out, struct err *err)
{
    static const char units[] = "KMGT";
    char *end;
    double value = strtod(text, &end), step = 1000;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit && !strcmp(end + 1, "iB")) step = 1024;
    bool good = end > text && unit && (step == 1024 || !strcmp(end + 1, "B"));
    for (const char *u = units; good && u <= unit; u++) value *= step;
    if (!good || !(value >= 1 && value < SIZE_MOST))
        return err_set(err, STATUS_INVALID, "--max-shard-size is '%.40s': give a size such as 5GB, 500MB or 2GiB",
                       text);
    *out = (uint64_t)value;
    return STATUS_OK;
}

struct request {
    const char *dtype, *shard;
};

static enum status options_of(const struct request *r, struct export_options *options, struct err *err)
{
    options->bf16 = r->dtype && !strcmp(r->dtype, "bf16");
    options->shard_most = SHARD_MOST;
    if (r->dtype && !options->bf16 && strcmp(r->dtype, "fp32") != 0)
        return err_set(err, STATUS_INVALID, "--dtype is '%.40s': give fp32 or bf16", r->dtype);
    return r->shard ? parse_size(r->shard, &options->shard_most, err) : STATUS_OK;
}

/* OK: the path is free for a new folder. */
static enum status check_out(const char *out, struct err *err)
{
    struct stat st;
    if (!lstat(out, &st) &&
        S_ISLNK(st.st_mode)) /* the new folder is renamed to this path, which would replace the link */
        return err_set(err, STATUS_EXISTS, "%s is a symbolic link: choose a new folder, or remove the link", out);
    if (run_folder_empty(out)) return STATUS_OK;
    return err_set(err, STATUS_EXISTS, "%s exists and is not empty: choose a new folder, or remove it", out);
}

/* recorded: the folder is a checkpoint of a run, so its model may be a program's own. *own_p: it is. */
static enum status layout_of(struct layout *layout, const char *folder, bool recorded, bool *own_p, struct err *err)
{
    enum status status = layout_of_folder(layout, folder, err);
    *own_p = recorded && (status == STATUS_UNSUPPORTED || status == STATUS_NOTFOUND);
    if (!*own_p) return status;
    *err = (struct err){0};
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    char folder[FILEIO_PATH_MAX], out[FILEIO_PATH_MAX], age[2 * FILEIO_PATH_MAX], files[32] = "";
    struct export_options options;
    struct export_result result;
    struct layout layout;
    const char *checked;
    bool recorded, own;
    TRY(options_of(ctx, &options, err));
    TRY(run_folder_name(out, sizeof out, o->args[1], err));
    TRY(run_folder_checkpoint(o->args[0], folder, sizeof folder, err));
    TRY(check_out(out, err));
    TRY(run_folder_check(folder, &recorded, &checked, err));
    layout_init(&layout);
    size_t there = dir_existing_length(out);
    enum status status = layout_of(&layout, folder, recorded, &own, err);
    interrupt_catch();
    if (status == STATUS_OK) status = export_model(out, folder, own ? NULL : &layout, &options, &result, err);
    layout_finish(&layout);
    if (status != STATUS_OK) {
        dir_remove_made(out, there);
        return status;
    }
    if (result.files > 1) snprintf(files, sizeof files, " in %u files", result.files);
    text_print(stdout, "%s: %u tensors, %llu parameters%s%s, from %s\n%s: %s\n", out, result.tensors,
               (unsigned long long)result.params, options.bf16 ? " as bf16" : "", files, folder, folder, checked);
    if (*run_folder_age(folder, age, sizeof age)) text_print(stdout, "%s: %s\n", out, age);
    return STATUS_OK;
}

int cmd_export(int argc, char **argv)
{
    struct request r = {0};
    const struct option_spec specs[] = {
        {"dtype", OPTION_TEXT, &r.dtype, "fp32|bf16",
         "type of the tensors (default fp32); bf16 rounds to nearest even"},
        {"max-shard-size", OPTION_TEXT, &r.shard, "SIZE", "bytes of one file of tensors (default 5GB)"},
    };
    struct options o = {
        .resumable = true,
        .program = "atoll export",
        .usage = "RUN|CHECKPOINT OUT [options]",
        .about =
            "Check a checkpoint and write it to OUT as a Hugging Face folder: model.safetensors, config.json, and\n"
            "tokenizer and generation_config.json if present. RUN means its newest checkpoint.\n"
            "Above --max-shard-size there are several files and model.safetensors.index.json.\n"
            "A model of another program is copied as it is; bf16 changes its exchanged tensors only.\n"
            "A checkpoint of a run is checked against the hashes in its coordinator_state.bin. Another folder\n"
            "has no such record: names, shapes, sizes and finite values are checked.",
        OPTION_SPECS(specs),
        .args_min = 2,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run, &r);
}
