#include "tests/lib/device/recompute_case.h"
#include "tests/lib/test.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/device/device_case.h"
#include "worker/model/decoder.h"

struct outcome {
    float *loss, *grad; /* on the host, two losses end to end */
};

/* Runs two micro-steps with different tokens; the second adds to the gradient. */
static struct outcome run(struct device *dev, const struct model_family *family, const struct model_config *config,
                          size_t batch, size_t seq, unsigned uses, const float *theta, uint64_t n_params)
{
    struct model *model;
    struct err err = {0};
    size_t n = batch * seq, bytes = n_params * sizeof(float);
    struct outcome out = {.loss = mem_alloc(2 * n, sizeof(float)), .grad = mem_alloc(n_params, sizeof(float))};
    if (decoder_create(family, config, dev, batch, seq, uses, &model, &err) != STATUS_OK) fail_msg("%s", err.msg);
    int32_t *tokens = mem_alloc(2 * n, sizeof *tokens);
    float *d_theta = case_put(dev, theta, bytes), *grad = case_put(dev, NULL, bytes);
    float *loss = case_put(dev, NULL, n * sizeof *loss);
    int32_t *d_tokens = case_put(dev, NULL, n * sizeof *tokens), *targets = case_put(dev, NULL, n * sizeof *tokens);
    for (size_t i = 0; i < 2 * n; i++) tokens[i] = (int32_t)(rng_u64(3, RNG_TEST, i) % config->vocab_size);
    for (size_t micro = 0; micro < 2; micro++) {
        dev->ops->upload(dev, d_tokens, tokens + micro * n, n * sizeof *tokens);
        dev->ops->upload(dev, targets, tokens + (1 - micro) * n, n * sizeof *tokens);
        decoder_run(model, d_theta, d_tokens, targets, 0.25f, loss, grad, micro > 0, NULL);
        case_get(dev, out.loss + micro * n, loss, n * sizeof *loss);
    }
    case_get(dev, out.grad, grad, bytes);
    void *pieces[] = {d_theta, grad, loss, d_tokens, targets};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) dev->ops->release(dev, pieces[i]);
    decoder_destroy(model);
    mem_free(tokens);
    return out;
}

void recompute_case(struct device *dev, const struct model_family *family, const struct model_config *config,
                    size_t batch, size_t seq)
{
    struct layout layout;
    struct err err = {0};
    struct outcome all = {0};
    size_t memory = 0;
    layout_init(&layout);
    if (family->layout(config, &layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(layout_split(&layout, 1), STATUS_OK);
    float *theta = mem_alloc(layout.n_params, sizeof *theta);
    rng_normal_fill(3, RNG_TEST, 0, 0.2f, theta, layout.n_params);
    for (enum model_recompute level = MODEL_KEEP_ALL; level <= MODEL_RECOMPUTE_BLOCK; level++) {
        unsigned uses = model_uses(MODEL_TRAIN | MODEL_LOSS, level);
        size_t needs = decoder_memory(family, config, dev->act_bytes, batch, seq, uses);
        struct outcome out = run(dev, family, config, batch, seq, uses, theta, layout.n_params);
        char what[64];
        if (level > MODEL_KEEP_ALL) {
            if (config->n_layer > 1) assert_true(needs < memory);
            snprintf(what, sizeof what, "level %d of %u layers on %.20s", (int)level, config->n_layer, dev->name);
            case_equal(what, out.loss, all.loss, 2 * batch * seq);
            case_equal(what, out.grad, all.grad, layout.n_params);
            mem_free(out.loss);
            mem_free(out.grad);
        } else {
            all = out;
        }
        memory = needs;
    }
    mem_free(all.loss);
    mem_free(all.grad);
    mem_free(theta);
    layout_finish(&layout);
}
