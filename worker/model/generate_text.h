/* Text from a trained model, token by token. Tokens are bytes, the byte tokenizer is the only one built in, and what is
 * no byte is shown as <number>; or they are numbers, given and shown.
 *
 * Every token is drawn with the counter-based generator from (seed, position), so the same seed gives the same text. */
#ifndef WORKER_GENERATE_TEXT_H
#define WORKER_GENERATE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/model/model.h"

struct generate_options {
    const char *prompt; /* NULL or "": a line break */
    const char *ids;    /* in its place numbers of tokens, "1 2 3", of any vocabulary; NULL: tokens are bytes */
    uint32_t n_tokens;  /* to be drawn after the prompt */
    double temperature; /* 0: always the likeliest token */
    uint64_t seed;
    const char *device; /* device_open name; NULL: auto */
    const char *on_cpu; /* device_advise's: what is said to have the CPU */
    int threads;        /* 0: 1 */
};

/* Called with each piece of text as it is made, first with the prompt. Not NUL-terminated. False: nobody wants more,
 * which ends it, and is no failure. */
typedef bool (*generate_emit_fn)(void *ctx, const char *text, size_t size);

/* From a Hugging Face folder (a checkpoint of ours, or another GPT-2 or Llama). UNSUPPORTED when its tokens are not
 * bytes and no ids are given. */
enum status generate_text(const char *folder, const struct generate_options *options, generate_emit_fn emit, void *ctx,
                          struct err *err) MUST_CHECK;
/* From parameters in host memory. */
enum status generate_text_theta(const struct model_family *family, const struct model_config *config,
                                const float *theta, const struct generate_options *options, generate_emit_fn emit,
                                void *ctx, struct err *err) MUST_CHECK;

/* One draw: softmax(logits / temperature) at uniform u in [0, 1); temperature 0: the first largest. */
uint32_t generate_pick(const float *logits, uint32_t n, double temperature, double u);

#endif
