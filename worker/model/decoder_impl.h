/* The decoder's private structs. Shapes in comments: N = batch*seq rows, C width, H heads of hd columns, K width of the
 * keys of all heads, F output width of the MLP's activation, Z its input width: 2F for gated units, else F. */
#ifndef WORKER_DECODER_IMPL_H
#define WORKER_DECODER_IMPL_H

#include "worker/model/decoder.h"

struct norm_stats {
    float *mean, *rstd; /* [N]; RMS norms have no mean */
};

/* Activations that the forward pass of one block leaves for its backward pass. Elements per token by level of
 * recompute: 6C + 2K + Z + F if everything is kept; F less without h; 2C less without y1 and y2; C with x alone. */
struct block_acts {
    void *x;    /* [N,C] residual stream entering the block */
    void *y1;   /* [N,C] first norm */
    void *qkv;  /* [N,C+2K]; rotary positions are applied to queries and keys */
    void *o;    /* [N,C] attention output, heads side by side */
    void *xm;   /* [N,C] residual stream between attention and MLP */
    void *y2;   /* [N,C] second norm */
    void *z;    /* [N,Z] input of the activation; backward of gated units overwrites it with its gradient. NULL for GELU
                   without training */
    void *h;    /* [N,F] output of the activation */
    float *lse; /* [B,H,T] log-sum-exp of the attention scores */
    struct norm_stats stats1, stats2;
};

struct linear {
    struct lin_plan *plan;
    uint64_t w;  /* offset in a block */
    size_t bias; /* floats from w to the bias; 0: no bias */
};

struct model {
    struct decoder_kind kind;
    struct model_config config;
    struct device *dev;
    size_t batch, seq, n; /* n = batch * seq */
    unsigned uses;
    void *memory;              /* all activations, one allocation of device memory */
    struct block_acts *blocks; /* host array [n_layer]; without training all blocks share one set of buffers */
    float *angles;             /* [T,hd] cosines and sines (device_ops.rope); rotary positions only */
    void *x_last;              /* [N,C] residual stream after the last block */
    void *yf;                  /* [N,C] output of the final norm, input of the head */
    struct norm_stats statsf;
    void *dx, *dy, *d_o; /* [N,C] gradients of the residual stream, of a norm's output, of the attention's output */
    void *dqkv, *dh;     /* [N,C+2K], [N,F] gradients of qkv and h */
    void *logits;        /* [V], MODEL_LOGITS */
    void *host_logits;   /* [V], host staging */
    struct rope_shape rope;
    struct linear qkv, proj, up, down;
    struct attn_plan *plan_attn;
    struct head_plan *plan_head_train, *plan_head_loss;
    struct lin_plan *plan_logits;
};

#endif
