/* The tensors of a Hugging Face folder, mapped and found by name, but not read yet. A folder has model.safetensors, or
 * model.safetensors.index.json and its shards, or the adapter_model.safetensors that PEFT saves. */
#ifndef COMMON_HF_SOURCE_H
#define COMMON_HF_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/frozen.h"
#include "common/tensor/layout.h"
#include "common/tensor/safetensors.h"

#define HF_MODEL_FILE "model.safetensors"
#define HF_INDEX_FILE "model.safetensors.index.json"
#define HF_ADAPTER_FILE "adapter_model.safetensors"

struct hf_source_file {
    char *path;
    struct safetensors st;
};

struct hf_source {
    struct hf_source_file *files; /* [n_files] */
    uint32_t n_files;
};

/* A tensor of the layout in the folder. */
struct hf_source_tensor {
    const struct safetensors_entry *entry; /* NULL: not found; borrowed from the source */
    const char *path;                      /* its file, for errors; borrowed from the source */
};

/* Map all files of the folder. Also when it fails, call hf_source_close. CORRUPT, NOTFOUND, IO, LIMIT, NOMEM. */
enum status hf_source_open(struct hf_source *source, const char *folder, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void hf_source_close(struct hf_source *source);
/* Find the tensors of the layout: out[layout->n_tensors].
 *
 * - Each must exist once, with its shape. A name in the folder may have the prefix "transformer.".
 * - Buffers (attention masks, rotary frequencies) are ignored. So is the lm_head of a tied model, which must equal the
 *   embedding. Any other tensor is a MISMATCH, unless `part` is set and `others` names it (NULL: any).
 * - MISMATCH, CORRUPT (a tensor that appears twice), with the tensor in err. */
enum status hf_source_match(const struct hf_source *source, const char *folder, const struct layout *layout, bool part,
                            const struct frozen *others, struct hf_source_tensor *out, struct err *err) MUST_CHECK;
/* The tensor as fp32 to out[entry->count]. UNSUPPORTED: another type than F32, F16, BF16. NONFINITE. */
enum status hf_source_read(const struct hf_source_tensor *t, float *out, struct err *err) MUST_CHECK;

#endif
