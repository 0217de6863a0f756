#include "cli/prepare_input.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cli/package_verb.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"

enum { PIECE_BYTES = 16 << 20 }; /* a text is checked in pieces, to show the progress of a large one */

static bool ends_with(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n >= m && !strcasecmp(path + n - m, ending); /* also matches A.JSONL */
}

static enum status list_add(struct input_list *list, const char *path, uint64_t bytes)
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
    list->bytes += bytes;
    return STATUS_OK;
}

struct folder {
    dev_t device;
    ino_t inode;
};

/* State of the walk below one path of the user. */
struct walk {
    struct input_list *list;
    struct folder *folders; /* visited folders: a link may form a cycle */
    size_t n, cap;
    size_t n_package; /* skipped files that the Python package reads */
    bool quiet;       /* logs nothing */
};

static void skip(struct walk *walk, const char *path, const char *why)
{
    if (walk->quiet) return;
    if (walk->list->n_skipped++ < INPUT_SKIPPED_SHOWN) log_warn("skipped %s: %s", path, why);
}

static bool is_text(const char *path)
{
    return ends_with(path, ".txt") || ends_with(path, ".md") || ends_with(path, ".jsonl");
}

/* The Python package reads this file below a folder. */
static bool is_package_file(const char *path)
{
    static const char *const endings[] = {".txt.gz", ".md.gz",     ".jsonl.gz", ".txt.zst",
                                          ".md.zst", ".jsonl.zst", ".parquet"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(path, endings[i])) return true;
    return false;
}

static const char *why_no_text(const char *path)
{
    if (is_package_file(path)) return "needs the Python package: " PACKAGE_INSTALL;
    static const char *const compressed[] = {".gz", ".zst", ".xz", ".bz2", ".zip", ".tgz", ".tar", ".7z"};
    for (size_t i = 0; i < sizeof compressed / sizeof *compressed; i++)
        if (ends_with(path, compressed[i])) return "compressed or packed: unpack it first";
    return "not a .txt, .md or .jsonl file: convert it first";
}

/* Marks a folder as visited. NOMEM; END if it was visited before. */
static enum status mark_visited(struct walk *walk, const struct stat *st)
{
    for (size_t i = 0; i < walk->n; i++)
        if (walk->folders[i].device == st->st_dev && walk->folders[i].inode == st->st_ino) return STATUS_END;
    if (walk->n == walk->cap) {
        size_t cap = walk->cap ? 2 * walk->cap : 64, size = sizeof *walk->folders;
        struct folder *folders = mem_resize(walk->folders, walk->cap * size, cap * size);
        if (!folders) return STATUS_NOMEM;
        walk->folders = folders;
        walk->cap = cap;
    }
    walk->folders[walk->n++] = (struct folder){st->st_dev, st->st_ino};
    return STATUS_OK;
}

static enum status collect(struct walk *walk, const char *path, bool named, struct err *err);

static enum status collect_folder(struct walk *walk, const char *path, struct err *err)
{
    struct dirent **entries;
    enum status status = STATUS_OK;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) return err_set(err, STATUS_IO, "cannot list the folder %s: %s", path, strerror(errno));
    for (int i = 0; i < n; i++) {
        char below[PATH_MAX];
        const char *name = entries[i]->d_name;
        if (status == STATUS_OK && strcmp(name, ".") && strcmp(name, "..")) {
            if (snprintf(below, sizeof below, "%s/%s", path, name) >= (int)sizeof below)
                status = err_set(err, STATUS_LIMIT, "the path %s/%s is too long", path, name);
            else if (name[0] == '.')
                skip(walk, below, "hidden");
            else
                status = collect(walk, below, false, err);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* `named`: the user gave this path, so any extension is accepted. */
static enum status collect(struct walk *walk, const char *path, bool named, struct err *err)
{
    struct stat st;
    enum status status = STATUS_OK;
    if (stat(path, &st)) {
        bool nowhere = errno == ENOENT || errno == ELOOP;
        if (nowhere && !named) return skip(walk, path, "broken link"), STATUS_OK;
        return err_set(err, nowhere ? STATUS_INVALID : STATUS_IO, "cannot read the input %s: %s", path,
                       strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) {
        status = mark_visited(walk, &st);
        if (status == STATUS_END) return skip(walk, path, "folder already read through another path"), STATUS_OK;
        if (status == STATUS_OK) return collect_folder(walk, path, err);
    } else if (!S_ISREG(st.st_mode)) {
        if (!named) return skip(walk, path, "neither a file nor a folder"), STATUS_OK;
        return err_set(err, STATUS_INVALID, "the input %s is neither a file nor a folder: give text files", path);
    } else if (named || is_text(path)) {
        status = list_add(walk->list, path, (uint64_t)st.st_size);
    } else {
        walk->n_package += is_package_file(path);
        skip(walk, path, why_no_text(path));
    }
    if (status != STATUS_OK) return err_set(err, status, "out of memory while listing %s", path);
    return STATUS_OK;
}

enum status input_collect(struct input_list *list, char *const *args, size_t n_args, struct err *err)
{
    memset(list, 0, sizeof *list);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n_args && status == STATUS_OK; i++) {
        struct walk walk = {.list = list};
        status = collect(&walk, args[i], true, err);
        mem_free(walk.folders);
    }
    if (list->n_skipped > INPUT_SKIPPED_SHOWN)
        log_warn("skipped %zu more files and folders", list->n_skipped - INPUT_SKIPPED_SHOWN);
    if (status == STATUS_OK && !list->n)
        status =
            err_set(err, STATUS_INVALID, "no text in %s: give .txt, .md or .jsonl files, or folders with such files",
                    n_args ? args[0] : "the input");
    if (status != STATUS_OK) input_finish(list);
    return status;
}

static bool is_data_set_folder(const char *path)
{
    static const char *const marks[] = {"state.json", "dataset_dict.json"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        char mark[PATH_MAX];
        if (snprintf(mark, sizeof mark, "%s/%s", path, marks[i]) < (int)sizeof mark && file_exists(mark)) return true;
    }
    return false;
}

const char *input_for_package(char *const *args, size_t n_args)
{
    for (size_t i = 0; i < n_args; i++)
        if (!strcmp(args[i], "-") || ends_with(args[i], ".gz") || ends_with(args[i], ".zst") ||
            ends_with(args[i], ".parquet") || is_data_set_folder(args[i]))
            return args[i];
    return NULL;
}

bool input_below_for_package(char *const *args, size_t n_args)
{
    struct input_list list = {0};
    struct walk walk = {.list = &list, .quiet = true};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n_args && status == STATUS_OK && !walk.n_package; i++)
        status = collect(&walk, args[i], true, NULL); /* input_collect reports the error */
    mem_free(walk.folders);
    input_finish(&list);
    return walk.n_package > 0;
}

void input_finish(struct input_list *list)
{
    for (size_t i = 0; i < list->n; i++) mem_free(list->paths[i]);
    mem_free(list->paths);
    memset(list, 0, sizeof *list);
}

/* One call of input_each. */
struct reading {
    input_document_fn fn;
    void *ctx;
    struct progress *progress;
    uint64_t done, total; /* bytes of files */
};

static void note_progress(const struct reading *r, size_t of_file)
{
    if (r->progress) progress_show_bytes(r->progress, "checked", r->done + of_file, r->total);
}

/* A NUL byte marks a binary file. Token 0 is also the document separator of the byte tokenizer. */
static enum status each_text(const struct reading *r, const char *path, const char *text, size_t size, struct err *err)
{
    for (size_t at = 0, n; at < size; at += n) {
        n = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;
        const char *nul = memchr(text + at, 0, n);
        if (nul)
            return err_set(err, STATUS_INVALID, "%s is not text: byte %zu is zero; remove or convert it", path,
                           (size_t)(nul - text));
        note_progress(r, at + n);
    }
    return size && r->fn ? r->fn(r->ctx, text, size, err) : STATUS_OK;
}

static enum status each_line(const struct reading *r, const char *path, size_t number, const char *line, size_t size,
                             struct err *err)
{
    json_error_t error;
    json_t *object = json_loadb(line, size, 0, &error);
    if (!object)
        return err_set(err, STATUS_INVALID, "%s line %zu is not valid JSON (%s, column %d): fix or remove it", path,
                       number, error.text, error.column);
    json_t *text = json_object_get(object, "text");
    enum status status = STATUS_OK;
    if (!json_is_string(text))
        status =
            err_set(err, STATUS_INVALID, "%s line %zu has no string \"text\": write {\"text\": \"...\"}", path, number);
    else if (json_string_length(text) && r->fn)
        status = r->fn(r->ctx, json_string_value(text), json_string_length(text), err);
    json_decref(object);
    return status;
}

static enum status each_jsonl(const struct reading *r, const char *path, const char *data, size_t size, struct err *err)
{
    const char *end = data + size;
    size_t number = 1;
    for (const char *line = data, *next; line < end; line = next, number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline ? newline : end) - line);
        next = newline ? newline + 1 : end;
        bool blank = true;
        for (size_t i = 0; i < length && blank; i++) blank = strchr(" \t\r", line[i]) && line[i];
        if (!blank) TRY(each_line(r, path, number, line, length, err));
        note_progress(r, (size_t)(next - data));
    }
    return STATUS_OK;
}

enum status input_each(const struct input_list *list, input_document_fn fn, void *ctx, struct progress *progress,
                       struct err *err)
{
    struct reading r = {fn, ctx, progress, 0, list->bytes};
    for (size_t i = 0; i < list->n; i++) {
        struct file_map map;
        const char *path = list->paths[i];
        TRY(file_map_open(&map, path, err));
        size_t mark = map.size >= 3 && !memcmp(map.data, "\xef\xbb\xbf", 3) ? 3 : 0;
        const char *text = (const char *)map.data + mark;
        enum status status = ends_with(path, ".jsonl") ? each_jsonl(&r, path, text, map.size - mark, err)
                                                       : each_text(&r, path, text, map.size - mark, err);
        r.done += map.size;
        file_map_close(&map);
        TRY(status);
    }
    return STATUS_OK;
}
