/* Decoder-only models over gpu/device.h: blocks of causal self-attention and an MLP, each behind a norm,
 * between an embedding and a head.
 *
 *     x = embedding[token] (+ positions)
 *     each block:  xm = x + proj(attention(qkv(norm1(x))))
 *                  x = xm + down(act(up(norm2(xm))))
 *     logits = head(norm(x))
 *
 * A family (worker/model/model.h) gives a struct decoder_kind: norms, positions, activation, widths, and the offsets of
 * its parameters in theta. The rest of the worker sees flat vectors: theta in, gradient out.
 *
 * An instance belongs to one device (one rank) and one shape: `batch` sequences of `seq` tokens. decoder_create
 * allocates all its memory; decoder_run only submits operations. All pointers passed to decoder_run and decoder_logits
 * are device memory, except `out`, which is host memory. */
#ifndef WORKER_DECODER_H
#define WORKER_DECODER_H

#include "worker/model/model.h"

struct decoder_kind {
    bool rms;          /* RMS norms with model_config.norm_eps; else layer norms */
    bool rotary;       /* rotary positions in queries and keys; else learned positions, added to the embedding */
    bool gated;        /* up computes gate | up, 2 * hidden columns, act is silu(gate) * up; else act is GELU */
    bool bias;         /* linear layers add a bias */
    bool out_in;       /* weights of linear layers are [out,in]; else [in,out] */
    size_t kv, hidden; /* kv: columns of the keys of all heads; hidden: input columns of down */
    /* Offsets in theta: embeddings, blocks, final norm and head. A bias follows its weights directly, in layer norms
     * too. */
    uint64_t embed, positions; /* positions: unused if rotary */
    uint64_t block0, block_stride;
    uint64_t norm1, qkv, proj, norm2, up, down; /* offsets in a block */
    uint64_t norm, head, n_params;              /* head: equal to embed if tied */
};

struct model; /* an instance */

/* `uses`: enum model_use values, or-ed, combined with a level by model_uses. Requires seq <= block_size. INVALID,
 * NOMEM, UNSUPPORTED. */
enum status decoder_create(const struct model_family *family, const struct model_config *config, struct device *dev,
                           size_t batch, size_t seq, unsigned uses, struct model **out, struct err *err) MUST_CHECK;
void decoder_destroy(struct model *m); /* NULL is allowed */

/* Runs forward, and backward if grad is not NULL.
 * - tokens, targets: [batch*seq]; a negative target is excluded from the loss.
 * - loss: [batch*seq], nats; 0 at excluded targets.
 * - grad NULL: loss only (MODEL_LOSS).
 * - grad[n_params] (MODEL_TRAIN): set to, or if `accumulate` increased by, dscale * d(sum of losses)/d(theta).
 * - hooks: may be NULL. */
void decoder_run(struct model *m, const float *theta, const int32_t *tokens, const int32_t *targets, float dscale,
                 float *loss, float *grad, bool accumulate, const struct model_hooks *hooks);
/* Writes the logits of rows `first` .. `first + n` of batch*seq to host memory out[n*vocab_size] and waits for the
 * device (MODEL_LOGITS). INVALID for rows out of range, or the error of the device. */
enum status decoder_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                           float *out, struct err *err) MUST_CHECK;

/* Shapes of attention and head that decoder_create plans; inputs of device_ops.attn_bytes and head_bytes. */
void decoder_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses, struct attn_shape *attn,
                    struct head_shape *head);
/* Bytes that decoder_create allocates on the device, without its plans. */
size_t decoder_memory(const struct model_family *family, const struct model_config *config, size_t act_bytes,
                      size_t batch, size_t seq, unsigned uses);

#endif
