#include "tests/lib/net/stub_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/codec_choice.h"
#include "compress/codec.h"
#include "worker/model/model.h"

enum { NOISE = 1 << 20 };

void stub_die(const char *what)
{
    fprintf(stderr, "stub workers: %s\n", what);
    exit(1);
}

/* The delta of one fragment: noise, repeated. */
static void make_delta(const struct stub_model *model, struct stub_delta *d, uint32_t i, const float *noise)
{
    const struct fragment *frag = &model->layout.fragments[i];
    struct codec *codec;
    bool mean = layout_is_mean(&model->layout, i);
    if (codec_create_for_fragment(&codec, config_up_spec(&model->config, mean), &model->layout, i, NULL))
        stub_die("cannot make the codec");
    float *x = mem_alloc(frag->count, sizeof *x);
    uint8_t *payload = mem_alloc(1, codec_bound(codec));
    if (!x || !payload) stub_die("no memory for the deltas");
    double squares = 0;
    for (uint64_t at = 0; at < frag->count; at++) {
        x[at] = noise[at % NOISE];
        squares += (double)x[at] * x[at];
    }
    size_t size;
    if (codec_encode(codec, x, payload, codec_bound(codec), &size, NULL)) stub_die("cannot encode the deltas");
    mem_free(x);
    d->payload = mem_resize(payload, codec_bound(codec), size);
    if (!d->payload) stub_die("no memory for the deltas");
    d->size = size;
    d->crc = crc32c(0, d->payload, size);
    d->form = config_delta_replaces(&model->config, mean) ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
    d->norm = (float)sqrt(squares);
    codec_destroy(codec);
}

uint64_t stub_model_bytes(const struct stub_model *model, uint32_t variant)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->layout.n_fragments; i++) bytes += model->deltas[variant][i].size;
    return bytes;
}

static void make_deltas(struct stub_model *model)
{
    float *noise = mem_alloc(NOISE, sizeof *noise);
    if (!noise) stub_die("no memory");
    for (uint64_t total = 0; model->variants < STUB_VARIANTS_MAX && model->variants < model->workers;) {
        uint32_t v = model->variants++;
        rng_normal_fill(1 + v, RNG_TEST, 0, 1e-4f, noise, NOISE);
        for (uint32_t i = 0; i < model->layout.n_fragments; i++) make_delta(model, &model->deltas[v][i], i, noise);
        total += stub_model_bytes(model, v);
        if (total + stub_model_bytes(model, v) > STUB_VARIANTS_BYTES) break;
    }
    mem_free(noise);
}

static void make(struct stub_model *model, const struct msg_config *m)
{
    struct err err = {0};
    struct config *c = &model->config;
    config_defaults(c, &model->sources);
    if (config_parse(c, &model->sources, m->text, strlen(m->text), "configuration of the run", CONFIG_COORDINATOR,
                     &err) ||
        config_resolve(c, &model->sources, &err))
        stub_die(err.msg);
    const struct model_family *family = model_family_find(c->model.family);
    if (!family || config_up_mixed(c)) stub_die("this run needs workers that train");
    struct model_config shape = model_config_of(c);
    layout_init(&model->layout);
    if (family->layout(&shape, &model->layout, &err) || model_split_fragments(c, &model->layout, &err) ||
        family->config_json(&shape, model->text, sizeof model->text))
        stub_die(err.msg);
    model->layout_size = layout_encoded_size(&model->layout);
    model->layout_bytes = mem_alloc(1, model->layout_size);
    if (!model->layout_bytes) stub_die("no memory");
    struct writer w = writer_of(model->layout_bytes, model->layout_size);
    layout_encode(&model->layout, &w);
    make_deltas(model);
    model->rounds = (c->train.max_steps + c->train.sync_every - 1) / c->train.sync_every;
    model->made = true;
}

void stub_model_make(struct stub_model *model, const struct msg_config *m)
{
    pthread_mutex_lock(&model->lock);
    if (!model->made) make(model, m);
    pthread_mutex_unlock(&model->lock);
}

void stub_model_finish(struct stub_model *model)
{
    for (uint32_t v = 0; v < model->variants; v++)
        for (uint32_t i = 0; i < model->layout.n_fragments; i++) mem_free(model->deltas[v][i].payload);
    mem_free(model->layout_bytes);
    layout_finish(&model->layout);
}
