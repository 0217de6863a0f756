/* What decoder-only models have in common beside their layers: sizes, one piece of device memory, plans of attention,
 * head and logits. Each family's struct model begins with a struct decoder. */
#ifndef WORKER_DECODER_H
#define WORKER_DECODER_H

#include "worker/activations.h"
#include "worker/model.h"

struct decoder {
    struct model_config config;
    struct device *dev;
    size_t batch, seq, n; /* n = batch * seq */
    unsigned uses;
    void *memory;      /* all activations, one piece of device memory */
    void *yf;          /* [N,C] the final norm: what losses and logits are made of; the walk places it */
    void *logits;      /* [V], MODEL_LOGITS */
    void *host_logits; /* [V], host staging when activations are not fp32 */
    struct attn_plan *plan_attn;
    struct head_plan *plan_head_train, *plan_head_loss;
    struct lin_plan *plan_logits;
};

/* A family's walk over its buffers (activations.h), for activations of `act` bytes. It reads sizes and `uses` of the
 * decoder and places yf; the logits are not its business. */
typedef void (*decoder_walk_fn)(struct model *m, struct carve *carve, size_t act);
/* Makes the family's own plans. */
typedef enum status (*decoder_plan_fn)(struct model *m);

/* What does not need a device: for counting, too. */
struct decoder decoder_of(const struct model_config *config, size_t batch, size_t seq, unsigned uses);
/* Bytes of device memory that decoder_fill takes for m, whose decoder is d and whose table of layers holds two: all
 * layers after the first take the same. */
size_t decoder_count(struct decoder *d, struct model *m, decoder_walk_fn walk, size_t act);
/* model_family.shapes. */
void decoder_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses,
                    struct attn_shape *attn, struct head_shape *head);

/* Memory and plans on d->dev. INVALID for sizes that make no model, NOMEM, or what the device says; decoder_finish is
 * due in any case. */
enum status decoder_fill(struct decoder *d, struct model *m, uint64_t n_params, decoder_walk_fn walk,
                         decoder_plan_fn plan, struct err *err) MUST_CHECK;
/* With the family's own plans. */
void decoder_finish(struct decoder *d, void *const *plans, size_t n_plans);

/* Whether rows first .. first + n have logits: before the pass that decoder_logits reads. */
enum status decoder_check_rows(const struct decoder *d, size_t first, size_t n, struct err *err) MUST_CHECK;
/* The logits of these rows of yf by the head's weights [V,C], see model_family.logits. */
enum status decoder_logits(struct decoder *d, const float *head, size_t first, size_t n, float *out,
                           struct err *err) MUST_CHECK;

#endif
