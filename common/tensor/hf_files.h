/* What lies beside a model in a Hugging Face folder and is copied as it is: its tokenizer, and how text is made with
 * it. A tokenizer is its file tokenizer.json, or, for some, what it was made from. */
#ifndef COMMON_HF_FILES_H
#define COMMON_HF_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum hf_files { HF_FILES_TOKENIZER = 1, HF_FILES_GENERATION = 2, HF_FILES_ALL = 3 };

/* Name i of those files, from 0; NULL behind the last. */
const char *hf_files_name(int i);
/* Those of `kinds` (enum hf_files, or-ed) that are in `from`, into the folder `to`. LIMIT: one is too long. */
enum status hf_files_copy(const char *from, const char *to, unsigned kinds, struct err *err) MUST_CHECK;
/* Every model's folder has it. Who removes such a folder removes it before the files above: if it is there when they
 * have been copied, none of them was removed meanwhile. */
#define HF_FILES_CONFIG "config.json"
/* NOTFOUND: it is not there. */
enum status hf_files_check_config(const char *folder, struct err *err) MUST_CHECK;
/* Whether a tokenizer is in the folder. */
bool hf_files_has_tokenizer(const char *folder);

/* A tokenizer.json in mem_alloc'd memory, which the caller frees. CORRUPT when it is not the file of a tokenizer: an
 * object with a "model" in it. */
enum status hf_tokenizer_read(const char *path, void **text, size_t *size, struct err *err) MUST_CHECK;

#endif
