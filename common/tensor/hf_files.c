#include "common/tensor/hf_files.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

enum { FILE_MAX = 64 << 20 };

static const struct {
    const char *name;
    enum hf_files kind;
    bool whole; /* this file alone is a tokenizer */
} files[] = {
    {"tokenizer.json", HF_FILES_TOKENIZER, true},
    {"tokenizer.model", HF_FILES_TOKENIZER, true},
    {"vocab.json", HF_FILES_TOKENIZER, true},
    {"vocab.txt", HF_FILES_TOKENIZER, true},
    {"spiece.model", HF_FILES_TOKENIZER, true},
    {"sentencepiece.bpe.model", HF_FILES_TOKENIZER, true},
    {"spm.model", HF_FILES_TOKENIZER, true},
    {"merges.txt", HF_FILES_TOKENIZER, false},
    {"added_tokens.json", HF_FILES_TOKENIZER, false},
    {"special_tokens_map.json", HF_FILES_TOKENIZER, false},
    {"tokenizer_config.json", HF_FILES_TOKENIZER, false},
    {"normalizer.json", HF_FILES_TOKENIZER, false},
    {"chat_template.jinja", HF_FILES_TOKENIZER, false},
    {"chat_template.json", HF_FILES_TOKENIZER, false},
    {"preprocessor_config.json", HF_FILES_TOKENIZER, false},
    {"processor_config.json", HF_FILES_TOKENIZER, false},
    {"generation_config.json", HF_FILES_GENERATION, false},
    {HF_FILES_CONFIG, HF_FILES_CONFIGS, false},
    {HF_FILES_ADAPTER, HF_FILES_CONFIGS, false},
};
enum { N_FILES = sizeof files / sizeof *files };

const char *hf_files_name(int i)
{
    return i < N_FILES ? files[i].name : NULL;
}

bool hf_files_allowed(const char *name)
{
    for (int i = 0; i < N_FILES; i++)
        if (!strcmp(files[i].name, name)) return true;
    return false;
}

/* Writes the path of file i; false when it does not exist. */
static bool find(const char *folder, int i, char path[FILEIO_PATH_MAX])
{
    snprintf(path, FILEIO_PATH_MAX, "%s/%s", folder, files[i].name);
    return file_exists(path);
}

enum status hf_files_copy(const char *from, const char *to, unsigned kinds, struct err *err)
{
    char source[FILEIO_PATH_MAX], target[FILEIO_PATH_MAX];
    for (int i = 0; i < N_FILES; i++) {
        void *data;
        size_t size;
        if (!(files[i].kind & kinds) || !find(from, i, source)) continue;
        find(to, i, target);
        TRY(file_read(source, FILE_MAX, &data, &size, err));
        enum status status = file_write(target, data, size, err);
        mem_free(data);
        TRY(status);
    }
    return STATUS_OK;
}

enum status hf_files_check_config(const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/" HF_FILES_CONFIG, folder);
    if (file_exists(path)) return STATUS_OK;
    return err_set(err, STATUS_NOTFOUND,
                   "%.300s was removed while it was read (a run removes its older checkpoints): try again", folder);
}

bool hf_files_has_tokenizer(const char *folder)
{
    char path[FILEIO_PATH_MAX];
    for (int i = 0; i < N_FILES; i++)
        if (files[i].whole && find(folder, i, path)) return true;
    return false;
}

enum status hf_tokenizer_read(const char *path, void **text_p, size_t *size_p, struct err *err)
{
    json_error_t why;
    void *text;
    size_t size;
    TRY(file_read(path, FILE_MAX, &text, &size, err));
    json_t *root = json_loadb(text, size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    bool good = json_is_object(json_object_get(root, "model"));
    if (good) {
        *text_p = text;
        *size_p = size;
    } else {
        mem_free(text);
        err_set(err, STATUS_CORRUPT, "%.300s is not a tokenizer.json: %.100s", path,
                root ? "it has no key \"model\"" : why.text);
    }
    json_decref(root);
    return good ? STATUS_OK : STATUS_CORRUPT;
}
