#include "cli/prepare_input.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/fileio.h"
#include "common/mem.h"

static bool ends_with(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n >= m && !strcmp(path + n - m, ending);
}

static enum status list_add(struct input_list *list, const char *path)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 64;
        char **paths = mem_resize(list->paths, list->cap * sizeof *paths, cap * sizeof *paths);
        if (!paths) return STATUS_NOMEM;
        list->paths = paths;
        list->cap = cap;
    }
    list->paths[list->n] = mem_strdup(path);
    if (!list->paths[list->n]) return STATUS_NOMEM;
    list->n++;
    return STATUS_OK;
}

static enum status collect(struct input_list *list, const char *path, bool named, struct err *err);

static enum status collect_folder(struct input_list *list, const char *path, struct err *err)
{
    struct dirent **entries;
    enum status status = STATUS_OK;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) return err_set(err, STATUS_IO, "cannot list the folder %s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char below[PATH_MAX];
        const char *name = entries[i]->d_name;
        if (status == STATUS_OK && name[0] != '.') {
            if (snprintf(below, sizeof below, "%s/%s", path, name) >= (int)sizeof below)
                status = err_set(err, STATUS_LIMIT, "the path %s/%s is too long", path, name);
            else
                status = collect(list, below, false, err);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* `named`: the user wrote this path, so its ending does not matter. */
static enum status collect(struct input_list *list, const char *path, bool named, struct err *err)
{
    struct stat st;
    if (stat(path, &st)) {
        enum status code = errno == ENOENT ? STATUS_NOTFOUND : STATUS_IO;
        return err_set(err, code, "cannot read the input %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) return collect_folder(list, path, err);
    if (!S_ISREG(st.st_mode)) {
        if (!named) return STATUS_OK;
        return err_set(err, STATUS_INVALID, "the input %s is neither a file nor a folder: give text files", path);
    }
    if (!named && !ends_with(path, ".txt") && !ends_with(path, ".md") && !ends_with(path, ".jsonl")) return STATUS_OK;
    if (list_add(list, path) != STATUS_OK) return err_set(err, STATUS_NOMEM, "out of memory while listing %s", path);
    return STATUS_OK;
}

enum status input_collect(struct input_list *list, char *const *args, size_t n_args, struct err *err)
{
    memset(list, 0, sizeof *list);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n_args && status == STATUS_OK; i++) status = collect(list, args[i], true, err);
    if (status == STATUS_OK && !list->n)
        status =
            err_set(err, STATUS_INVALID, "no text in %s: give .txt, .md or .jsonl files, or folders that hold some",
                    n_args ? args[0] : "the input");
    if (status != STATUS_OK) input_finish(list);
    return status;
}

void input_finish(struct input_list *list)
{
    for (size_t i = 0; i < list->n; i++) mem_free(list->paths[i]);
    mem_free(list->paths);
    memset(list, 0, sizeof *list);
}

/* A NUL byte marks binary files, and the byte tokenizer's document separator is token 0. */
static enum status each_text(const char *path, const char *text, size_t size, input_document_fn fn, void *ctx,
                             struct err *err)
{
    const char *nul = memchr(text, 0, size);
    if (nul)
        return err_set(err, STATUS_INVALID, "%s is not text: byte %zu is zero; leave it out or convert it", path,
                       (size_t)(nul - text));
    return size && fn ? fn(ctx, text, size, err) : STATUS_OK;
}

static enum status each_line(const char *path, size_t number, const char *line, size_t size, input_document_fn fn,
                             void *ctx, struct err *err)
{
    json_error_t error;
    json_t *object = json_loadb(line, size, 0, &error);
    if (!object)
        return err_set(err, STATUS_INVALID, "%s line %zu is not valid JSON (%s, column %d): mend or remove it", path,
                       number, error.text, error.column);
    json_t *text = json_object_get(object, "text");
    enum status status = STATUS_OK;
    if (!json_is_string(text))
        status = err_set(err, STATUS_INVALID, "%s line %zu has no string \"text\": write {\"text\": \"...\"}", path,
                         number);
    else if (json_string_length(text) && fn)
        status = fn(ctx, json_string_value(text), json_string_length(text), err);
    json_decref(object);
    return status;
}

static enum status each_jsonl(const char *path, const char *data, size_t size, input_document_fn fn, void *ctx,
                              struct err *err)
{
    const char *end = data + size;
    size_t number = 1;
    for (const char *line = data, *next; line < end; line = next, number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline ? newline : end) - line);
        next = newline ? newline + 1 : end;
        bool blank = true;
        for (size_t i = 0; i < length && blank; i++) blank = strchr(" \t\r", line[i]) && line[i];
        if (!blank) TRY(each_line(path, number, line, length, fn, ctx, err));
    }
    return STATUS_OK;
}

enum status input_each(const struct input_list *list, input_document_fn fn, void *ctx, struct err *err)
{
    for (size_t i = 0; i < list->n; i++) {
        struct file_map map;
        const char *path = list->paths[i];
        TRY(file_map_open(&map, path, err));
        const char *data = (const char *)map.data;
        enum status status = ends_with(path, ".jsonl") ? each_jsonl(path, data, map.size, fn, ctx, err)
                                                       : each_text(path, data, map.size, fn, ctx, err);
        file_map_close(&map);
        TRY(status);
    }
    return STATUS_OK;
}
