/* The small files of a Hugging Face folder, beside the model: tokenizer, generation settings, config.json and
 * adapter_config.json. A tokenizer is tokenizer.json, or the source files of older tokenizers. */
#ifndef COMMON_HF_FILES_H
#define COMMON_HF_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* CONFIG: config.json and adapter_config.json, which describe the model. ALL: the files that belong to any model. */
enum hf_files { HF_FILES_TOKENIZER = 1, HF_FILES_GENERATION = 2, HF_FILES_ALL = 3, HF_FILES_CONFIGS = 4 };
/* Limits of an upload: number of files, and bytes of all of them. */
enum { HF_FILES_MAX = 32, HF_FILES_BYTES_MAX = 128 << 20 };

/* Name of file i, from 0; NULL after the last one. */
const char *hf_files_name(int i);
/* True: one of these names. A worker may upload such files. */
bool hf_files_allowed(const char *name);
/* Copy the files of `kinds` (enum hf_files, or-ed) that exist in the folder `from` to the folder `to`. LIMIT: a file is
 * too long; otherwise as file_read and file_write. */
enum status hf_files_copy(const char *from, const char *to, unsigned kinds, struct err *err) MUST_CHECK;
/* Every model folder has this file. Code that removes a model folder removes it before the files above. So if it exists
 * after a copy of these files, the copy is complete. */
#define HF_FILES_CONFIG "config.json"
#define HF_FILES_ADAPTER "adapter_config.json" /* PEFT: the tensors are an adapter of another model */
/* NOTFOUND when FOLDER/config.json does not exist: the folder was removed during a copy. */
enum status hf_files_check_config(const char *folder, struct err *err) MUST_CHECK;
/* True when the folder holds a tokenizer. */
bool hf_files_has_tokenizer(const char *folder);

/* Read a tokenizer.json into memory of mem_alloc; the caller frees it. CORRUPT when it is not a JSON object with the
 * key "model"; otherwise as file_read. */
enum status hf_tokenizer_read(const char *path, void **text, size_t *size, struct err *err) MUST_CHECK;

#endif
