/* Decoder-only models, written once over gpu/device.h: blocks of causal self-attention and an MLP, each behind a norm,
 * between an embedding and a head.
 *
 *     x = embedding[token] (+ positions)
 *     each block:  xm = x + proj(attention(qkv(norm1(x))))
 *                  x = xm + down(act(up(norm2(xm))))
 *     logits = head(norm(x))
 *
 * A family (worker/model/model.h) gives a struct decoder_kind: which norms, positions and activation its blocks have,
 * how wide they are, and where their parameters lie. The rest of the worker sees flat vectors: theta in, gradient out.
 *
 * An instance belongs to one device (one rank) and one shape: `batch` sequences of `seq` tokens. decoder_create takes
 * all its memory; decoder_run only submits operations. Every pointer that decoder_run and decoder_logits get, but for
 * `out`, is memory of the device. */
#ifndef WORKER_DECODER_H
#define WORKER_DECODER_H

#include "worker/model/model.h"

struct decoder_kind {
    bool rms;          /* RMS norms of model_config.norm_eps; else layer norms */
    bool rotary;       /* queries and keys are turned to their positions; else positions are learned and added once */
    bool gated;        /* up makes gate | up, 2 * hidden columns, act is silu(gate) * up; else it is GELU */
    bool bias;         /* linear layers end in one */
    bool out_in;       /* their weights are [out,in] */
    size_t kv, hidden; /* columns of all heads' keys; of what goes into down */
    /* Places in theta: embeddings, blocks, the rest. A bias lies right behind the weights, a layer norm's, too. */
    uint64_t embed, positions; /* positions: where they are learned */
    uint64_t block0, block_stride;
    uint64_t norm1, qkv, proj, norm2, up, down; /* in a block */
    uint64_t norm, head, n_params;              /* head: embed where it is tied */
};

struct model; /* an instance */

/* `uses`: enum model_use values, or-ed, and model_uses. seq <= block_size. INVALID, NOMEM, UNSUPPORTED. */
enum status decoder_create(const struct model_family *family, const struct model_config *config, struct device *dev,
                           size_t batch, size_t seq, unsigned uses, struct model **out, struct err *err) MUST_CHECK;
void decoder_destroy(struct model *m); /* NULL is allowed */

/* loss[batch*seq] in nats for tokens and targets [batch*seq]; a negative target does not count. grad NULL: loss only
 * (MODEL_LOSS). Otherwise (MODEL_TRAIN) grad[n_params] = or += dscale * d(sum of losses)/d(theta). hooks: NULL when
 * nobody listens. */
void decoder_run(struct model *m, const float *theta, const int32_t *tokens, const int32_t *targets, float dscale,
                 float *loss, float *grad, bool accumulate, const struct model_hooks *hooks);
/* Logits of rows `first` .. `first + n` of batch*seq into host memory out[n*vocab_size], and sync (MODEL_LOGITS). */
enum status decoder_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                           float *out, struct err *err) MUST_CHECK;

/* Attention and head that decoder_create will plan, for device_ops.attn_bytes and head_bytes. */
void decoder_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses, struct attn_shape *attn,
                    struct head_shape *head);
/* Bytes that decoder_create takes from the device, beside those of its plans. */
size_t decoder_memory(const struct model_family *family, const struct model_config *config, size_t act_bytes,
                      size_t batch, size_t seq, unsigned uses);

#endif
