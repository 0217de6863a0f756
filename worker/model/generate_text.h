/* Generates text from a trained model, token by token.
 *
 * - Tokens are bytes: the byte tokenizer is the only built-in one. A token above 255 is printed as <number>.
 * - With `ids`, tokens are read and printed as numbers.
 * - The counter-based generator draws each token from (seed, position), so the same seed gives the same text. */
#ifndef WORKER_GENERATE_TEXT_H
#define WORKER_GENERATE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/model/model.h"

struct generate_options {
    const char *prompt; /* NULL or "": a newline */
    const char *ids;    /* token numbers in place of a prompt, "1 2 3", for any vocabulary; NULL: tokens are bytes */
    uint32_t n_tokens;  /* tokens to draw after the prompt */
    double temperature; /* 0: always the most likely token */
    uint64_t seed;
    const char *device; /* name for device_open; NULL: auto */
    const char *on_cpu; /* the option or key that selects the CPU, for device_advise */
    int threads;        /* compute threads; 0 means 1 */
};

/* Called with each piece of text, first with the prompt. `text` is not NUL-terminated. Returning false ends the
 * generation; generate_text then returns OK. */
typedef bool (*generate_emit_fn)(void *ctx, const char *text, size_t size);

/* Generates from a Hugging Face folder: an Atoll checkpoint, or another GPT-2 or Llama. UNSUPPORTED for an unknown
 * family, and when tokens are not bytes and no ids are given. NONFINITE, NOMEM, or the error of the device or of the
 * files. */
enum status generate_text(const char *folder, const struct generate_options *options, generate_emit_fn emit, void *ctx,
                          struct err *err) MUST_CHECK;
/* Generates from parameters theta[n_params] in host memory. */
enum status generate_text_theta(const struct model_family *family, const struct model_config *config,
                                const float *theta, const struct generate_options *options, generate_emit_fn emit,
                                void *ctx, struct err *err) MUST_CHECK;

/* Draws one token from softmax(logits[n] / temperature) with uniform u in [0, 1); temperature 0: the first largest
 * logit. */
uint32_t generate_pick(const float *logits, uint32_t n, double temperature, double u);

#endif
