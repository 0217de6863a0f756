/* Measures a codec on given values: bytes, error and speed. */
#ifndef CLI_CODEC_MEASURE_H
#define CLI_CODEC_MEASURE_H

#include "cli/codec_input.h"
#include "common/base/status.h"

/* GB/s: 1e9 bytes of fp32 input (4 bytes per value) per second of one thread's CPU time; the best repetition. */
struct codec_figures {
    char spec[256]; /* canonical specification */
    size_t bytes;
    double bits_per_param;
    double bound_bits; /* codec_bound_bits */
    double rel_error;  /* |x - decoded| / |x| in Euclidean norms; 0 if x is all zeros */
    double encode_gbps;
    double
        decode_merge_gbps; /* payloads of all workers checked and merged part by part; each counts 4 bytes per value */
};

enum { CODEC_MEASURE_WORKERS = 4, CODEC_MEASURE_WORKERS_MAX = 64 };

/* Measures each of the two speeds for at least `seconds` of CPU time, with 1 .. CODEC_MEASURE_WORKERS_MAX workers.
 * INVALID, UNSUPPORTED, NOMEM, or the error of the codec. */
enum status codec_measure(const char *spec, const struct codec_input *in, unsigned workers, double seconds,
                          struct codec_figures *figures, struct err *err) MUST_CHECK;
/* CPU seconds of this thread. */
double codec_measure_clock(void);

#endif
