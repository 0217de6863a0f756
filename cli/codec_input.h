/* Input values for measuring a codec: normal noise, a file of raw fp32, or the delta of two checkpoints. */
#ifndef CLI_CODEC_INPUT_H
#define CLI_CODEC_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "compress/codec.h"

struct codec_input {
    float *x; /* [n] */
    size_t n;
    struct codec_span *spans;
    size_t n_spans;
};

/* Fills n values of a normal distribution (sigma 1e-3) as one matrix. NOMEM. Free with codec_input_finish. */
enum status codec_input_noise(struct codec_input *in, size_t n, struct err *err) MUST_CHECK;
/* Reads `path`: raw little-endian fp32 as one matrix, or NAME.safetensors with its tensors. Subtracts `minus` (may be
 * NULL), a file of the same kind and shape. IO, CORRUPT, UNSUPPORTED, MISMATCH, NONFINITE, NOMEM. */
enum status codec_input_file(struct codec_input *in, const char *path, const char *minus, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void codec_input_finish(struct codec_input *in);

#endif
