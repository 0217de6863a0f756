/* Every codec on the same floats: bits a parameter beside the entropy bound, error, and speed on one core beside
 * memcpy, LZ4 and zstd -1 on the same floats in the same run. Usage: bench_codec [--params N] [--file F [--minus F]]
 * [--specs LIST]
 *
 * Speeds are GB (1e9 bytes) of fp32 values a second of CPU time, best of the repetitions. zstd is used when the system
 * has its library (libzstd.so.1): the project does not link it. */
#include <dlfcn.h>
#include <jansson.h>
#include <lz4.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/codec_input.h"
#include "cli/codec_measure.h"
#include "common/mem.h"
#include "common/options.h"

static const char all_specs[] =
    "fp32,fp32+lz4,bf16,bf16+lz4,fp16,int8:256,int4:256,int4:256+huff,e3m0:256,e3m0:256+huff,2bit:256,2bit:256+huff,"
    "1bit:256,topk:128/4096+sign,topk:64/4096+sign,topk:32/4096+sign,topk:64/4096+2bit,topk:64/4096+int8,"
    "topk:64/4096+fp16,topk:256/4096+sign";

struct peer {
    double bits, encode_gbps, decode_gbps; /* NAN: not there */
};

struct bench {
    struct codec_input in;
    double seconds, memcpy_gbps;
    struct peer lz4, zstd;
    json_t *rows;
    uint8_t *packed, *copy;
    size_t cap;
};

static void die(const char *what)
{
    fprintf(stderr, "bench_codec: %s\n", what);
    exit(1);
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

/* As ZSTD_compress and ZSTD_decompress; sizes 0 are failures. */
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
        if (!packed || packed > b->cap || p.unpack(b->copy, bytes, b->packed, packed) != bytes) die("a peer failed");
        double t2 = codec_measure_clock();
        in_s = fmin(in_s, t1 - t0);
        out_s = fmin(out_s, t2 - t1);
        spent += t2 - t0;
    }
    if (memcmp(b->copy, b->in.x, bytes) != 0) die("a peer changed the data");
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

static void bench_spec(struct bench *b, const char *spec, const char *data)
{
    struct codec_figures f;
    struct err err = {0};
    if (codec_measure(spec, &b->in, b->seconds, &f, &err) != STATUS_OK) die(err.msg);
    printf("%-22s %9.4f %9.4f %9.5f %9.2f %9.2f\n", f.spec, f.bits_per_param, f.bound_bits, f.rel_error, f.encode_gbps,
           f.decode_merge_gbps);
    fflush(stdout);
    json_t *row = json_pack("{s:s,s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f}", "codec", f.spec, "data", data, "params",
                            (json_int_t)b->in.n, "bytes", (json_int_t)f.bytes, "bits_per_param", f.bits_per_param,
                            "bound_bits", f.bound_bits, "rel_error", f.rel_error, "encode_gbps", f.encode_gbps,
                            "decode_merge_gbps", f.decode_merge_gbps, "memcpy_gbps", b->memcpy_gbps);
    put_peer(row, "lz4", &b->lz4);
    put_peer(row, "zstd1", &b->zstd);
    json_array_append_new(b->rows, row);
}

static void bench_specs(struct bench *b, const char *specs, const char *data)
{
    char spec[128];
    for (const char *at = specs; *at;) {
        size_t n = strcspn(at, ",");
        if (n >= sizeof spec) die("a spec is too long");
        memcpy(spec, at, n);
        spec[n] = 0;
        bench_spec(b, spec, data);
        at += n + (at[n] == ',');
    }
}

static void print_peers(const struct bench *b)
{
    printf("%-22s %9s %9s %9s %9.2f\n", "memcpy", "32", "", "0", b->memcpy_gbps);
    printf("%-22s %9.4f %9s %9s %9.2f %9.2f\n", "LZ4 of the fp32", b->lz4.bits, "", "0", b->lz4.encode_gbps,
           b->lz4.decode_gbps);
    if (isfinite(b->zstd.bits))
        printf("%-22s %9.4f %9s %9s %9.2f %9.2f\n", "zstd -1 of the fp32", b->zstd.bits, "", "0", b->zstd.encode_gbps,
               b->zstd.decode_gbps);
}

static json_t *machine(void)
{
    char line[256], model[200] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "r");
    int cores = 0;
    while (f && fgets(line, sizeof line, f)) {
        cores += !strncmp(line, "processor", 9);
        const char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10))
            snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (f) fclose(f);
    return json_pack("{s:s,s:i}", "cpu", model, "cores", cores);
}

int main(int argc, char **argv)
{
    struct bench b = {.seconds = 0.3};
    uint64_t params = 8 << 20;
    const char *file = NULL, *minus = NULL, *specs = all_specs, *json = NULL;
    struct err err = {0};
    const struct option_spec table[] = {
        {"params", OPTION_COUNT, &params, "N", "values of normal noise (8 Mi)"},
        {"file", OPTION_TEXT, &file, "FILE", "these values instead: raw fp32, or a .safetensors file"},
        {"minus", OPTION_TEXT, &minus, "FILE", "minus these: the delta between two checkpoints"},
        {"specs", OPTION_TEXT, &specs, "LIST", "codecs, with commas between them (all kinds)"},
        {"seconds", OPTION_REAL, &b.seconds, "S", "CPU time of each speed (0.3)"},
        {"json", OPTION_TEXT, &json, "FILE", "write the rows there too"},
    };
    struct options options = {.program = "bench_codec",
                              .usage = "[options]",
                              .about = "Bytes, error and speed of the codecs.",
                              .specs = table,
                              .n_specs = sizeof table / sizeof *table};
    enum status status = options_parse(&options, argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_codec", &err);
    if (!params || params > 1 << 28) die("--params: 1 to 2^28");
    status = file ? codec_input_file(&b.in, file, minus, &err) : codec_input_noise(&b.in, (size_t)params, &err);
    if (status != STATUS_OK) die(err.msg);
    if (b.in.n > 1 << 28) die("at most 2^28 values");
    b.cap = b.in.n * sizeof(float) + b.in.n / 16 + 1024;
    b.packed = mem_alloc(1, b.cap);
    b.copy = mem_alloc(b.in.n, sizeof(float));
    b.rows = json_array();
    if (!b.packed || !b.copy || !b.rows) die("no memory");
    printf("%zu values: %s%s%s\n\n%-22s %9s %9s %9s %9s %9s\n", b.in.n, file ? file : "normal noise",
           minus ? " - " : "", minus ? minus : "", "", "bits", "bound", "error", "enc GB/s", "merge");
    b.memcpy_gbps = measure_memcpy(&b);
    b.lz4 = measure_peer(&b, (struct packer){lz4_pack, lz4_unpack});
    b.zstd = measure_zstd(&b);
    print_peers(&b);
    bench_specs(&b, specs, file ? file : "normal noise");
    json_t *out = json_pack("{s:s,s:o,s:o}", "name", "codec", "machine", machine(), "rows", b.rows);
    if (json && (!out || json_dump_file(out, json, JSON_INDENT(2) | JSON_REAL_PRECISION(6))))
        die("cannot write the rows");
    json_decref(out);
    mem_free(b.packed);
    mem_free(b.copy);
    codec_input_finish(&b.in);
    return 0;
}
