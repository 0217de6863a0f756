/* Functions shared by the files of bench_gpu. */
#ifndef TESTS_GPU_BENCH_GPU_H
#define TESTS_GPU_BENCH_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/device.h"

/* Open a device; precision is "fp32" or "bf16". Errors are those of device_open and use_bf16. The caller closes *out,
 * which may be set on an error, too. */
enum status bench_device(const char *name, const char *precision, struct device **out, struct err *err) MUST_CHECK;
/* Allocate n normal values with standard deviation `sigma` on the device, activations in its activation type. Returns
 * NULL if out of memory. Closing the device frees them. */
void *bench_random(struct device *dev, size_t n, bool activation, float sigma) MUST_CHECK;
/* Write the mean seconds of one call of `once` to *each, measured for at least `seconds`. */
enum status bench_time(struct device *dev, void (*once)(struct device *dev, void *ctx), void *ctx, double seconds,
                       double *each, struct err *err) MUST_CHECK;

/* Escape `text` for a JSON string and cut it to BENCH_TEXT - 1 bytes; control characters become blanks. Returns out. */
enum { BENCH_TEXT = 512 };
const char *bench_text(const char *text, char out[BENCH_TEXT]);

/* Measure the outer path of n parameters with one codec and print its line. */
enum status bench_delta(struct device *dev, double seconds, const char *spec, size_t n, struct err *err) MUST_CHECK;
/* The same for a codec without a device form: the host makes the delta. */
enum status bench_floats(double seconds, const char *spec, size_t n, struct err *err) MUST_CHECK;
/* Train on the devices in the list `name` and answer step counts from standard input. v[n]: FAMILY LAYERS HEADS KV
 * WIDTH FFN SEQ BATCH VOCAB [RECOMPUTE | PARTS]. dev is the first device of the list. */
enum status bench_train_steps(struct device *dev, const char *name, const char *precision, int n, char **v,
                              struct err *err) MUST_CHECK;

/* The host's part of the outer path (bench_gpu_host.c). The caller sets the inputs; the times are outputs, in seconds.
 */
struct bench_host {
    struct codec *codec;
    struct pool *pool;
    const struct quantized_delta *numbers;
    void *room; /* decoded values, in memory that the device can read */
    float *theta;
    uint8_t *payload; /* encoded delta; bench_host_run owns its own */
    size_t size;
    uint64_t sum;                              /* checksum, so that the compiler keeps the work */
    double encode_s, move_s, hash_s, decode_s; /* move_s: applying the update, with all threads */
};
enum status bench_host_run(struct bench_host *h, double seconds, struct err *err) MUST_CHECK;
/* Measure move_s and hash_s of an existing payload. */
enum status bench_host_apply(struct bench_host *h, double seconds) MUST_CHECK;

#endif
