/* Groups of blocks with train.stagger: their fragments, and the same model as with blocks in order. */

#include "common/base/mem.h"
#include "common/config/config.h"
#include "gpu/device.h"
#include "tests/lib/test.h"
#include "worker/model/decoder.h"
#include "worker/model/model.h"

enum { BATCH = 2, SEQ = 8, ROWS = BATCH * SEQ, VOCAB = 19 };

static void read_config(struct config *config, const char *const *settings)
{
    static struct config_sources sources;
    struct err err;
    config_defaults(config, &sources);
    for (size_t i = 0; settings[i]; i++)
        assert_int_equal(config_set(config, &sources, settings[i], CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void make_layout(const struct config *config, struct layout *layout)
{
    struct model_config model = model_config_of(config);
    struct err err;
    layout_init(layout);
    assert_int_equal(model_family_find(config->model.family)->layout(&model, layout, &err), STATUS_OK);
    assert_int_equal(model_split_fragments(config, layout, &err), STATUS_OK);
}

/* The first tensors of the fragments. */
TEST(test_fragments_are_strided)
{
    static const struct {
        const char *settings[6], *first[6]; /* NULL-terminated */
    } cases[] = {
        {{"train.method=streaming", "model.n_layer=7", NULL},
         {"wte.weight", "h.0.ln_1.weight", "h.1.ln_1.weight", "h.2.ln_1.weight"}},
        {{"train.method=streaming", "train.fragments=3", NULL}, {"wte.weight", "h.0.ln_1.weight", "h.1.ln_1.weight"}},
        {{"train.method=streaming", "model.n_layer=1", NULL}, {"wte.weight", "h.0.ln_1.weight"}},
        {{"train.method=streaming", "model.family=llama", "model.tie_embeddings=off", "train.fragments=4"},
         {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight",
          "lm_head.weight"}},
        {{"train.method=diloco", "train.fragments=2", NULL}, {"wte.weight", "h.1.mlp.c_proj.bias"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        static struct config config;
        struct layout layout;
        uint32_t n = 0;
        read_config(&config, cases[c].settings);
        make_layout(&config, &layout);
        while (n < 6 && cases[c].first[n]) n++;
        assert_int_equal(layout.n_fragments, n);
        for (uint32_t f = 0; f < n; f++)
            assert_string_equal(layout.tensors[layout.fragments[f].first_tensor].name, cases[c].first[f]);
        layout_finish(&layout);
    }
}

static void run(const struct config *config, const float *theta, float *loss, float *grad)
{
    int32_t tokens[ROWS], targets[ROWS];
    struct device *dev;
    struct model *m;
    struct err err;
    struct model_config model = model_config_of(config);
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = i * 7 % VOCAB;
        targets[i] = (i * 7 + 3) % VOCAB;
    }
    assert_int_equal(device_open("cpu", 1, &dev, &err), STATUS_OK);
    assert_int_equal(decoder_create(model_family_find(config->model.family), &model, dev, BATCH, SEQ,
                                    model_uses(MODEL_TRAIN | MODEL_LOSS, MODEL_KEEP_ALL), &m, &err),
                     STATUS_OK);
    decoder_run(m, theta, tokens, targets, 1.0f / ROWS, loss, grad, false, NULL);
    decoder_destroy(m);
    device_close(dev);
}

/* Copies every tensor to its place in the other layout. */
static float *moved(const struct layout *from, const float *x, const struct layout *to)
{
    float *out = mem_alloc(to->n_params, sizeof *out);
    assert_non_null(out);
    for (uint32_t i = 0; i < from->n_tensors; i++) {
        const struct tensor *a = &from->tensors[i], *b = &to->tensors[layout_find(to, a->name)];
        assert_int_equal(a->count, b->count);
        memcpy(out + b->offset, x + a->offset, a->count * sizeof *out);
    }
    return out;
}

TEST(test_losses_and_gradients_stay)
{
    static const char *const families[] = {"model.family=gpt2", "model.family=llama"};
    for (int f = 0; f < 2; f++) {
        static struct config plain, strided;
        struct layout a, b;
        float loss[2][ROWS];
        const char *settings[] = {
            "train.method=diloco", families[f],           "model.n_layer=5",    "model.n_embd=16",     "model.n_head=2",
            "model.vocab_size=19", "data.tokenizer=none", "model.block_size=8", "model.norm_eps=1e-5", NULL};
        read_config(&plain, settings);
        settings[0] = "train.method=streaming";
        read_config(&strided, settings);
        make_layout(&plain, &a);
        make_layout(&strided, &b);
        float *theta = mem_alloc(a.n_params, sizeof *theta), *grad = mem_alloc(a.n_params, sizeof *grad);
        for (uint32_t i = 0; i < a.n_fragments; i++) layout_fill(&a, i, 3, theta + a.fragments[i].offset);
        float *theta_b = moved(&a, theta, &b), *grad_b = mem_alloc(a.n_params, sizeof *grad_b);
        assert_true(memcmp(theta, theta_b, a.n_params * sizeof *theta) != 0);
        run(&plain, theta, loss[0], grad);
        run(&strided, theta_b, loss[1], grad_b);
        assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
        float *back = moved(&b, grad_b, &a);
        assert_memory_equal(back, grad, a.n_params * sizeof *grad);
        void *all[] = {theta, grad, theta_b, grad_b, back};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
        layout_finish(&a);
        layout_finish(&b);
    }
}

TEST_MAIN(NULL, NULL)
