/* The model of a Hugging Face folder, written again: with another dtype, and in shards. Tensors are converted block by
 * block from the mapped files, so a model of any size takes little memory. */
#ifndef CLI_EXPORT_MODEL_H
#define CLI_EXPORT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"

struct export_options {
    bool bf16;           /* exchanged tensors become bf16, rounded to nearest even; otherwise fp32 */
    uint64_t shard_most; /* bytes of the tensors of one file; a larger tensor gets a file of its own */
};

struct export_result {
    uint32_t tensors, files;
    uint64_t params;
};

/* Writes the folder `out` from the folder `from` as hf_folder_make does.
 *
 * - layout: the model that config.json describes. Its tensors are checked (hf_source_match, finite values) and written
 *   under its names. NULL: a checkpoint of another program's model. All its tensors are written as they are, with bf16
 *   except the exchanged fp32 ones.
 * - More bytes than shard_most: model-00001-of-0000N.safetensors and an index, as Hugging Face divides them. An adapter
 *   stays in one file, because PEFT reads no shards. */
enum status export_model(const char *out, const char *from, const struct layout *layout,
                         const struct export_options *options, struct export_result *result,
                         struct err *err) MUST_CHECK;

#endif
