/* config.json of a Hugging Face model folder, read (common/tensor/hf_config.c) and changed
 * (common/tensor/hf_config_edit.c). Written by the model family that knows its keys. */
#ifndef COMMON_HF_CONFIG_H
#define COMMON_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/rope_scaling.h"

enum {
    HF_CONFIG_MAX = 1 << 20,
    HF_BYTES_VOCAB_MAX = 512, /* 256 and some padding: a larger vocabulary is not one of bytes */
};

/* What config.json says of a GPT-2 or a Llama, under our names. */
struct hf_config {
    char model_type[32];
    uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
    uint32_t n_kv_head, ffn; /* these and the next three: llama; 0 for a gpt2 */
    double rope_theta, norm_eps;
    struct rope_scaling rope_scaling;
    bool tied;
    bool bytes; /* tokens are bytes: token 0 ends a text of a small vocabulary */
};

/* Parse the text of a config.json. CORRUPT, or UNSUPPORTED when it describes something our models are not (another
 * activation, biases, rotary positions scaled in another way, for GPT-2 another epsilon, attention scaled in another
 * way or an untied head). */
enum status hf_config_parse(struct hf_config *config, const char *text, size_t size, const char *where,
                            struct err *err) MUST_CHECK;
enum status hf_config_load(struct hf_config *config, const char *folder, struct err *err) MUST_CHECK;

/* Texts of a config.json made from another, mem_alloc'd; the caller frees. */
/* With the numbers of the tokens that begin, end and pad a text as the folder's config.json has them, each a number, a
 * list, null or missing. NULL: that folder has no config.json, or `text` is none. */
enum status hf_config_with_ids(const char *text, const char *folder, char **out, struct err *err) MUST_CHECK;
/* Where it says of what type the tensors are, that is float32. */
enum status hf_config_in_float32(const char *text, size_t size, char **out, struct err *err) MUST_CHECK;

#endif
