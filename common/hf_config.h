/* config.json of a Hugging Face model folder, read. (Written by the model family that knows its keys.) */
#ifndef COMMON_HF_CONFIG_H
#define COMMON_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/rope_scaling.h"
#include "common/status.h"

enum { HF_CONFIG_MAX = 1 << 20 };

/* What config.json says of a GPT-2 or a Llama, under our names. */
struct hf_config {
    char model_type[32];
    uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
    uint32_t n_kv_head, ffn; /* these and the next three: llama; 0 for a gpt2 */
    double rope_theta, norm_eps;
    struct rope_scaling rope_scaling;
    bool tied;
};

/* Parse the text of a config.json. CORRUPT, or UNSUPPORTED when it describes something our models are not (another
 * activation, biases, rotary positions scaled in another way, for GPT-2 another epsilon, attention scaled in another
 * way or an untied head). */
enum status hf_config_parse(struct hf_config *config, const char *text, size_t size, const char *where,
                            struct err *err) MUST_CHECK;
enum status hf_config_load(struct hf_config *config, const char *folder, struct err *err) MUST_CHECK;

#endif
