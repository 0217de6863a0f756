/* atoll codec list: prints the stages of codec specifications. atoll codec test SPEC: measures a codec on noise or on a
 * real delta. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cli/codec_measure.h"
#include "cli/verbs.h"
#include "common/config/options.h"
#include "compress/codec.h"

enum { PARAMS_DEFAULT = 4 << 20, PARAMS_MAX = 1 << 30, SECONDS_MAX = 3600 };

struct choices {
    uint64_t params;
    const char *file, *minus;
    double seconds;
    bool json;
};

static void print_figures(const struct codec_figures *f, size_t n)
{
    printf("codec             %s\n", f->spec);
    printf("values            %zu in %zu bytes\n", n, f->bytes);
    printf("bits_per_param    %.4f\n", f->bits_per_param);
    printf("bound_bits        %.4f   zeroth-order entropy of codes and positions\n", f->bound_bits);
    printf("rel_error         %.4f\n", f->rel_error);
    printf("encode_gbps       %.2f   GB/s of fp32 values on one core\n", f->encode_gbps);
    printf("decode_merge_gbps %.2f\n", f->decode_merge_gbps);
}

static enum status print_json(const struct codec_figures *f, size_t n, struct err *err)
{
    json_t *out =
        json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:f,s:f}", "codec", f->spec, "params", (json_int_t)n, "bytes",
                  (json_int_t)f->bytes, "bits_per_param", f->bits_per_param, "bound_bits", f->bound_bits, "rel_error",
                  f->rel_error, "encode_gbps", f->encode_gbps, "decode_merge_gbps", f->decode_merge_gbps);
    int bad = !out || json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) || putchar('\n') == EOF;
    json_decref(out);
    return bad ? err_set(err, STATUS_IO, "cannot write the results to stdout") : STATUS_OK;
}

static enum status run_test(const char *spec, const struct choices *c, struct err *err)
{
    struct codec_input in = {0};
    struct codec_figures figures;
    TRY(codec_spec_check(spec, err));
    if (c->minus && !c->file)
        return err_set(err, STATUS_INVALID, "--minus %s needs --file: the file to subtract from", c->minus);
    if (!c->params || c->params > PARAMS_MAX)
        return err_set(err, STATUS_INVALID, "--params is %" PRIu64 ": give 1 to %d", c->params, PARAMS_MAX);
    if (!(c->seconds >= 0 && c->seconds <= SECONDS_MAX))
        return err_set(err, STATUS_INVALID, "--seconds is %g: give 0 to %d", c->seconds, SECONDS_MAX);
    TRY(c->file ? codec_input_file(&in, c->file, c->minus, err) : codec_input_noise(&in, (size_t)c->params, err));
    enum status status = codec_measure(spec, &in, CODEC_MEASURE_WORKERS, c->seconds, &figures, err);
    size_t n = in.n;
    codec_input_finish(&in);
    if (status != STATUS_OK) return status;
    if (c->json) return print_json(&figures, n, err);
    print_figures(&figures, n);
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    if (o->n_args == 1 && !strcmp(o->args[0], "list")) return codec_list(stdout), STATUS_OK;
    if (o->n_args == 2 && !strcmp(o->args[0], "test")) return run_test(o->args[1], ctx, err);
    return err_set(err, STATUS_INVALID, "codec %s%s%s: usage: atoll codec %s", o->args[0], o->n_args > 1 ? " " : "",
                   o->n_args > 1 ? o->args[1] : "", o->usage);
}

int cmd_codec(int argc, char **argv)
{
    struct choices c = {.params = PARAMS_DEFAULT, .seconds = 0.3};
    const struct option_spec specs[] = {
        {"params", OPTION_COUNT, &c.params, "N", "measure on N values of normal noise (default 4194304)"},
        {"file", OPTION_TEXT, &c.file, "FILE", "measure on this file: raw fp32, or .safetensors"},
        {"minus", OPTION_TEXT, &c.minus, "FILE", "subtract this file first: gives the delta of two checkpoints"},
        {"seconds", OPTION_REAL, &c.seconds, "S", "CPU time of each speed measurement (default 0.3)"},
        {"json", OPTION_FLAG, &c.json, NULL, "print JSON"},
    };
    struct options o = {
        .program = "atoll codec",
        .usage = "list | test SPEC [options]",
        .about =
            "list: the stages of codec specifications such as int8:256+lz4.\n"
            "test: measure SPEC: bits per value, zeroth-order entropy of codes and positions (a lower bound unless\n"
            "zeros are clustered), relative error, and GB/s per core of fp32 values when encoding and when merging.",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run, &c);
}
