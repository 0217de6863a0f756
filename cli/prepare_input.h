/* Input of `atoll prepare`: files and folders in, documents out.
 *
 * - A .txt or .md file is one document.
 * - A .jsonl file has one document per line: the string "text" of an object. Blank lines are skipped.
 * - A folder stands for all such files below it, sorted by name.
 * - Everything else below a folder is skipped with a warning that says why: other types of file, hidden files, broken
 *   links, and folders that were already read through a link. After INPUT_SKIPPED_SHOWN warnings only the number is
 *   given. An unreadable file or folder is an error.
 * - A file given as an argument is read as text, whatever its extension.
 * - A byte order mark at the start of a file is skipped.
 * - The Python package reads more: standard input, .gz, .zst, .parquet, data set folders (docs/data.md). */
#ifndef CLI_PREPARE_INPUT_H
#define CLI_PREPARE_INPUT_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/progress.h"
#include "common/base/status.h"

enum { INPUT_SKIPPED_SHOWN = 20 };

struct input_list {
    char **paths; /* [n] regular files in reading order; owned */
    size_t n, cap;
    size_t n_skipped; /* paths below folders that were left out */
    uint64_t bytes;   /* of the files */
};

/* Lists the files of args[n_args]. IO for an unreadable path, INVALID for a missing path or if the arguments contain no
 * file, NOMEM, LIMIT. Free with input_finish. */
enum status input_collect(struct input_list *list, char *const *args, size_t n_args, struct err *err) MUST_CHECK;
void input_finish(struct input_list *list);

/* Returns the first argument that only the Python package reads: "-", a .gz, .zst or .parquet file, or a folder of the
 * library datasets. NULL: none. */
const char *input_for_package(char *const *args, size_t n_args);
/* Returns true if a folder among the arguments contains such files. */
bool input_below_for_package(char *const *args, size_t n_args);

/* text[size] is valid during the call and contains no NUL byte. */
typedef enum status (*input_document_fn)(void *ctx, const char *text, size_t size, struct err *err);

/* Calls fn with every document of every file, in order, and stops at the first failure. INVALID names file and line of
 * an invalid document. fn NULL: only check. Shows its progress in list->bytes; progress NULL: silent. */
enum status input_each(const struct input_list *list, input_document_fn fn, void *ctx, struct progress *progress,
                       struct err *err) MUST_CHECK;

#endif
