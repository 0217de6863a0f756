/* Benchmark of all codecs on the same floats: size, error and speed on one core.
 *
 * Usage: bench_codec [--params N] [--file F [--minus F]] [--run FOLDER] [--specs LIST]
 *
 * - Size: bits per parameter beside the entropy bound.
 * - Speed: GB (1e9 bytes) of fp32 values per second of CPU time, best of the repetitions, beside memcpy, LZ4 and
 *   zstd -1 on the same floats in the same run.
 * - "merge": check and add four payloads; each payload counts 4 bytes per parameter.
 * - "R=4", "R=16": check and add that many payloads; all together count 4 bytes per parameter.
 * - zstd is loaded at run time (libzstd.so.1) if the system has it. The project does not link it. */
#include <dlfcn.h>
#include <jansson.h>
#include <lz4.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/codec_measure.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/json_file.h"
#include "common/tensor/layout.h"
#include "tests/bench/lib/machine.h"
#include "worker/model/gpt2.h"
#include "worker/model/model.h"
#include "worker/outer/worker_state.h"

static const char all_specs[] =
    "fp32,fp32+lz4,bf16,bf16+lz4,fp16,int8:256,int4:256,int4:256+huff,2bit:256,2bit:256+huff,"
    "1bit:256,topk:32/4096+sign,topk:64/4096+sign,topk:128/4096+sign,topk:256/4096+sign,topk:64/4096+2bit,"
    "topk:64/4096+int8,topk:64/4096+fp16,topk:1024/4096+2bit";

struct peer {
    double bits, encode_gbps, decode_gbps; /* NAN: the library is missing */
};

struct bench {
    struct codec_input in;
    const char *file, *minus, *run; /* source of `in`; all NULL: normal noise */
    const char *name;               /* name of that source in the rows */
    double seconds, memcpy_gbps;
    struct peer lz4, zstd;
    json_t *rows, *torch; /* torch: PyTorch's speeds by spec; NULL without --torch */
    uint8_t *packed, *copy;
    size_t cap;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_codec: %s\n", what);
    exit(1);
}

static void must(enum status status, const struct err *err)
{
    if (status != STATUS_OK) die(err->msg[0] ? err->msg : status_text(status));
}

/* ---- input ----------------------------------------------------------------------------------------------------------
 * --run: the last input of worker-0's encoder. The saved state of worker-0 holds the decoded delta and the residual;
 * their sum is the delta with error feedback, before encoding. */

static void use_layout(struct bench *b, const struct layout *layout)
{
    b->in.n = layout->n_params;
    b->in.n_spans = layout->n_tensors;
    b->in.x = mem_alloc(b->in.n, sizeof *b->in.x);
    b->in.spans = mem_alloc(b->in.n_spans, sizeof *b->in.spans);
    if (!b->in.x || !b->in.spans) die("no memory");
    for (size_t i = 0; i < b->in.n_spans; i++) {
        const struct tensor *t = &layout->tensors[i];
        uint64_t cols = t->shape[t->ndim - 1];
        b->in.spans[i] = (struct codec_span){
            .offset = t->offset, .count = t->count, .rows = t->count / cols, .cols = cols, .ndim = t->ndim};
    }
}

static void read_state(struct bench *b, const char *path, const struct layout *layout, const char *up)
{
    static struct saved_state saved;
    struct err err = {0};
    struct file_map map;
    struct codec *codec;
    must(file_map_open(&map, path, &err), &err);
    must(saved_state_decode(&saved, map.data, map.size, &err), &err);
    if (saved.layout_hash != layout_hash(layout) || saved.n_fragments != 1 || !saved.residual || !saved.payload[0])
        die("--run: the state of worker-0 needs one fragment with a residual and a delta");
    memcpy(b->in.x, saved.residual, b->in.n * sizeof *b->in.x);
    must(codec_create_for_fragment(&codec, up, layout, 0, &err), &err);
    must(codec_decode_axpy(codec, 1.0f, saved.payload[0], saved.f[0].payload_size, b->in.x), &err);
    codec_destroy(codec);
    file_map_close(&map);
}

static void read_run(struct bench *b)
{
    static struct config config;
    static struct layout layout;
    struct config_sources sources;
    struct err err = {0};
    char path[4096];
    config_defaults(&config, &sources);
    snprintf(path, sizeof path, "%s/config.yaml", b->run);
    must(config_load(&config, &sources, path, &err), &err);
    must(config_resolve(&config, &sources, &err), &err);
    const struct model_config model = model_config_of(&config);
    layout_init(&layout);
    must(gpt2_layout(&model, &layout, &err), &err);
    must(layout_split(&layout, config.train.fragments), &err);
    use_layout(b, &layout);
    snprintf(path, sizeof path, "%s/workers/worker-0/state.bin", b->run);
    read_state(b, path, &layout, config.codec.up);
    layout_finish(&layout);
}

static void read_input(struct bench *b, size_t params)
{
    struct err err = {0};
    if (b->run)
        read_run(b);
    else
        must(b->file ? codec_input_file(&b->in, b->file, b->minus, &err) : codec_input_noise(&b->in, params, &err),
             &err);
    if (b->in.n > 1 << 28) die("at most 2^28 values");
    if (!b->name) b->name = b->run ? b->run : b->file ? b->file : "normal noise";
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

/* Signatures of ZSTD_compress and ZSTD_decompress. Both return the number of bytes written; 0 is a failure. */
struct packer {
    size_t (*pack)(void *dst, size_t cap, const void *src, size_t size, int level);
    size_t (*unpack)(void *dst, size_t cap, const void *src, size_t size);
};

static size_t lz4_pack(void *dst, size_t cap, const void *src, size_t size, int level)
{
    return (size_t)LZ4_compress_fast(src, dst, (int)size, (int)cap, level);
}

static size_t lz4_unpack(void *dst, size_t cap, const void *src, size_t size)
{
    int n = LZ4_decompress_safe(src, dst, (int)size, (int)cap);
    return n < 0 ? 0 : (size_t)n;
}

static struct peer measure_peer(struct bench *b, struct packer p)
{
    size_t bytes = b->in.n * sizeof(float), packed = 0;
    double in_s = INFINITY, out_s = INFINITY, spent = 0;
    for (int i = 0; i < 3 || spent < b->seconds; i++) {
        double t0 = codec_measure_clock();
        packed = p.pack(b->packed, b->cap, b->in.x, bytes, 1);
        double t1 = codec_measure_clock();
        if (!packed || packed > b->cap || p.unpack(b->copy, bytes, b->packed, packed) != bytes)
            die("LZ4 or zstd failed");
        double t2 = codec_measure_clock();
        in_s = fmin(in_s, t1 - t0);
        out_s = fmin(out_s, t2 - t1);
        spent += t2 - t0;
    }
    if (memcmp(b->copy, b->in.x, bytes) != 0) die("LZ4 or zstd changed the data");
    return (struct peer){8.0 * (double)packed / (double)b->in.n, (double)bytes / in_s * 1e-9,
                         (double)bytes / out_s * 1e-9};
}

static struct peer measure_zstd(struct bench *b)
{
    struct packer p = {0};
    void *library = dlopen("libzstd.so.1", RTLD_NOW);
    if (library) {
        *(void **)&p.pack = dlsym(library, "ZSTD_compress");
        *(void **)&p.unpack = dlsym(library, "ZSTD_decompress");
    }
    if (!p.pack || !p.unpack) return (struct peer){NAN, NAN, NAN};
    struct peer peer = measure_peer(b, p);
    dlclose(library);
    return peer;
}

static double measure_memcpy(struct bench *b)
{
    size_t bytes = b->in.n * sizeof(float);
    double best = INFINITY, spent = 0;
    for (int i = 0; i < 4 || spent < b->seconds; i++) {
        double t = codec_measure_clock();
        memcpy(b->copy, b->in.x, bytes);
        __asm__ volatile("" : : "r"(b->copy) : "memory");
        t = codec_measure_clock() - t;
        if (i) best = fmin(best, t);
        spent += t;
    }
    return (double)bytes / best * 1e-9;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void put_peer(json_t *row, const char *name, const struct peer *p)
{
    char key[64];
    snprintf(key, sizeof key, "%s_bits", name);
    json_object_set_new(row, key, number(p->bits));
    snprintf(key, sizeof key, "%s_encode_gbps", name);
    json_object_set_new(row, key, number(p->encode_gbps));
    snprintf(key, sizeof key, "%s_decode_gbps", name);
    json_object_set_new(row, key, number(p->decode_gbps));
}

static void print_number(double x)
{
    if (isfinite(x))
        printf(" %7.2f", x);
    else
        printf(" %7s", "");
}

/* Merge speed of `workers` payloads in GB/s of fp32 values; NAN for dense codecs. */
static double measure_merge(const struct bench *b, const char *spec, unsigned workers)
{
    struct err err = {0};
    struct codec_figures f = {.decode_merge_gbps = NAN};
    if (!strncmp(spec, "topk", 4)) must(codec_measure(spec, &b->in, workers, b->seconds, &f, &err), &err);
    return f.decode_merge_gbps / workers;
}

static double torch_of(const struct bench *b, const char *spec, const char *key)
{
    const json_t *value = json_object_get(json_object_get(b->torch, spec), key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void bench_spec(struct bench *b, const char *spec)
{
    struct codec_figures f;
    struct err err = {0};
    if (codec_measure(spec, &b->in, CODEC_MEASURE_WORKERS, b->seconds, &f, &err) != STATUS_OK) die(err.msg);
    double merge_4 = measure_merge(b, spec, 4), merge_16 = measure_merge(b, spec, 16);
    double torch_in = torch_of(b, f.spec, "encode_gbps"), torch_out = torch_of(b, f.spec, "decode_merge_gbps");
    printf("%-22s %8.4f %8.4f %8.5f", f.spec, f.bits_per_param, f.bound_bits, f.rel_error);
    const double speeds[] = {f.encode_gbps, f.decode_merge_gbps, merge_4, merge_16, torch_in, torch_out};
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) print_number(speeds[i]);
    puts("");
    fflush(stdout);
    json_t *row = json_pack("{s:s,s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "codec", f.spec, "data", b->name, "params",
                            (json_int_t)b->in.n, "bytes", (json_int_t)f.bytes, "bits_per_param", f.bits_per_param,
                            "bound_bits", f.bound_bits, "rel_error", f.rel_error, "encode_gbps", f.encode_gbps,
                            "decode_merge_gbps", f.decode_merge_gbps, "memcpy_gbps", b->memcpy_gbps);
    json_object_set_new(row, "merge_of_4_gbps", number(merge_4));
    json_object_set_new(row, "merge_of_16_gbps", number(merge_16));
    json_object_set_new(row, "torch_encode_gbps", number(torch_in));
    json_object_set_new(row, "torch_decode_merge_gbps", number(torch_out));
    put_peer(row, "lz4", &b->lz4);
    put_peer(row, "zstd1", &b->zstd);
    json_array_append_new(b->rows, row);
}

static void bench_specs(struct bench *b, const char *specs)
{
    char spec[128];
    for (const char *at = specs; *at;) {
        size_t n = strcspn(at, ",");
        if (n >= sizeof spec) die("a spec is too long");
        memcpy(spec, at, n);
        spec[n] = 0;
        bench_spec(b, spec);
        at += n + (at[n] == ',');
    }
}

static void print_peer(const char *name, const struct peer *p)
{
    if (isfinite(p->bits))
        printf("%-22s %8.4f %8s %8s %7.2f %7.2f\n", name, p->bits, "", "0", p->encode_gbps, p->decode_gbps);
}

static void print_head(const struct bench *b)
{
    printf("%zu values: %s\n\n%-22s %8s %8s %8s %7s %7s %7s %7s %7s %7s\n", b->in.n, b->name, "", "bits", "bound",
           "error", "encode", "merge", "R=4", "R=16", "torch", "torch");
    printf("%-22s %8s %8s %8s %7s %7s %7s %7s %7s %7s\n", "", "per param", "", "", "GB/s", "GB/s", "GB/s", "GB/s",
           "encode", "merge");
    printf("%-22s %8s %8s %8s %7.2f\n", "memcpy", "32", "", "0", b->memcpy_gbps);
    print_peer("LZ4 of the fp32", &b->lz4);
    print_peer("zstd -1 of the fp32", &b->zstd);
}

static void dump(const struct bench *b, const char *path)
{
    struct err err = {0};
    must(file_write(path, b->in.x, b->in.n * sizeof *b->in.x, &err), &err);
}

static void load(struct bench *b, const char *torch, const char *json, bool append)
{
    json_t *old = append ? json_load_file(json, 0, NULL) : NULL;
    if (append && !old) die("--append: cannot read the existing rows");
    b->rows = append ? json_incref(json_object_get(old, "rows")) : json_array();
    json_decref(old);
    if (torch && !(b->torch = json_load_file(torch, 0, NULL))) die("--torch: cannot read the file");
}

static void measure_all(struct bench *b, const char *specs)
{
    b->cap = b->in.n * sizeof(float) + b->in.n / 16 + 1024;
    b->packed = mem_alloc(1, b->cap);
    b->copy = mem_alloc(b->in.n, sizeof(float));
    if (!b->packed || !b->copy || !b->rows) die("no memory");
    b->memcpy_gbps = measure_memcpy(b);
    b->lz4 = measure_peer(b, (struct packer){lz4_pack, lz4_unpack});
    b->zstd = measure_zstd(b);
    print_head(b);
    bench_specs(b, specs);
    puts("");
}

int main(int argc, char **argv)
{
    struct bench b = {.seconds = 0.3};
    uint64_t params = 8 << 20;
    const char *specs = all_specs, *json = NULL, *torch = NULL, *dump_to = NULL;
    bool append = false;
    struct err err = {0};
    const struct option_spec table[] = {
        {"params", OPTION_COUNT, &params, "N", "number of normal noise values (8 Mi)"},
        {"file", OPTION_TEXT, &b.file, "FILE", "read the values from raw fp32 or a .safetensors file"},
        {"minus", OPTION_TEXT, &b.minus, "FILE", "subtract these values: the delta of two checkpoints"},
        {"run", OPTION_TEXT, &b.run, "FOLDER", "the last delta of worker-0 with error feedback"},
        {"name", OPTION_TEXT, &b.name, "TEXT", "name of the values in the rows"},
        {"specs", OPTION_TEXT, &specs, "LIST", "codecs, separated by commas (all kinds)"},
        {"seconds", OPTION_REAL, &b.seconds, "S", "CPU time per measurement (0.3)"},
        {"torch", OPTION_TEXT, &torch, "FILE", "speeds from codec_torch.py on the same values"},
        {"dump", OPTION_TEXT, &dump_to, "FILE", "write the values as raw fp32 and exit"},
        {"json", OPTION_TEXT, &json, "FILE", "also write the rows as JSON"},
        {"append", OPTION_FLAG, &append, NULL, "append to the rows in the --json file"},
    };
    struct options options = {.program = "bench_codec",
                              .usage = "[options]",
                              .about = "Size, error and speed of the codecs.",
                              .specs = table,
                              .n_specs = sizeof table / sizeof *table};
    enum status status = options_parse(&options, argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_codec", &err);
    if (!params || params > 1 << 28) die("--params: 1 to 2^28");
    read_input(&b, (size_t)params);
    if (dump_to) {
        dump(&b, dump_to);
    } else {
        load(&b, torch, json, append);
        measure_all(&b, specs);
        json_t *out = json_pack("{s:s,s:o,s:o}", "name", "codec", "machine", machine_json(), "rows", b.rows);
        if (json) must(json_file_write(json, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6), &err), &err);
        json_decref(out);
    }
    mem_free(b.packed);
    mem_free(b.copy);
    codec_input_finish(&b.in);
    json_decref(b.torch);
    return 0;
}
