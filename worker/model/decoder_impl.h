/* Inside worker/decoder: what a model holds. Shapes in comments: N = batch*seq rows, C width, H heads of hd columns,
 * K the width of all keys, F what an MLP's activation makes, Z what it reads: 2F for gated units, else F. */
#ifndef WORKER_DECODER_IMPL_H
#define WORKER_DECODER_IMPL_H

#include "worker/model/decoder.h"

struct norm_stats {
    float *mean, *rstd; /* [N]; RMS norms have no mean */
};

/* What one block's forward pass leaves for its backward pass. Elements a token, by level of recompute: 6C + 2K + Z + F
 * with everything kept, F less without h, 2C less without y1 and y2, C with x alone. */
struct block_acts {
    void *x;    /* [N,C] residual stream entering the block */
    void *y1;   /* [N,C] first norm */
    void *qkv;  /* [N,C+2K], queries and keys turned to their positions where those are rotary */
    void *o;    /* [N,C] attention output, heads side by side */
    void *xm;   /* [N,C] residual stream between attention and MLP */
    void *y2;   /* [N,C] second norm */
    void *z;    /* [N,Z] what goes into the activation; of gated units in backward its gradient. GELU's is not kept
                   without training: NULL */
    void *h;    /* [N,F] what comes out */
    float *lse; /* [B,H,T] */
    struct norm_stats stats1, stats2;
};

struct linear {
    struct lin_plan *plan;
    uint64_t w;  /* its place in a block */
    size_t bias; /* floats from there to the bias; 0: none */
};

struct model {
    struct decoder_kind kind;
    struct model_config config;
    struct device *dev;
    size_t batch, seq, n; /* n = batch * seq */
    unsigned uses;
    void *memory;              /* all activations, one piece of device memory */
    struct block_acts *blocks; /* host array [n_layer]; without training all share their buffers */
    float *angles;             /* [T,hd] cosines and sines, see device_ops.rope; rotary positions only */
    void *x_last;              /* [N,C] stream after the last block */
    void *yf;                  /* [N,C] the final norm: what losses and logits are made of */
    struct norm_stats statsf;
    void *dx, *dy, *d_o; /* [N,C] gradients of the residual stream, of a norm's output, of attention's output */
    void *dqkv, *dh;     /* [N,C+2K], [N,F] */
    void *logits;        /* [V], MODEL_LOGITS */
    void *host_logits;   /* [V], host staging */
    struct rope_shape rope;
    struct linear qkv, proj, up, down;
    struct attn_plan *plan_attn;
    struct head_plan *plan_head_train, *plan_head_loss;
    struct lin_plan *plan_logits;
};

#endif
