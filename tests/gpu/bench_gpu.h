/* Parts of bench_gpu. */
#ifndef TESTS_GPU_BENCH_GPU_H
#define TESTS_GPU_BENCH_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/device.h"

/* "fp32" or "bf16". Errors of device_open and use_bf16; *out may be set then, too, and is to be closed. */
enum status bench_device(const char *name, const char *precision, struct device **out, struct err *err) MUST_CHECK;
/* n normal numbers in the device's memory, an activation in the device's form; NULL: none. Goes with the device. */
void *bench_random(struct device *dev, size_t n, bool activation, float sigma) MUST_CHECK;
/* Seconds of one `once`, over at least `seconds`. */
enum status bench_time(struct device *dev, void (*once)(struct device *dev, void *ctx), void *ctx, double seconds,
                       double *each, struct err *err) MUST_CHECK;

/* `text` as it may stand between the quotes of JSON: libraries say what they like, in several lines. Returns out. */
enum { BENCH_TEXT = 512 };
const char *bench_text(const char *text, char out[BENCH_TEXT]);

/* v: N K M, both ways back through a layer y[N,M] behind a GELU, in bf16: prints their line. Opens the device of that
 * name by itself. */
enum status bench_ends(const char *device, double seconds, char **v, struct err *err) MUST_CHECK;
/* Of n parameters with one codec: prints its line. */
enum status bench_delta(struct device *dev, double seconds, const char *spec, size_t n, struct err *err) MUST_CHECK;
/* The same where the host makes the delta, of a codec that devices cannot. */
enum status bench_floats(double seconds, const char *spec, size_t n, struct err *err) MUST_CHECK;
/* v[n]: FAMILY LAYERS HEADS KV WIDTH FFN SEQ BATCH VOCAB, and perhaps RECOMPUTE or PARTS; trains on the device of that
 * name, or on each of a list, the first one the same as dev, and serves standard input. */
enum status bench_train_steps(struct device *dev, const char *name, const char *precision, int n, char **v,
                              struct err *err) MUST_CHECK;

/* The host's part (bench_gpu_host.c): in, what the caller has; out, seconds for all of it. */
struct bench_host {
    struct codec *codec;
    struct pool *pool;
    const struct quantized_delta *numbers;
    void *room; /* for numbers, where a device takes them from */
    float *theta;
    uint8_t *payload; /* while it runs */
    size_t size;
    uint64_t sum;                              /* of what nobody else looks at */
    double encode_s, move_s, hash_s, decode_s; /* move_s: by all threads */
};
enum status bench_host_run(struct bench_host *h, double seconds, struct err *err) MUST_CHECK;
/* move_s and hash_s alone, of the payload that is there. */
enum status bench_host_apply(struct bench_host *h, double seconds) MUST_CHECK;

#endif
