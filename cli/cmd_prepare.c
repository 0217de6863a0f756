/* atoll prepare: text -> token shards.
 *
 * Byte tokenizer: a token is a byte. Token 0, which no text contains, precedes each document. A document is a text
 * file, without the byte order mark that it may begin with. Other tokenizers and inputs are left to atoll-prepare
 * (python/atoll/data/cmd.py), which keeps the rules below.
 *
 * The first of two passes over the input checks everything and counts documents, so nothing is written if a text is
 * invalid. It decides which text is held out for validation:
 *   - whole documents, chosen by the seed, if the fraction gives at least ten documents;
 *   - otherwise the tail of every document, cut after a line end if one is near.
 *
 * Order of writes:
 *   - The new set is written to the folder OUT/set.tmp-PID. Until it is complete, an older set in OUT stays as it is.
 *   - Then meta.json and shards of the older set are removed, and the new shards are renamed into OUT. Removing and
 *     renaming change no open file, so running workers keep the older shards. Other files in OUT stay.
 *   - meta.json comes last and marks the set as complete: a prepare that is killed here leaves none.
 *   - A signal is handled like a failure: all written files are removed. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/package_verb.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/os/json_file.h"
#include "common/tensor/tokens.h"
#include "coordinator/run_folder.h"

enum { VOCAB_BYTES = 256, SEPARATOR = 0, WIDTH = 2, HELD_OUT_DOCUMENTS_MIN = 10, CUT_SEARCH = 256, SHARD_MIN = 256 };
enum { PATIENCE_US = 1000000, PIECE_BYTES = 16 << 20 }; /* a shorter pass, or piece of a text, shows no progress */

struct prepare {
    const char *out, *tokenizer;
    double val_fraction;
    uint64_t seed, shard_tokens;
    bool force;
    char *const *inputs; /* [n_inputs] text files */
    size_t n_inputs;

    /* Options of atoll-prepare; NULL, 0: not given. */
    const char *field, *separator;
    uint64_t processes;
    bool chat;

    uint64_t documents, bytes; /* counts of the first pass: files that are not empty */
    uint64_t held_out;         /* number of validation documents; 0: tails are held out */
    uint64_t next;             /* index of the next document of the second pass */
    uint64_t size;             /* bytes of the files */
    uint64_t written;          /* bytes of the second pass */
    struct progress progress;  /* of the present pass */
    struct token_writer train, val;
};

typedef enum status text_fn(struct prepare *p, const char *path, const char *text, size_t size, struct err *err);

/* A NUL byte marks a binary file; token 0 is also the separator. */
static enum status check_text(struct prepare *p, const char *path, const char *text, size_t size, struct err *err)
{
    for (size_t at = 0, n; at < size; at += n) {
        n = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;
        const char *nul = memchr(text + at, 0, n);
        if (nul)
            return err_set(err, STATUS_INVALID, "%s is not text: byte %zu is zero; remove or convert it", path,
                           (size_t)(nul - text));
        p->bytes += n;
        progress_show_bytes(&p->progress, "checked", p->bytes, p->size);
    }
    p->documents++;
    return STATUS_OK;
}

static enum status put_bytes_as_tokens(struct prepare *p, struct token_writer *writer, const char *text, size_t size,
                                       struct err *err)
{
    uint32_t tokens[4096];
    while (size) {
        size_t n = size < 4096 ? size : 4096;
        for (size_t i = 0; i < n; i++) tokens[i] = (uint8_t)text[i];
        TRY(token_writer_put(writer, tokens, n, err));
        text += n;
        size -= n;
        p->written += n;
        progress_show_bytes(&p->progress, "wrote", p->written, p->bytes);
    }
    return STATUS_OK;
}

/* Returns the start of the validation tail of a document: after the first line end of the tail if one is near. */
static size_t tail_start(const struct prepare *p, const char *text, size_t size)
{
    size_t start = size - (size_t)((double)size * p->val_fraction);
    assert(start <= size);
    size_t window = size - start < CUT_SEARCH ? size - start : CUT_SEARCH;
    const char *newline = window ? memchr(text + start, '\n', window) : NULL;
    return newline && newline + 1 < text + size ? (size_t)(newline + 1 - text) : start;
}

static enum status write_text(struct prepare *p, const char *path, const char *text, size_t size, struct err *err)
{
    static const uint32_t separator = SEPARATOR;
    (void)path;
    uint64_t index = p->next++;
    bool whole_val = p->held_out && rng_permute(p->seed, 0, index, p->documents) < p->held_out;
    size_t cut = p->held_out || p->val_fraction <= 0 ? size : tail_start(p, text, size);
    struct token_writer *writer = whole_val ? &p->val : &p->train;
    TRY(token_writer_put(writer, &separator, 1, err));
    TRY(put_bytes_as_tokens(p, writer, text, cut, err));
    return put_bytes_as_tokens(p, &p->val, text + cut, size - cut, err);
}

/* Calls fn with every file's text that is not empty. */
static enum status each_text(struct prepare *p, text_fn *fn, struct err *err)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < p->n_inputs && status == STATUS_OK; i++) {
        struct file_map map;
        TRY(file_map_open(&map, p->inputs[i], err));
        size_t mark = map.size >= 3 && !memcmp(map.data, "\xef\xbb\xbf", 3) ? 3 : 0;
        if (map.size > mark) status = fn(p, p->inputs[i], (const char *)map.data + mark, map.size - mark, err);
        file_map_close(&map);
    }
    return status;
}

static enum status write_meta(const struct prepare *p, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    uint64_t tokens = p->train.n_tokens + p->val.n_tokens;
    json_t *meta = json_pack("{s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:s}", "tokenizer", "bytes",
                             "vocab_size", VOCAB_BYTES, "separator", SEPARATOR, "token_bytes", WIDTH, "documents",
                             (json_int_t)p->documents, "bytes", (json_int_t)p->bytes, "train_tokens",
                             (json_int_t)p->train.n_tokens, "val_tokens", (json_int_t)p->val.n_tokens,
                             "bytes_per_token", (double)p->bytes / (double)tokens, "seed", (json_int_t)p->seed,
                             "val_fraction", p->val_fraction, "held_out", p->held_out ? "documents" : "tails");
    enum status status = run_folder_path(path, sizeof path, folder, "meta.json", err);
    if (status == STATUS_OK) status = json_file_write(path, meta, JSON_INDENT(2) | JSON_REAL_PRECISION(9), err);
    json_decref(meta);
    return status;
}

static enum status move_set(struct prepare *p, const char *folder, struct err *err)
{
    char from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX];
    TRY(run_folder_path(from, sizeof from, folder, "meta.json", err));
    TRY(run_folder_path(to, sizeof to, p->out, "meta.json", err));
    unlink(to);
    TRY(token_writer_move(&p->train, p->out, err));
    TRY(token_writer_move(&p->val, p->out, err));
    if (rename(from, to)) return err_set(err, STATUS_IO, "cannot rename %.300s: %s", from, strerror(errno));
    return dir_sync(p->out, err);
}

static enum status write_set(struct prepare *p, const char *folder, struct err *err)
{
    enum status status;
    TRY(dir_make(folder, err));
    TRY(token_writer_open(&p->train, folder, "train", WIDTH, p->shard_tokens, err));
    TRY_GOTO(token_writer_open(&p->val, folder, "val", WIDTH, p->shard_tokens, err), err_train);
    progress_begin(&p->progress, PATIENCE_US);
    TRY_GOTO(each_text(p, write_text, err), err_val);
    TRY_GOTO(token_writer_close(&p->train, err), err_val);
    TRY_GOTO(token_writer_close(&p->val, err), err_val);
    TRY_GOTO(write_meta(p, folder, err), err_val);
    TRY_GOTO(move_set(p, folder, err), err_val);
    return STATUS_OK;

err_val:
    token_writer_abort(&p->val);
err_train:
    token_writer_abort(&p->train);
    return status;
}

/* The first pass: counts documents and bytes, and checks each text. */
static enum status count_input(struct prepare *p, struct err *err)
{
    progress_begin(&p->progress, PATIENCE_US);
    TRY(each_text(p, check_text, err));
    if (!p->documents) return err_set(err, STATUS_INVALID, "the input has no text: %s is empty", p->inputs[0]);
    uint64_t tokens = p->documents + p->bytes, shards = tokens / p->shard_tokens;
    if (shards >= TOKENS_SHARDS_MAX)
        return err_set(err, STATUS_INVALID,
                       "--shard-tokens is %" PRIu64 ": %" PRIu64 " tokens give more than %d shards; give %" PRIu64
                       " or more",
                       p->shard_tokens, tokens, TOKENS_SHARDS_MAX, tokens / TOKENS_SHARDS_MAX + 1);
    double held_out = (double)p->documents * p->val_fraction;
    if (held_out >= HELD_OUT_DOCUMENTS_MIN) p->held_out = (uint64_t)held_out;
    return STATUS_OK;
}

/* The caller holds the lock of the folder. */
static enum status fill_out(struct prepare *p, struct err *err)
{
    char set[FILEIO_PATH_MAX], folder[FILEIO_PATH_MAX];
    TRY(run_folder_path(set, sizeof set, p->out, "set", err));
    TRY(temporary_name(set, folder, sizeof folder, err)); /* also removes the set of a killed prepare */
    if (!p->force && !run_folder_empty(p->out))
        return err_set(
            err, STATUS_EXISTS,
            "%.300s exists and is not empty: choose a new folder, or replace the data set in it with --force "
            "(running workers keep the old shards)",
            p->out);
    TRY(count_input(p, err));
    TRY(dir_remove_flat(folder, err));
    enum status status = write_set(p, folder, err);
    if (dir_remove_flat(folder, NULL) != STATUS_OK) log_warn("cannot remove %s: remove it by hand", folder);
    return status;
}

/* Writes the pattern for glob that matches only this path, for data.train. Brackets quote where they can: double quotes
 * in YAML take no other backslash. */
static void as_pattern(const char *path, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (const char *c = path; *c && n + 4 < cap; c++) {
        bool escape = *c == '{' || *c == '}' || *c == '\\' || (*c == '~' && c == path);
        const char *format = strchr("*?[", *c) ? "[%c]" : escape ? "\\%c" : "%c";
        n += (size_t)snprintf(out + n, cap - n, format, *c);
    }
}

static void report(const struct prepare *p)
{
    uint64_t tokens = p->train.n_tokens + p->val.n_tokens;
    char out[3 * FILEIO_PATH_MAX];
    as_pattern(p->out, out, sizeof out);
    printf("documents  %12" PRIu64 "  in %zu file%s\n", p->documents, p->n_inputs, p->n_inputs == 1 ? "" : "s");
    printf("bytes      %12" PRIu64 "\n", p->bytes);
    printf("tokens     %12" PRIu64 "  %.3f bytes per token\n", tokens, (double)p->bytes / (double)tokens);
    text_print(stdout, "train      %12" PRIu64 "  %u shard%s: %s/train_*.bin\n", p->train.n_tokens, p->train.n_shards,
               p->train.n_shards == 1 ? "" : "s", out);
    text_print(stdout, "val        %12" PRIu64 "  %.1f %%, %s: %s/val_*.bin\n", p->val.n_tokens,
               100.0 * (double)p->val.n_tokens / (double)tokens,
               p->held_out ? "whole documents" : "the tail of each document", out);
    if (p->val_fraction > 0 && !p->val.n_tokens)
        log_warn("no validation text: --val-fraction %g of this text is 0 tokens, and a run needs some: add text, or "
                 "raise it",
                 p->val_fraction);
}

/* Locks the folder: two writers could leave training text of one and validation text of the other. */
static enum status write_locked(struct prepare *p, struct err *err)
{
    int lock = -1;
    size_t existing = dir_existing_length(p->out);
    enum status status = dir_make(p->out, err);
    if (status == STATUS_OK)
        TRY(dir_lock(p->out, &lock, err)); /* a failed lock means another program writes there: leave its files */
    interrupt_catch();
    if (status == STATUS_OK) status = fill_out(p, err);
    progress_end(&p->progress);
    if (status != STATUS_OK) dir_remove_made(p->out, existing);
    if (lock >= 0) close(lock);
    if (status == STATUS_OK) report(p);
    return status;
}

/* Adds up the sizes of the inputs. *other: the first one that only the package reads. */
static enum status check_inputs(struct prepare *p, const char **other, struct err *err)
{
    static const char *const endings[] = {".jsonl", ".gz", ".zst", ".parquet"};
    for (size_t i = 0; i < p->n_inputs; i++) {
        struct stat st = {0};
        const char *input = p->inputs[i], *dot = strrchr(input, '.');
        int error = stat(input, &st) ? errno : 0;
        bool package = !strcmp(input, "-") || S_ISDIR(st.st_mode);
        for (size_t k = 0; dot && k < sizeof endings / sizeof *endings; k++)
            package = package || !strcasecmp(dot, endings[k]); /* also A.JSONL */
        if (package) return *other = input, STATUS_OK;
        if (error)
            return err_set(err, error == ENOENT || error == ELOOP ? STATUS_INVALID : STATUS_IO,
                           "cannot read the input %s: %s", input, strerror(error));
        if (!S_ISREG(st.st_mode))
            return err_set(err, STATUS_INVALID, "the input %s is no file: give text files", input);
        p->size += (uint64_t)st.st_size;
    }
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct prepare *p = ctx;
    const char *other = p->field ? "--field" : p->separator ? "--separator" : p->chat ? "--chat" : NULL;
    if (p->processes) other = "--processes";
    if (strcmp(p->tokenizer, "bytes") != 0) other = "--tokenizer";
    p->out = o->args[0];
    p->inputs = o->args + 1;
    p->n_inputs = o->n_args - 1;
    if (!other) TRY(check_inputs(p, &other, err));
    if (other) return package_take("prepare", other, err);
    if (!(p->val_fraction >= 0 && p->val_fraction <= 0.5))
        return err_set(err, STATUS_INVALID, "--val-fraction is %g: give a number from 0 to 0.5", p->val_fraction);
    if (p->shard_tokens < SHARD_MIN || p->shard_tokens > INT32_MAX)
        return err_set(err, STATUS_INVALID, "--shard-tokens is %" PRIu64 ": give %d to %d", p->shard_tokens, SHARD_MIN,
                       INT32_MAX);
    return write_locked(p, err);
}

int cmd_prepare(int argc, char **argv)
{
    struct prepare p = {.tokenizer = "bytes", .val_fraction = 0.05, .seed = 1, .shard_tokens = 100000000};
    const struct option_spec specs[] = {
        {"tokenizer", OPTION_TEXT, &p.tokenizer, "NAME", "bytes (default), or a tokenizer.json or its folder *"},
        {"field", OPTION_TEXT, &p.field, "NAME", "field with the text in .jsonl and .parquet (default text) *"},
        {"chat", OPTION_FLAG, &p.chat, NULL, "conversations, written by the tokenizer's template *"},
        {"separator", OPTION_TEXT, &p.separator, "TOKEN", "token before each document (default: end of text) *"},
        {"val-fraction", OPTION_REAL, &p.val_fraction, "X", "fraction held out for validation (default 0.05)"},
        {"seed", OPTION_COUNT, &p.seed, "N", "seed that selects held-out documents (default 1)"},
        {"force", OPTION_FLAG, &p.force, NULL, "replace the data set in OUT, also while a run uses it"},
        {"shard-tokens", OPTION_COUNT, &p.shard_tokens, "N", "tokens per shard (default 100000000)"},
        {"processes", OPTION_COUNT, &p.processes, "N", "processes that encode (default: one per core) *"},
    };
    struct options o = {
        .resumable = true,
        .program = "atoll prepare",
        .usage = "OUT INPUT... [options]",
        .about =
            "Turn text files into token shards.\n"
            "Writes OUT/train_000000.bin ..., OUT/val_000000.bin ... and OUT/meta.json. A folder OUT with content\n"
            "needs --force: the new set then replaces the old one when it is complete. Running workers keep the\n"
            "old shards; a worker that starts later brings other data, and the run refuses it.\n"
            "Options with * are done by atoll-prepare of the Python package, which also reads .jsonl, .gz, .zst and\n"
            ".parquet files, folders, and standard input (-). To install it:\n" PACKAGE_INSTALL ".",
        OPTION_SPECS(specs),
        .args_min = 2,
        .args_max = SIZE_MAX,
    };
    return options_main(&o, argc, argv, run, &p);
}
