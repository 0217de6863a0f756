/* Hugging Face model folders: check, load, write.
 *
 * - A folder holds config.json, model.safetensors (or model.safetensors.index.json and its shards), and the files of
 *   its tokenizer if it has one (common/tensor/hf_files.h). A checkpoint of a run is such a folder.
 * - Tensors have the names of the model's files on the hub. GPT-2 has no "transformer." prefix, which save_pretrained
 *   adds; both forms are read. Llama has the prefix "model.". */
#ifndef COMMON_HF_FOLDER_H
#define COMMON_HF_FOLDER_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/tensor/frozen.h"
#include "common/tensor/hf_config.h"
#include "common/tensor/layout.h"

/* OK when the folder has a model.safetensors or the index of its shards. Otherwise INVALID, and err says what it is:
 * missing, a file, a run folder (with the name of its newest checkpoint), or a folder without a model. */
enum status hf_folder_check(const char *folder, struct err *err) MUST_CHECK;
/* Read into name[cap] which checkpoint RUN/checkpoints/latest names: the target of the link, or the first line of a
 * file, which stands there on a file system without links and in runs of older versions. NOTFOUND: no latest, or an
 * empty one. CORRUPT: no plain file name. IO. */
enum status hf_folder_latest(const char *run, char *name, size_t cap, struct err *err) MUST_CHECK;
/* Fill theta[layout->n_params] from the folder's tensors.
 *
 * - Each tensor of the layout must exist with its shape; MISMATCH names the tensor.
 * - Buffers (attention masks, rotary frequencies) are ignored. So is the lm_head of a tied model, which must equal the
 *   embedding. Any other tensor is a MISMATCH.
 * - NONFINITE: a tensor holds NaN or infinity. Also CORRUPT, UNSUPPORTED, NOTFOUND, IO, NOMEM. */
enum status hf_folder_load(const char *folder, const struct layout *layout, float *theta, struct err *err) MUST_CHECK;
/* The same of a folder that also holds tensors that are not exchanged. `others` names them; NULL: any tensor.
 * An lm_head may be there, too, if the layout has no embedding. */
enum status hf_folder_load_part(const char *folder, const struct layout *layout, const struct frozen *others,
                                float *theta, struct err *err) MUST_CHECK;
/* Writes the tensors of `list`, as they are in the folder, to the new file `path`. NOTFOUND: the folder does not hold
 * all of them with their dtypes and shapes; err names the first missing one. Also IO, CORRUPT, NOMEM. */
enum status hf_folder_take(const char *folder, const struct frozen *list, const char *path, struct err *err) MUST_CHECK;
/* With an adapter_config.json, make adapter_model.safetensors a link to the folder's model.safetensors: PEFT loads it.
 * A file system without links gets none: OK. */
enum status hf_folder_link_adapter(const char *folder, struct err *err) MUST_CHECK;
/* Write FOLDER with model.safetensors, config.json and the files of common/tensor/hf_files.h that the folder `files`
 * has (NULL: none). If it has frozen.safetensors, model.safetensors also gets these tensors. config_json "":
 * config.json and adapter_config.json are copied from `files`, too. Then hf_folder_link_adapter. As hf_folder_make. */
enum status hf_folder_write(const char *folder, const struct layout *layout, const float *theta,
                            const char *config_json, const char *files, struct err *err) MUST_CHECK;
/* Make FOLDER with what `fill` writes into the folder that it gets. That folder is beside its place and renamed at the
 * end, so FOLDER is never incomplete; an existing one is replaced. On failure nothing of it stays. */
typedef enum status hf_folder_fill_fn(void *ctx, const char *folder, struct err *err);
enum status hf_folder_make(const char *folder, hf_folder_fill_fn *fill, void *ctx, struct err *err) MUST_CHECK;
/* Fill an existing folder with what hf_folder_write puts there; theta NULL: as hf_folder_copy. */
enum status hf_folder_fill(const char *folder, const struct layout *layout, const float *theta, const char *config_json,
                           const char *files, struct err *err) MUST_CHECK;
/* Write FOLDER with the model.safetensors of the folder `from`, byte by byte, and its files, in the same way. */
enum status hf_folder_copy(const char *folder, const char *from, struct err *err) MUST_CHECK;

#endif
