/* GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): learned positions, pre-LN blocks
 * of causal self-attention and a 4x MLP with the tanh form of GELU, a final norm, and an output layer tied to the token
 * embedding. Tensor names and shapes are Hugging Face's, weights [in,out]. */
#ifndef WORKER_GPT2_H
#define WORKER_GPT2_H

#include "worker/model/model.h"

extern const struct model_family gpt2_family;

/* gpt2_family.layout. Initial values: N(0, 0.02) for matrices and embeddings, N(0, 0.02 / sqrt(2 n_layer)) for the two
 * projections that add to the residual stream, 0 for biases, 1 for norms. Weight decay applies to matrices and
 * embeddings only. */
enum status gpt2_layout(const struct model_config *config, struct layout *layout, struct err *err) MUST_CHECK;
/* gpt2_family.hidden_blocks: the four matrices of a block. c_attn counts as three: q, k and v. */
uint32_t gpt2_hidden_blocks(const struct tensor *tensor);
enum status gpt2_config_json(const struct model_config *config, char *out, size_t cap) MUST_CHECK;

/* Tensors of one block, in layout order. */
enum gpt2_block_tensor {
    GPT2_LN1_W,
    GPT2_LN1_B,
    GPT2_QKV_W,
    GPT2_QKV_B,
    GPT2_PROJ_W,
    GPT2_PROJ_B,
    GPT2_LN2_W,
    GPT2_LN2_B,
    GPT2_FC_W,
    GPT2_FC_B,
    GPT2_FCPROJ_W,
    GPT2_FCPROJ_B,
    GPT2_BLOCK_TENSORS
};

/* Offsets in theta. */
struct gpt2_offsets {
    /* Tensor j of block i: block0 + model_block_place(i) * block_stride + block[j]. */
    uint64_t wte, wpe, block0, block_stride, block[GPT2_BLOCK_TENSORS];
    uint64_t lnf_w, lnf_b, n_params;
};

struct gpt2_offsets gpt2_offsets_of(const struct model_config *config);

#endif
