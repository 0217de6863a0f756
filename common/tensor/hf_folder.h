/* A Hugging Face model folder: config.json, model.safetensors (or model.safetensors.index.json and its shards), and
 * the files of its tokenizer where there are any (common/tensor/hf_files.h). A checkpoint of ours is such a folder;
 * tensors are named as the model's files on the hub name them: GPT-2's without the "transformer." prefix that
 * save_pretrained puts before them (both are read), Llama's with their "model.". */
#ifndef COMMON_HF_FOLDER_H
#define COMMON_HF_FOLDER_H

#include "common/base/status.h"
#include "common/tensor/hf_config.h"
#include "common/tensor/layout.h"

/* OK: the folder has a model.safetensors, or the index of its shards. INVALID says what it is otherwise: not there, a
 * file, a run's folder (with the name of its newest checkpoint), or one without a model. */
enum status hf_folder_check(const char *folder, struct err *err) MUST_CHECK;
/* Fill theta[layout->n_params] from the folder's tensors. Each tensor of the layout must be there with its shape; of
 * others only buffers (attention masks, rotary frequencies) are ignored, and a tied lm_head, whose numbers must be
 * those of the embedding. MISMATCH names the tensor; NONFINITE. */
enum status hf_folder_load(const char *folder, const struct layout *layout, float *theta, struct err *err) MUST_CHECK;
/* Write FOLDER with model.safetensors, config.json and the files of common/tensor/hf_files.h that the folder `files`
 * has (NULL: none). It appears whole (made beside its place, renamed); an existing one is replaced. */
enum status hf_folder_write(const char *folder, const struct layout *layout, const float *theta,
                            const char *config_json, const char *files, struct err *err) MUST_CHECK;

#endif
