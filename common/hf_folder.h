/* A Hugging Face model folder: config.json, model.safetensors (or model.safetensors.index.json and its shards), and
 * tokenizer.json where there is one. A checkpoint of ours is such a folder; tensors are named as GPT-2's file on the
 * hub names them, without the "transformer." prefix that save_pretrained puts before them (both are read). */
#ifndef COMMON_HF_FOLDER_H
#define COMMON_HF_FOLDER_H

#include "common/layout.h"
#include "common/status.h"

enum { HF_CONFIG_MAX = 1 << 20 };

/* The numbers of config.json that make a GPT-2. */
struct hf_config {
    char model_type[32];
    uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
};

/* Parse the text of a config.json. CORRUPT, or UNSUPPORTED when it describes something our GPT-2 is not (another
 * activation, an untied head, another epsilon). */
enum status hf_config_parse(struct hf_config *config, const char *text, size_t size, const char *where,
                            struct err *err) MUST_CHECK;
enum status hf_config_load(struct hf_config *config, const char *folder, struct err *err) MUST_CHECK;

/* Fill theta[layout->n_params] from the folder's tensors. Each tensor of the layout must be there with its shape; of
 * others only attention-mask buffers and a tied lm_head are ignored. MISMATCH names the tensor; NONFINITE. */
enum status hf_folder_load(const char *folder, const struct layout *layout, float *theta, struct err *err) MUST_CHECK;
/* Write FOLDER with model.safetensors, config.json and, when tokenizer_json is not NULL, tokenizer.json. The folder
 * appears whole (made beside its place, renamed); an existing one is replaced. */
enum status hf_folder_write(const char *folder, const struct layout *layout, const float *theta,
                            const char *config_json, const char *tokenizer_json, struct err *err) MUST_CHECK;

#endif
