/* Measures a codec: bytes, error and speed on normal noise, a file of raw fp32, or the delta of two checkpoints. */
#ifndef CLI_CODEC_MEASURE_H
#define CLI_CODEC_MEASURE_H

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

/* GB/s: 1e9 bytes of fp32 input (4 bytes per value) per second of one thread's CPU time; the best repetition. */
struct codec_figures {
    char spec[256]; /* canonical specification */
    size_t bytes;
    double bits_per_param;
    double bound_bits; /* codec_bound_bits */
    double rel_error;  /* |x - decoded| / |x| in Euclidean norms; 0 if x is all zeros */
    double encode_gbps;
    double decode_merge_gbps; /* the payloads of all workers, checked and merged part by part */
};

enum { CODEC_MEASURE_WORKERS = 4, CODEC_MEASURE_WORKERS_MAX = 64 };

/* Measures each of the two speeds for at least `seconds` of CPU time, with 1 .. CODEC_MEASURE_WORKERS_MAX workers.
 * INVALID, UNSUPPORTED, NOMEM, or the error of the codec. */
enum status codec_measure(const char *spec, const struct codec_input *in, unsigned workers, double seconds,
                          struct codec_figures *figures, struct err *err) MUST_CHECK;
/* CPU seconds of this thread. */
double codec_measure_clock(void);

#endif
