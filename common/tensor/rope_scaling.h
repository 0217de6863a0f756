/* Scaling of rotary positions for a longer context than in pretraining, as in Llama 3.1.
 *
 * Slow pairs turn `factor` times slower, fast pairs are unchanged, and pairs between are blended. Formula:
 * transformers, modeling_rope_utils, "llama3". */
#ifndef COMMON_ROPE_SCALING_H
#define COMMON_ROPE_SCALING_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct rope_scaling {
    double factor;    /* 0: no scaling; the other members are then unused */
    double low, high; /* turns over the original context: a pair below `low` is slow, above `high` fast */
    double original;  /* tokens of the original context */
};

/* Parse "none" or "llama3:FACTOR:LOW:HIGH:ORIGINAL". INVALID, with a message that begins with model.rope_scaling. */
enum status rope_scaling_parse(struct rope_scaling *s, const char *text, struct err *err) MUST_CHECK;
/* Write the text that rope_scaling_parse reads to out[cap]. Returns out. */
const char *rope_scaling_text(const struct rope_scaling *s, char *out, size_t cap);
/* True for no scaling, or 1 <= factor <= 1e6, 0 < low < high <= 1e6, 1 <= original <= 1e9. */
bool rope_scaling_ok(const struct rope_scaling *s);
/* Scaled angle, in radians per token, of a pair that turns by `step` without scaling. */
double rope_scaling_step(const struct rope_scaling *s, double step);

#endif
