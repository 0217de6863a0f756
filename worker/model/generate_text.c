#include "worker/model/generate_text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "worker/model/decoder.h"

/* There is no key/value cache: every token recomputes the whole context. The model's length is the smallest power of
 * two that holds the text, so short texts are cheap. Padding after the last token cannot change its logits, because
 * attention is causal. */
struct generator {
    const struct model_family *family;
    const struct model_config *config;
    struct device *dev;
    const char *on_cpu; /* as in generate_options */
    bool numbers;       /* tokens are printed as numbers */
    struct model *model;
    size_t seq;      /* length of `model` */
    float *theta;    /* [n_params], device */
    int32_t *window; /* [block_size], host */
    int32_t *tokens; /* [block_size], device */
    int32_t *text;   /* [n_text], prompt and drawn tokens */
    size_t n_text;
    float *logits; /* [vocab_size], host */
};

uint32_t generate_pick(const float *logits, uint32_t n, double temperature, double u)
{
    uint32_t best = 0;
    assert(n > 0);
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    if (!(temperature > 0)) return best;
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += exp((logits[i] - logits[best]) / temperature);
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((logits[i] - logits[best]) / temperature);
        if (sum > u * total) return i;
    }
    return best;
}

static enum status ensure_length(struct generator *g, size_t n, struct err *err)
{
    assert(n > 0 && n <= g->config->block_size);
    if (g->model && n <= g->seq) return STATUS_OK;
    size_t seq = 16;
    while (seq < n) seq *= 2;
    if (seq > g->config->block_size) seq = g->config->block_size;
    decoder_destroy(g->model);
    g->model = NULL;
    g->seq = seq;
    return device_advise(decoder_create(g->family, g->config, g->dev, 1, seq, MODEL_LOGITS, &g->model, err),
                         g->dev->name, g->on_cpu, err);
}

static enum status next_token(struct generator *g, double temperature, double u, int32_t *out, struct err *err)
{
    size_t n = g->n_text < g->config->block_size ? g->n_text : g->config->block_size;
    TRY(ensure_length(g, n, err));
    memset(g->window, 0, g->seq * sizeof *g->window);
    memcpy(g->window, g->text + (g->n_text - n), n * sizeof *g->window);
    g->dev->ops->upload(g->dev, g->tokens, g->window, g->seq * sizeof *g->tokens);
    TRY(decoder_logits(g->model, g->theta, g->tokens, n - 1, 1, g->logits, err));
    for (uint32_t i = 0; i < g->config->vocab_size; i++)
        if (!isfinite(g->logits[i]))
            return err_set(err, STATUS_NONFINITE,
                           "the model's logits are not finite: the checkpoint may come from a diverged run");
    *out = (int32_t)generate_pick(g->logits, g->config->vocab_size, temperature, u);
    return STATUS_OK;
}

static bool emit_token(const struct generator *g, int32_t token, generate_emit_fn emit, void *ctx)
{
    char text[16];
    if (g->numbers) return emit(ctx, text, (size_t)snprintf(text, sizeof text, " %d", token));
    if (token < 256) {
        text[0] = (char)token;
        return emit(ctx, text, 1);
    }
    int n = snprintf(text, sizeof text, "<%d>", token);
    return emit(ctx, text, (size_t)n);
}

static enum status read_prompt(struct generator *g, const char *prompt, struct err *err)
{
    for (const unsigned char *p = (const unsigned char *)prompt; *p; p++) {
        if (*p >= g->config->vocab_size)
            return err_set(err, STATUS_INVALID, "the prompt contains byte %u, but the model's vocabulary has %u tokens",
                           *p, g->config->vocab_size);
        g->text[g->n_text++] = *p;
    }
    return STATUS_OK;
}

/* Reads numbers separated by blanks or commas. */
static enum status read_ids(struct generator *g, const char *ids, struct err *err)
{
    static const char between[] = " ,";
    for (const char *p = ids + strspn(ids, between); *p; p += strspn(p, between)) {
        size_t digits = strspn(p, "0123456789");
        unsigned long id = digits && digits < 10 ? strtoul(p, NULL, 10) : g->config->vocab_size;
        if (id >= g->config->vocab_size)
            return err_set(
                err, STATUS_INVALID,
                "--ids: \"%.20s\" does not start with a token number: give numbers below %u, separated by blanks", p,
                g->config->vocab_size);
        g->text[g->n_text++] = (int32_t)id;
        p += digits;
    }
    g->numbers = true;
    return g->n_text ? STATUS_OK : err_set(err, STATUS_INVALID, "--ids: give at least one token");
}

static enum status set_up(struct generator *g, const float *theta, uint64_t n_params, const char *prompt,
                          const struct generate_options *o, struct err *err)
{
    const char *device = o->device ? o->device : "auto";
    g->on_cpu = o->on_cpu;
    TRY(device_advise(device_open(device, o->threads > 0 ? o->threads : 1, &g->dev, err), device, o->on_cpu, err));
    g->theta = g->dev->ops->alloc(g->dev, n_params * sizeof *g->theta);
    g->tokens = g->dev->ops->alloc(g->dev, g->config->block_size * sizeof *g->tokens);
    g->window = mem_alloc(g->config->block_size, sizeof *g->window);
    g->text = mem_alloc(strlen(prompt) + o->n_tokens, sizeof *g->text);
    g->logits = mem_alloc(g->config->vocab_size, sizeof *g->logits);
    if (!g->theta || !g->tokens || !g->window || !g->text || !g->logits)
        return err_set(err, STATUS_NOMEM, "no memory for a model of %llu parameters on %s",
                       (unsigned long long)n_params, g->dev->name);
    g->dev->ops->upload(g->dev, g->theta, theta, n_params * sizeof *g->theta);
    TRY(g->dev->ops->sync(g->dev, err));
    return o->ids ? read_ids(g, prompt, err) : read_prompt(g, prompt, err);
}

static void tear_down(struct generator *g)
{
    if (g->dev) {
        decoder_destroy(g->model);
        g->dev->ops->release(g->dev, g->theta);
        g->dev->ops->release(g->dev, g->tokens);
        device_close(g->dev);
    }
    mem_free(g->window);
    mem_free(g->text);
    mem_free(g->logits);
}

static enum status draw_all(struct generator *g, const struct generate_options *o, generate_emit_fn emit, void *ctx,
                            struct err *err)
{
    for (uint32_t i = 0; i < o->n_tokens; i++) {
        int32_t token = 0;
        TRY(next_token(g, o->temperature, rng_uniform(o->seed, RNG_SAMPLE, i), &token, err));
        g->text[g->n_text++] = token;
        if (!emit_token(g, token, emit, ctx)) break;
    }
    return STATUS_OK;
}

enum status generate_text_theta(const struct model_family *family, const struct model_config *config,
                                const float *theta, const struct generate_options *options, generate_emit_fn emit,
                                void *ctx, struct err *err)
{
    const char *prompt = options->ids ? options->ids : options->prompt && options->prompt[0] ? options->prompt : "\n";
    struct generator g = {.family = family, .config = config};
    struct layout layout;
    layout_init(&layout);
    enum status status = family->layout(config, &layout, err);
    uint64_t n_params = layout.n_params;
    layout_finish(&layout);
    if (status == STATUS_OK) status = set_up(&g, theta, n_params, prompt, options, err);
    if (status == STATUS_OK && emit(ctx, prompt, strlen(prompt))) status = draw_all(&g, options, emit, ctx, err);
    tear_down(&g);
    return status;
}

enum status generate_text(const char *folder, const struct generate_options *options, generate_emit_fn emit, void *ctx,
                          struct err *err)
{
    struct model_config config;
    struct layout layout;
    TRY(hf_config_load(&config, folder, err));
    const struct model_family *family = model_family_find(config.family);
    assert(family); /* hf_config_load takes no other */
    if (!options->ids && (!config.bytes || hf_files_has_tokenizer(folder)))
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s: the model's tokens are not bytes: use transformers, which loads this folder, or give token "
                       "numbers: --ids '1 2 3'",
                       folder);
    layout_init(&layout);
    float *theta = NULL;
    enum status status = family->layout(&config, &layout, err);
    if (status == STATUS_OK && !(theta = mem_alloc(layout.n_params, sizeof *theta)))
        status = err_set(err, STATUS_NOMEM, "no memory for the parameters of %s", folder);
    if (status == STATUS_OK) status = hf_folder_load(folder, &layout, theta, err);
    if (status == STATUS_OK) status = generate_text_theta(family, &config, theta, options, emit, ctx, err);
    mem_free(theta);
    layout_finish(&layout);
    return status;
}
