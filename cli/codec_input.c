#include "cli/codec_input.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "common/tensor/safetensors.h"
#include "compress/codec_simd.h"

/* The values are one matrix until the caller says more. */
static enum status allocate(struct codec_input *in, size_t n, size_t n_spans, struct err *err)
{
    *in = (struct codec_input){.n = n, .n_spans = n_spans};
    in->x = mem_alloc(n, sizeof *in->x);
    in->spans = mem_alloc(n_spans, sizeof *in->spans);
    if (!in->x || !in->spans) {
        codec_input_finish(in);
        return err_set(err, STATUS_NOMEM, "no memory for %zu values", n);
    }
    in->spans[0] = (struct codec_span){.count = n, .rows = 1, .cols = n, .ndim = 2};
    return STATUS_OK;
}

enum status codec_input_noise(struct codec_input *in, size_t n, struct err *err)
{
    TRY(allocate(in, n, 1, err));
    rng_normal_fill(1, RNG_TEST, 0, 1e-3f, in->x, n);
    return STATUS_OK;
}

static enum status read_raw(struct codec_input *in, const char *path, struct err *err)
{
    struct file_map map;
    TRY(file_map_open(&map, path, err));
    size_t n = map.size / sizeof(float);
    enum status status = STATUS_OK;
    if (!n || map.size % sizeof(float))
        status = err_set(err, STATUS_CORRUPT,
                         "%s: %zu bytes are not a multiple of 4: give raw fp32 or a .safetensors file", path, map.size);
    if (status == STATUS_OK) status = allocate(in, n, 1, err);
    if (status == STATUS_OK) memcpy(in->x, map.data, map.size);
    file_map_close(&map);
    return status;
}

static enum status read_tensors(struct codec_input *in, const struct safetensors *st, const char *path, struct err *err)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < st->n; i++) {
        if (!st->entries[i].count || !st->entries[i].ndim)
            return err_set(err, STATUS_UNSUPPORTED, "%s: tensor %s is empty or a scalar, which codecs do not support",
                           path, st->entries[i].name);
        n += st->entries[i].count;
    }
    if (!n) return err_set(err, STATUS_CORRUPT, "%s has no tensors", path);
    TRY(allocate(in, (size_t)n, st->n, err));
    n = 0;
    for (uint32_t i = 0; i < st->n; i++) {
        const struct safetensors_entry *e = &st->entries[i];
        uint64_t cols = e->shape[e->ndim - 1];
        in->spans[i] = (struct codec_span){
            .offset = n, .count = e->count, .rows = e->count / cols, .cols = cols, .ndim = (uint8_t)e->ndim};
        enum status status = safetensors_read_f32(e, in->x + n, err);
        if (status != STATUS_OK) {
            err_prefix(err, "%.300s", path);
            return status;
        }
        n += e->count;
    }
    return STATUS_OK;
}

static enum status read_file(struct codec_input *in, const char *path, struct err *err)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(path), tail = sizeof ending - 1;
    if (length < tail || strcmp(path + length - tail, ending)) return read_raw(in, path, err);
    struct safetensors st = {0};
    enum status status = safetensors_open(&st, path, err);
    if (status == STATUS_OK) status = read_tensors(in, &st, path, err);
    safetensors_close(&st);
    return status;
}

enum status codec_input_file(struct codec_input *in, const char *path, const char *minus, struct err *err)
{
    struct codec_input other = {0};
    *in = (struct codec_input){0};
    enum status status = read_file(in, path, err);
    if (status == STATUS_OK && minus) status = read_file(&other, minus, err);
    if (status == STATUS_OK && minus) {
        if (other.n != in->n || other.n_spans != in->n_spans ||
            memcmp(other.spans, in->spans, in->n_spans * sizeof *in->spans) != 0)
            status = err_set(err, STATUS_MISMATCH,
                             "%s and %s have different tensors: give two checkpoints of one model", path, minus);
        for (size_t i = 0; status == STATUS_OK && i < in->n; i++) in->x[i] = in->x[i] - other.x[i];
    }
    size_t bad = status == STATUS_OK ? codec_first_nonfinite(in->x, in->n) : 0;
    if (status == STATUS_OK && bad < in->n)
        status = err_set(err, STATUS_NONFINITE, "%s: value %zu is not finite", path, bad);
    codec_input_finish(&other);
    if (status != STATUS_OK) codec_input_finish(in);
    return status;
}

void codec_input_finish(struct codec_input *in)
{
    mem_free(in->x);
    mem_free(in->spans);
    *in = (struct codec_input){0};
}
