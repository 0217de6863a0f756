/* How rotary positions are stretched over a longer context than they were trained with: Llama 3.1's way, which turns
 * slow pairs `factor` times slower, leaves fast ones alone, and blends between. Rates as in transformers
 * (modeling_rope_utils, "llama3"). */
#ifndef COMMON_ROPE_SCALING_H
#define COMMON_ROPE_SCALING_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct rope_scaling {
    double factor;    /* 0: none, and the rest has no meaning */
    double low, high; /* turns over the original context below which a pair is slow, above which it is fast */
    double original;  /* tokens of that context */
};

/* "none" or "llama3:FACTOR:LOW:HIGH:ORIGINAL". INVALID, with a line that begins with model.rope_scaling. */
enum status rope_scaling_parse(struct rope_scaling *s, const char *text, struct err *err) MUST_CHECK;
/* The same text again. Returns out. */
const char *rope_scaling_text(const struct rope_scaling *s, char *out, size_t cap);
/* factor at least 1, 0 < low < high, original at least 1; or none. */
bool rope_scaling_ok(const struct rope_scaling *s);
/* Radians a token of a pair that turns by `step` without it. */
double rope_scaling_step(const struct rope_scaling *s, double step);

#endif
