/* What a codec makes of some floats: bytes, error and speed. */
#ifndef CLI_CODEC_MEASURE_H
#define CLI_CODEC_MEASURE_H

#include "cli/codec_input.h"
#include "common/base/status.h"

/* GB/s: 1e9 bytes of fp32 input (4 a value) in a second of one thread's CPU time, best of the repetitions. */
struct codec_figures {
    char spec[256]; /* canonical */
    size_t bytes;
    double bits_per_param;
    double bound_bits; /* codec_bound_bits */
    double rel_error;  /* |x - decoded| / |x|, Euclidean norms; 0 where x is all zeros */
    double encode_gbps;
    double decode_merge_gbps; /* `workers` payloads checked and added up part by part; each counts 4 bytes a value */
};

enum { CODEC_MEASURE_WORKERS = 4, CODEC_MEASURE_WORKERS_MAX = 64 };

/* At least `seconds` of CPU time for each of the two speeds. */
enum status codec_measure(const char *spec, const struct codec_input *in, double seconds, struct codec_figures *figures,
                          struct err *err) MUST_CHECK;
/* *gbps: payloads of so many workers (up to CODEC_MEASURE_WORKERS_MAX) checked and added up; GB of fp32 parameters that
 * all of them together cover: 4 bytes a parameter, however many send it. */
enum status codec_measure_merge(const char *spec, const struct codec_input *in, unsigned workers, double seconds,
                                double *gbps, struct err *err) MUST_CHECK;
/* CPU seconds of this thread. */
double codec_measure_clock(void);

#endif
