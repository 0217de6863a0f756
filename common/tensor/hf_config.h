/* config.json of a Hugging Face model folder: read (common/tensor/hf_config.c) and edited
 * (common/tensor/hf_config_edit.c). The model families write it. */
#ifndef COMMON_HF_CONFIG_H
#define COMMON_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/rope_scaling.h"

enum {
    HF_CONFIG_MAX = 1 << 20,
    HF_BYTES_VOCAB_MAX = 512, /* a vocabulary of bytes has 256 entries and some padding */
};

/* A GPT-2 or Llama, in the names of this project. */
struct model_config {
    char family[32]; /* only of a config.json: its model_type */
    uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
    /* llama only */
    uint32_t n_kv_head, ffn;
    double rope_theta, norm_eps;
    struct rope_scaling rope_scaling;
    bool tied; /* the output layer is the token embedding */

    bool bytes; /* a token is a byte, and 0 separates documents: the vocabulary is small and token 0 ends a text */
    /* Order of the blocks in theta: group g holds the blocks g, g + groups, g + 2 groups, and so on, and the groups
     * follow each other (train.stagger; strided fragments of Streaming DiLoCo, 2501.18512). 0 or 1: in order. */
    uint32_t groups;
};

/* Parse the text[size] of a config.json; `where` names it in errors. CORRUPT; UNSUPPORTED when it describes a model
 * that is not implemented: another activation, biases, another scaling of rotary positions; for GPT-2 another epsilon,
 * another scaling of attention or an untied head. */
enum status hf_config_parse(struct model_config *config, const char *text, size_t size, const char *where,
                            struct err *err) MUST_CHECK;
/* Parse FOLDER/config.json. The same errors, and those of file_read. */
enum status hf_config_load(struct model_config *config, const char *folder, struct err *err) MUST_CHECK;

/* Write the lines of config.json with bos_token_id and eos_token_id. Known are byte models, GPT-2 and Llama 3, by
 * vocabulary size; null for others. Returns out. */
const char *hf_config_ids_text(const struct model_config *config, char out[96]);

/* The functions below write an edited config.json to *out, in memory of mem_alloc; the caller frees it. */
/* `text` with the ids of the begin, end and padding tokens from the folder's config.json; each is a number, a list,
 * null or missing. *out is NULL when that folder has no config.json or one of the two is not a JSON object. */
enum status hf_config_with_ids(const char *text, const char *folder, char **out, struct err *err) MUST_CHECK;
/* `text` with this type of the tensors ("float32", "bfloat16") as dtype and torch_dtype, where present; without both,
 * torch_dtype is added. */
enum status hf_config_with_dtype(const char *text, size_t size, const char *dtype, char **out,
                                 struct err *err) MUST_CHECK;

#endif
