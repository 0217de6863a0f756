/* Expected memory of a coordinator and a worker, beside the measured memory: the table of `./run bench memory`.
 *
 * Usage: bench_memory CONFIG SAMPLES JSON MACHINE [--section.key=value ...]
 *
 * - The design names theta, moments, residuals and payloads. Working room (buffers, codec workspace) comes on top.
 * - SAMPLES: one line per process, "NAME ANON_PEAK ANON_STEADY FILE RSS_PEAK" in KiB. A name that begins with
 *   "coordinator" is a coordinator; all other names are workers.
 * - JSON: the output file. MACHINE: JSON text that describes the machine. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "worker/model/decoder.h"
#include "worker/model/model.h"

enum { TERMS_MAX = 16, PROCESSES_MAX = 64 };

struct term {
    const char *what;
    uint64_t bytes;
    bool design; /* part of the design; false: working room */
};

struct budget {
    struct term terms[TERMS_MAX];
    size_t n;
};

struct sizes {
    uint64_t params, largest;                     /* floats */
    uint64_t up, down;                            /* bounds of the payloads, summed over the fragments, bytes */
    uint64_t up_max, down_max;                    /* largest bound of one fragment, bytes */
    uint64_t codecs;                              /* workspace of both codecs of all fragments, bytes */
    uint64_t model;                               /* activations, logits, packing buffers, bytes */
    uint64_t optimizer_vectors;                   /* state vectors of the outer optimizer */
    bool up_feedback, down_feedback, async, half; /* half: outer.state bf16 */
};

struct sample {
    char name[64];
    uint64_t anon_peak, anon_steady, file, rss_peak; /* bytes */
};

static enum status measure_model(struct sizes *s, const struct config *c, struct err *err)
{
    const struct model_family *family = model_family_find(c->model.family);
    struct model_config shape = model_config_of(c);
    struct device *dev;
    struct model *model;
    size_t before = mem_live_bytes();
    TRY(device_open("cpu", (int)c->train.threads, &dev, err));
    TRY(decoder_create(family, &shape, dev, c->train.batch_size, shape.block_size, MODEL_TRAIN | MODEL_LOSS, &model,
                       err));
    s->model = mem_live_bytes() - before;
    decoder_destroy(model);
    dev->ops->close(dev);
    return STATUS_OK;
}

static enum status measure_codecs(struct sizes *s, const struct config *c, const struct layout *layout, struct err *err)
{
    for (uint32_t f = 0; f < layout->n_fragments; f++) {
        struct codec *up, *down;
        size_t before = mem_live_bytes();
        TRY(codec_create_for_fragment(&up, c->codec.up, layout, f, err));
        char spec[CODEC_SPEC_MAX];
        config_down_spec(c, false, spec);
        TRY(codec_create_for_fragment(&down, spec[0] ? spec : c->codec.up, layout, f, err));
        s->codecs += mem_live_bytes() - before;
        s->up += codec_bound(up);
        s->down += codec_bound(down);
        if (codec_bound(up) > s->up_max) s->up_max = codec_bound(up);
        if (codec_bound(down) > s->down_max) s->down_max = codec_bound(down);
        if (layout->fragments[f].count > s->largest) s->largest = layout->fragments[f].count;
        codec_destroy(up);
        codec_destroy(down);
    }
    return STATUS_OK;
}

static enum status measure(struct sizes *s, const struct config *c, struct err *err)
{
    const struct model_family *family = model_family_find(c->model.family);
    struct model_config shape = model_config_of(c);
    struct layout layout;
    layout_init(&layout);
    TRY(family->layout(&shape, &layout, err));
    TRY(model_split_fragments(c, &layout, err));
    s->params = layout.n_params;
    s->async = c->train.method == METHOD_ASYNC;
    s->optimizer_vectors = config_outer_vectors(c);
    s->half = config_outer_half(c);
    s->up_feedback = !codec_spec_lossless(c->codec.up);
    s->down_feedback = !codec_spec_lossless(c->codec.down);
    TRY(measure_codecs(s, c, &layout, err));
    layout_finish(&layout);
    return measure_model(s, c, err);
}

static void add(struct budget *b, bool design, const char *what, uint64_t bytes)
{
    if (bytes) b->terms[b->n++] = (struct term){what, bytes, design};
}

static void coordinator_budget(struct budget *b, const struct sizes *s)
{
    uint64_t vector = (s->half ? 2 : 4) * s->params;
    add(b, true, "theta", 4 * s->params);
    add(b, true, "outer optimizer state", s->optimizer_vectors * vector);
    add(b, true, "downlink residual", s->down_feedback ? vector : 0);
    add(b, true, "accumulator (largest fragment)", 4 * s->largest);
    add(b, false, "one delta or update, encoded", s->up_max > s->down_max ? s->up_max : s->down_max);
    add(b, false, "codec workspace", s->codecs);
}

static void worker_budget(struct budget *b, const struct sizes *s)
{
    uint64_t vector = 4 * s->params;
    add(b, true, "theta, live", vector);
    add(b, true, "gradient", vector);
    add(b, true, "AdamW m", vector);
    add(b, true, "AdamW v", vector);
    add(b, true, "anchor", vector);
    add(b, true, "base of the delta (async)", s->async ? vector : 0);
    add(b, true, "uplink residual", s->up_feedback ? vector : 0);
    add(b, true, "payloads not yet applied", s->up);
    add(b, true, "activations, logits, packing", s->model);
    add(b, false, "updates being received", s->down);
    add(b, false, "delta or update as floats (largest fragment)", 4 * s->largest);
    add(b, false, "codec workspace", s->codecs);
}

static uint64_t total(const struct budget *b, bool design_only)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < b->n; i++) sum += b->terms[i].design || !design_only ? b->terms[i].bytes : 0;
    return sum;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_budget(const char *title, const struct budget *b, uint64_t params)
{
    printf("\nexpected: %s%*sMiB   bytes/param\n", title, (int)(40 - strlen(title)), "");
    for (size_t i = 0; i < b->n; i++)
        printf("  %-46s %8.1f %9.3f%s\n", b->terms[i].what, mib(b->terms[i].bytes),
               (double)b->terms[i].bytes / (double)params, b->terms[i].design ? "" : "   working room");
    printf("  %-46s %8.1f %9.3f\n", "by the design", mib(total(b, true)), (double)total(b, true) / (double)params);
    printf("  %-46s %8.1f %9.3f\n", "design and working room", mib(total(b, false)),
           (double)total(b, false) / (double)params);
}

static void print_sample(const struct sample *x, const struct budget *b, uint64_t params)
{
    double n = (double)params;
    printf("%-12s %9.1f %9.1f %8.1f %9.1f  %8.3f %8.3f  %8.3f %8.3f  %+8.1f\n", x->name, mib(x->anon_peak),
           mib(x->anon_steady), mib(x->file), mib(x->rss_peak), (double)x->anon_peak / n, (double)x->anon_steady / n,
           (double)total(b, true) / n, (double)total(b, false) / n, mib(x->anon_peak) - mib(total(b, false)));
}

static void json_row(FILE *out, const struct sample *x, const struct budget *b, uint64_t params, bool last)
{
    fprintf(out,
            "  {\"process\": \"%s\", \"params\": %" PRIu64 ", \"anon_peak_bytes\": %" PRIu64
            ", \"anon_steady_bytes\": %" PRIu64 ", \"file_bytes\": %" PRIu64 ", \"rss_peak_bytes\": %" PRIu64
            ", \"design_bytes\": %" PRIu64 ", \"expected_bytes\": %" PRIu64 ", \"terms\": {",
            x->name, params, x->anon_peak, x->anon_steady, x->file, x->rss_peak, total(b, true), total(b, false));
    for (size_t i = 0; i < b->n; i++)
        fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", b->terms[i].what, b->terms[i].bytes);
    fprintf(out, "}}%s\n", last ? "" : ",");
}

static size_t read_samples(const char *path, struct sample out[PROCESSES_MAX])
{
    FILE *in = fopen(path, "r");
    size_t n = 0;
    while (in && n < PROCESSES_MAX) {
        struct sample *x = &out[n];
        if (fscanf(in, "%63s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, x->name, &x->anon_peak, &x->anon_steady,
                   &x->file, &x->rss_peak) != 5)
            break;
        uint64_t *kib[] = {&x->anon_peak, &x->anon_steady, &x->file, &x->rss_peak};
        for (int i = 0; i < 4; i++) *kib[i] <<= 10;
        n++;
    }
    if (in) fclose(in);
    return n;
}

static enum status load(struct config *config, int argc, char **argv, struct err *err)
{
    static struct config_sources sources;
    config_defaults(config, &sources);
    TRY(config_load(config, &sources, argv[1], err));
    for (int i = 5; i < argc; i++) TRY(config_set(config, &sources, argv[i] + 2, CONFIG_FLAG, err));
    return config_resolve(config, &sources, err);
}

int main(int argc, char **argv)
{
    static struct config config;
    struct sample samples[PROCESSES_MAX];
    struct sizes sizes = {0};
    struct budget coordinator = {0}, worker = {0};
    struct err err = {0};
    if (argc < 5) return fprintf(stderr, "usage: bench_memory CONFIG SAMPLES JSON MACHINE [--key=value ...]\n"), 2;
    if (load(&config, argc, argv, &err) != STATUS_OK || measure(&sizes, &config, &err) != STATUS_OK)
        return fprintf(stderr, "bench memory: %s\n", err.msg), 1;
    coordinator_budget(&coordinator, &sizes);
    worker_budget(&worker, &sizes);
    size_t n = read_samples(argv[2], samples);
    FILE *out = fopen(argv[3], "w");
    if (!n || !out) return fprintf(stderr, "bench memory: no samples, or cannot write %s\n", argv[3]), 1;
    print_budget("a coordinator", &coordinator, sizes.params);
    print_budget("a worker", &worker, sizes.params);
    printf("\n%-12s %9s %9s %8s %9s  %17s  %17s  %8s\n%-12s %9s %9s %8s %9s  %8s %8s  %8s %8s  %8s\n", "", "anonymous",
           "", "mapped", "RSS", "bytes/param", "expected", "peak minus", "process, MiB", "peak", "steady", "files",
           "peak", "peak", "steady", "design", "+ room", "expected");
    fprintf(out, "{\"name\": \"memory\", \"machine\": %s, \"rows\": [\n", argv[4]);
    for (size_t i = 0; i < n; i++) {
        const struct budget *b = strncmp(samples[i].name, "coordinator", 11) ? &worker : &coordinator;
        print_sample(&samples[i], b, sizes.params);
        json_row(out, &samples[i], b, sizes.params, i + 1 == n);
    }
    fprintf(out, "]}\n");
    printf("The rest has a fixed size: the programs, the coordinator's send queues (at most 64 MiB for all workers)\n"
           "and the worker's message queues (12.5 MiB).\n");
    return fclose(out) ? 1 : 0;
}
