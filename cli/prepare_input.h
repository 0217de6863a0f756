/* The text that `atoll prepare` reads: files and folders in, documents out.
 *
 * A .txt or .md file is one document. A .jsonl file is one document a line, the string "text" of an object; blank lines
 * are skipped. A folder stands for all such files below it, in the order of their names; hidden ones are left out, and
 * with a warning links to nothing and folders that links lead to once more. A file named on its own is read as text
 * whatever its ending. A byte order mark at its start is no text. */
#ifndef CLI_PREPARE_INPUT_H
#define CLI_PREPARE_INPUT_H

#include <stddef.h>

#include "common/base/status.h"

struct input_list {
    char **paths; /* plain files, in reading order; owned */
    size_t n, cap;
};

/* Zeroes the list first. IO for a path that cannot be read, INVALID when one is not there or the arguments name no file
 * at all. */
enum status input_collect(struct input_list *list, char *const *args, size_t n_args, struct err *err) MUST_CHECK;
void input_finish(struct input_list *list);

/* text[size] is borrowed for the call; it holds no NUL byte. */
typedef enum status (*input_document_fn)(void *ctx, const char *text, size_t size, struct err *err);

/* Call fn with every document of every file, in order, and stop at the first failure. INVALID names file and line of
 * what is no document. fn may be NULL: only check. */
enum status input_each(const struct input_list *list, input_document_fn fn, void *ctx, struct err *err) MUST_CHECK;

#endif
