/* Writes the binary seed inputs: make_corpus tests/golden/protocol_v3 FOLDER.
 * File names describe the contents; the output is deterministic. The text seeds (config) are plain files in
 * tests/fuzz/corpus. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/bytes.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "tests/fuzz/codec_specs.h"
#include "tests/fuzz/make_corpus.h"

static const char *root;

void corpus_die(const char *what)
{
    fprintf(stderr, "make_corpus: %s\n", what);
    exit(1);
}

void corpus_put(const char *fuzzer, const char *name, const void *head, size_t head_size, const void *data, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, fuzzer);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", root, fuzzer, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(head, 1, head_size, file) != head_size || fwrite(data, 1, size, file) != size || fclose(file))
        corpus_die(path);
}

static void put(const char *fuzzer, const char *name, const void *data, size_t size)
{
    corpus_put(fuzzer, name, "", 0, data, size);
}

/* Writes selector and count as fuzz_codec.c reads them, then a payload or floats. */
static void make_codec(void)
{
    uint8_t input[2500];
    static float x[CODEC_SPECS_LARGE];
    char name[64];
    for (uint8_t i = 0; i < sizeof codec_specs / sizeof *codec_specs; i++) {
        bool topk = !strncmp(codec_specs[i], "topk", 4), large = topk || strstr(codec_specs[i], "huff");
        size_t n = i == CODEC_SPECS_LARGE_AT ? CODEC_SPECS_LARGE : large ? 500 : i & 1 ? 33 : 100, size;
        struct codec_span spans[2];
        size_t n_spans = codec_specs_spans(n, spans);
        struct codec *codec;
        if (codec_create(&codec, codec_specs[i], spans, n_spans, NULL) != STATUS_OK) corpus_die(codec_specs[i]);
        rng_normal_fill(i, RNG_TEST, 0, 0.01f, x, n);
        for (size_t k = 0; k < n; k++)
            if (k % 3 && !(topk && i & 1)) x[k] = 0; /* zeros for lz4, and fewer values than topk may send */
        input[0] = i;
        input[1] = n == 33 ? 7 : n == 100 ? 9 : 13;
        if (codec_encode(codec, x, input + 2, sizeof input - 2, &size, NULL) != STATUS_OK) corpus_die(codec_specs[i]);
        snprintf(name, sizeof name, "payload-%u", i);
        put("codec", name, input, 2 + size);
        input[0] = 0x40 | i;
        n = n > 500 ? 500 : n; /* the rest is zeros */
        memcpy(input + 2, x, n * sizeof *x);
        snprintf(name, sizeof name, "floats-%u", i);
        put("codec", name, input, 2 + n * sizeof *x);
        codec_destroy(codec);
    }
    static const char *const texts[] = {"int8:1024+lz4", "bf16+lz4+lz4+lz4",      "fp32:1",         "int8:",        "+",
                                        "lz4",           "topk:64/4096+2bit+lz4", "2bit:1024+huff", "int4+lz4+huff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        input[0] = 0xc0;
        input[1] = 7;
        memcpy(input + 2, texts[i], strlen(texts[i]));
        snprintf(name, sizeof name, "spec-%zu", i);
        put("codec", name, input, 2 + strlen(texts[i]));
    }
}

static void make_tokens(void)
{
    static uint8_t input[4096];
    static const struct {
        const char *name;
        uint32_t magic, version, count, width, extra;
    } shards[] = {{"u16", 20240520, 1, 40, 2, 0},    {"u32", 20240801, 7, 20, 4, 0},
                  {"empty", 20240520, 1, 0, 2, 0},   {"one", 20240520, 1, 1, 2, 0},
                  {"short", 20240520, 1, 9, 2, 1},   {"version", 20240520, 7, 2, 2, 0},
                  {"magic", 0x46554747, 3, 2, 2, 0}, {"negative", 20240520, 1, 0xffffffff, 2, 0}};
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++) {
        struct writer w = writer_of(input, sizeof input);
        memset(input, 0, sizeof input);
        put_u32(&w, shards[i].magic);
        put_u32(&w, shards[i].version);
        put_u32(&w, shards[i].count);
        w.pos = 1024;
        for (uint32_t k = 0; k < shards[i].count && k < 100; k++) {
            put_u16(&w, (uint16_t)(k * 997));
            if (shards[i].width == 4) put_u16(&w, (uint16_t)k);
        }
        put("tokens", shards[i].name, input, w.pos - shards[i].extra);
    }
    put("tokens", "header-only", input, 12);
}

static void make_safetensors(void)
{
    static const struct {
        const char *name, *json;
        uint32_t bytes;
    } files[] = {
        {"two",
         "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
         "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]},\"__metadata__\":{\"format\":\"pt\"}}",
         32},
        {"f16", "{\"w\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[0,10]}}", 10},
        {"scalar", "{\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ", 4},
        {"zero", "{\"z\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0},
        {"f4", "{\"q\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[0,3]}}", 3},
        {"none", "{}", 0},
        {"hole", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3},
        {"twice",
         "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2},
        {"overflow", "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0},
        {"escape", "{\"\\u00e9\\n\":{\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"not-json", "{\"a\":", 0},
    };
    uint8_t input[1024];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct writer w = writer_of(input, sizeof input);
        put_u64(&w, strlen(files[i].json));
        put_bytes(&w, files[i].json, strlen(files[i].json));
        for (uint32_t k = 0; k < files[i].bytes; k++) put_u8(&w, (uint8_t)(k * 37));
        put("safetensors", files[i].name, input, w.pos);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) corpus_die("usage: make_corpus GOLDEN FOLDER");
    root = argv[2];
    mkdir(root, 0777);
    make_codec();
    make_tokens();
    make_safetensors();
    corpus_make_wire(argv[1]);
    corpus_make_journal();
    if (mem_live_bytes()) corpus_die("memory is left");
    return 0;
}
