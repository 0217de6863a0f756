/* Text generation: the draw, the sliding context, and the same text from a folder as from memory.
 *
 * With ATOLL_HF_OUT=DIR the test writes and keeps the folder DIR. Beside the model, DIR/logits.bin has u32 T, V; i32
 * tokens[T]; f32 logits[T*V], for tests/golden/check_transformers.py. */
#include <math.h>
#include <unistd.h>

#include "common/base/bytes.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_folder.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/model/decoder.h"
#include "worker/model/generate_text.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

enum { SEQ = 40, VOCAB = 260, TEXT_MAX = 4096 };

static const struct model_config gpt2 = {
    .n_layer = 3, .n_head = 2, .n_embd = 24, .block_size = SEQ, .vocab_size = VOCAB, .bytes = true};
static const struct model_config llama = {.n_layer = 3,
                                          .n_head = 4,
                                          .n_embd = 24,
                                          .block_size = SEQ,
                                          .vocab_size = VOCAB,
                                          .n_kv_head = 2,
                                          .ffn = 40,
                                          .rope_theta = 500,
                                          .norm_eps = 1e-3,
                                          .rope_scaling = {8, 1, 4, 20},
                                          .bytes = true};
static const struct model_family *family;
static struct model_config config;
static struct layout layout;
static float *theta;
static char folder[1024];

struct text {
    char bytes[TEXT_MAX];
    size_t size, calls, calls_max; /* 0: any number */
};

static bool collect(void *ctx, const char *bytes, size_t size)
{
    struct text *text = ctx;
    assert_true(size <= TEXT_MAX - text->size);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->calls++;
    return !text->calls_max || text->calls < text->calls_max;
}

static int set_up(const struct model_family *of, const struct model_config *sizes)
{
    family = of;
    config = *sizes;
    char json[2048];
    struct err err = {0};
    const char *keep = getenv("ATOLL_HF_OUT");
    if (tmpdir_make(NULL) != 0) return -1;
    snprintf(folder, sizeof folder, "%s%s%s", keep ? keep : tmpdir, keep ? "-" : "/", family->name);
    layout_init(&layout);
    if (family->layout(&config, &layout, &err) != STATUS_OK) return -1;
    theta = mem_alloc(layout.n_params, sizeof *theta);
    rng_normal_fill(11, RNG_TEST, 0, 0.3f, theta, layout.n_params); /* biases and norms included */
    for (uint32_t i = 0; i < layout.n_tensors; i++) {
        const struct tensor *t = &layout.tensors[i];
        for (uint64_t k = 0; t->init == LAYOUT_INIT_ONES && k < t->count; k++) theta[t->offset + k] += 1;
    }
    if (family->config_json(&config, json, sizeof json) != STATUS_OK) return -1;
    return hf_folder_write(folder, &layout, theta, json, NULL, &err) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    mem_free(theta);
    layout_finish(&layout);
    return tmpdir_remove(state);
}

static struct text text_of(bool from_folder, const struct generate_options *options)
{
    struct text text = {.size = 0};
    struct err err = {0};
    enum status status = from_folder ? generate_text(folder, options, collect, &text, &err)
                                     : generate_text_theta(family, &config, theta, options, collect, &text, &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    return text;
}

static bool same(const struct text *a, const struct text *b)
{
    return a->size == b->size && !memcmp(a->bytes, b->bytes, a->size);
}

TEST(test_pick_follows_probabilities)
{
    static const float logits[] = {0, 1, -INFINITY, 1}; /* probabilities e^0, e^1, 0, e^1 over their sum */
    double total = 1 + 2 * exp(1);
    assert_int_equal(generate_pick(logits, 4, 0, 0.99), 1); /* the first of equal values */
    assert_int_equal(generate_pick(logits, 4, 1, 0), 0);
    assert_int_equal(generate_pick(logits, 4, 1, 1 / total - 1e-9), 0);
    assert_int_equal(generate_pick(logits, 4, 1, 1 / total + 1e-9), 1);
    assert_int_equal(generate_pick(logits, 4, 1, (1 + exp(1)) / total + 1e-9), 3);
    assert_int_equal(generate_pick(logits, 4, 1, 1 - 1e-16), 3);
    assert_int_equal(generate_pick(logits, 4, 1e-3, 0.001), 1); /* nearly greedy */
}

TEST(test_folder_and_memory_give_same_text)
{
    struct generate_options o = {
        .prompt = "To be, or not", .n_tokens = 60, .temperature = 0.8, .seed = 4, .device = "cpu", .threads = 2};
    struct text a = text_of(true, &o), b = text_of(false, &o), c;
    assert_int_equal(a.calls, 61);
    assert_memory_equal(a.bytes, "To be, or not", 13);
    assert_true(same(&a, &b));
    o.seed = 5;
    c = text_of(false, &o);
    assert_false(same(&a, &c));
    o.n_tokens = 20; /* a shorter text is a prefix of the longer one, for any length of the model instance */
    b = text_of(false, &o);
    assert_memory_equal(b.bytes, c.bytes, b.size);
    o.prompt = "";
    o.n_tokens = 0;
    a = text_of(true, &o);
    assert_int_equal(a.size, 1);
    assert_int_equal(a.bytes[0], '\n');
}

/* Greedy text through growing contexts equals the arg-max of logits at full length. */
TEST(test_greedy_text_matches_logits)
{
    struct device *dev;
    struct model *model;
    struct err err = {0};
    float *logits = mem_alloc(VOCAB, sizeof *logits);
    int32_t window[SEQ] = {'q'};
    struct generate_options o = {.prompt = "q", .n_tokens = SEQ - 1, .device = "cpu"};
    struct text text = text_of(false, &o), want = {.size = 0};
    assert_int_equal(device_open("cpu", 1, &dev, &err), STATUS_OK);
    assert_int_equal(decoder_create(family, &config, dev, 1, SEQ, MODEL_LOGITS, &model, &err), STATUS_OK);
    float *device_theta = dev->ops->alloc(dev, layout.n_params * sizeof *theta);
    int32_t *tokens = dev->ops->alloc(dev, sizeof window);
    dev->ops->upload(dev, device_theta, theta, layout.n_params * sizeof *theta);
    collect(&want, "q", 1);
    for (int t = 0; t + 1 < SEQ; t++) {
        dev->ops->upload(dev, tokens, window, sizeof window);
        assert_int_equal(decoder_logits(model, device_theta, tokens, (size_t)t, 1, logits, &err), STATUS_OK);
        window[t + 1] = (int32_t)generate_pick(logits, VOCAB, 0, 0);
        char piece[16];
        int n = window[t + 1] < 256 ? 1 : snprintf(piece, sizeof piece, "<%d>", window[t + 1]);
        if (window[t + 1] < 256) piece[0] = (char)window[t + 1];
        collect(&want, piece, (size_t)n);
    }
    assert_true(same(&text, &want));
    int changes = 0; /* a model that always returns the same token would prove nothing */
    for (size_t i = 1; i < text.size; i++) changes += text.bytes[i] != text.bytes[i - 1];
    assert_true(changes > SEQ / 4);
    dev->ops->release(dev, device_theta);
    dev->ops->release(dev, tokens);
    decoder_destroy(model);
    device_close(dev);
    mem_free(logits);
}

TEST(test_closed_output_ends_text)
{
    struct generate_options o = {.prompt = "x", .n_tokens = 20, .temperature = 0.8, .device = "cpu"};
    struct err err = {0};
    for (size_t calls = 1; calls <= 3; calls++) { /* the prompt is the first call */
        struct text text = {.calls_max = calls};
        assert_int_equal(generate_text(folder, &o, collect, &text, &err), STATUS_OK);
        assert_int_equal(text.calls, calls);
    }
}

/* The same tokens, as input and output of numbers. */
TEST(test_ids_give_same_tokens)
{
    struct generate_options o = {.prompt = "To", .n_tokens = 20, .device = "cpu"};
    struct text bytes = text_of(true, &o), want = {.size = 0};
    char piece[16];
    o.ids = "84, 111";
    collect(&want, o.ids, strlen(o.ids));
    for (size_t i = 2; i < bytes.size; i++) {
        int token = (unsigned char)bytes.bytes[i], number;
        if (sscanf(bytes.bytes + i, "<%3d>", &number) == 1 && number >= 256) token = number, i += 4;
        collect(&want, piece, (size_t)snprintf(piece, sizeof piece, " %d", token));
    }
    struct text ids = text_of(true, &o);
    assert_true(same(&ids, &want));
    struct err err = {0};
    static const char *const bad[] = {"", " ", "x", "260", "1 -1", "9999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.ids = bad[i];
        assert_int_equal(generate_text(folder, &o, collect, &ids, &err), STATUS_INVALID);
    }
}

/* A model whose tokens are not bytes is refused. */
TEST(test_tokens_other_than_bytes_are_refused)
{
    struct generate_options o = {.prompt = "x", .n_tokens = 1, .device = "cpu"};
    struct text text = {.size = 0};
    struct err err = {0};
    char json[2048], path[1100];
    struct model_config other = config;
    snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    assert_int_equal(file_write(path, "x", 1, &err), STATUS_OK);
    assert_int_equal(generate_text(folder, &o, collect, &text, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "--ids"));
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    for (int bytes = 0; bytes < 2; bytes++) { /* the second restores it */
        other.bytes = bytes;
        assert_int_equal(family->config_json(&other, json, sizeof json), STATUS_OK);
        assert_int_equal(file_write(path, json, strlen(json), &err), STATUS_OK);
        assert_int_equal(generate_text(folder, &o, collect, &text, &err), bytes ? STATUS_OK : STATUS_UNSUPPORTED);
    }
}

TEST(test_invalid_models_are_refused)
{
    struct generate_options o = {.prompt = "x", .n_tokens = 1, .device = "cpu"};
    struct text text = {.size = 0};
    struct err err = {0};
    assert_int_equal(generate_text("/no/such/folder", &o, collect, &text, &err), STATUS_NOTFOUND);
    assert_non_null(strstr(err.msg, "/no/such/folder/config.json"));
    float was = theta[layout.n_params - 1];
    theta[layout.n_params - 1] = NAN;
    assert_int_equal(generate_text_theta(family, &config, theta, &o, collect, &text, &err), STATUS_NONFINITE);
    theta[layout.n_params - 1] = was;
    struct model_config tiny = config;
    tiny.vocab_size = 100;
    assert_int_equal(generate_text_theta(family, &tiny, theta, &o, collect, &text, &err), STATUS_INVALID);
}

TEST(test_logits_are_written_for_transformers)
{
    if (!getenv("ATOLL_HF_OUT")) skip();
    struct device *dev;
    struct model *model;
    struct err err = {0};
    int32_t tokens[SEQ];
    size_t count = (size_t)SEQ * VOCAB, bytes = 8 + 4 * (SEQ + count);
    float *logits = mem_alloc(count, sizeof *logits);
    uint8_t *out = mem_alloc(1, bytes);
    char path[1100];
    for (uint64_t t = 0; t < SEQ; t++) tokens[t] = (int32_t)(rng_u64(1, RNG_TEST, t) % VOCAB);
    assert_int_equal(device_open("cpu", 1, &dev, &err), STATUS_OK);
    assert_int_equal(decoder_create(family, &config, dev, 1, SEQ, MODEL_LOGITS, &model, &err), STATUS_OK);
    assert_int_equal(decoder_logits(model, theta, tokens, 0, SEQ, logits, &err), STATUS_OK);
    struct writer w = writer_of(out, bytes);
    put_u32(&w, SEQ);
    put_u32(&w, VOCAB);
    for (size_t t = 0; t < SEQ; t++) put_u32(&w, (uint32_t)tokens[t]);
    for (size_t i = 0; i < count; i++) put_f32(&w, logits[i]);
    assert_false(w.bad);
    snprintf(path, sizeof path, "%s/logits.bin", folder);
    assert_int_equal(file_write(path, out, bytes, &err), STATUS_OK);
    decoder_destroy(model);
    device_close(dev);
    mem_free(logits);
    mem_free(out);
}

static int set_up_gpt2(void **state)
{
    (void)state;
    return set_up(&gpt2_family, &gpt2);
}

static int set_up_llama(void **state)
{
    (void)state;
    return set_up(&llama_family, &llama);
}

int main(int argc, char **argv)
{
    int failed = test_run(argc, argv, set_up_gpt2, tear_down);
    return test_run(argc, argv, set_up_llama, tear_down) || failed;
}
