/* Values that follow from other keys: presets, methods, cross checks. Every file in configs/ must be valid. */
#include <ctype.h>
#include <ftw.h>

#include "common/base/log.h"
#include "common/config/codec_choice.h"
#include "common/config/config.h"
#include "common/config/config_keys.h"
#include "tests/lib/test.h"

static struct config config;
static struct config_sources sources;
static struct err err;

static enum status parse(const char *text)
{
    config_defaults(&config, &sources);
    return config_parse(&config, &sources, text, strlen(text), "a.yaml", CONFIG_FILE, &err);
}

/* Set flags on top of the defaults, then resolve. */
static enum status resolve(const char *const *flags)
{
    config_defaults(&config, &sources);
    for (; *flags; flags++) assert_int_equal(config_set(&config, &sources, *flags, CONFIG_FLAG, &err), STATUS_OK);
    return config_resolve(&config, &sources, &err);
}
#define RESOLVE(...) resolve((const char *const[]){__VA_ARGS__, NULL})

static uint8_t source_of(size_t offset)
{
    return sources.of[config_key_at(offset)];
}
#define SOURCE(field) source_of(offsetof(struct config, field))

static void assert_message(const char *part)
{
    if (!strstr(err.msg, part)) fail_msg("\"%s\" does not contain \"%s\"", err.msg, part);
}

TEST(test_preset_sets_model_keys)
{
    assert_int_equal(RESOLVE("model.preset=d12"), STATUS_OK);
    assert_int_equal(config.model.n_layer, 12);
    assert_int_equal(config.model.n_head, 12);
    assert_int_equal(config.model.n_embd, 768);
    assert_int_equal(config.model.block_size, 128);
    assert_int_equal(SOURCE(model.n_embd), CONFIG_PRESET);
    assert_int_equal(RESOLVE("model.preset=d12", "model.n_layer=3"), STATUS_OK);
    assert_int_equal(config.model.n_layer, 3); /* set by the user */
    assert_int_equal(config.model.n_embd, 768);
    assert_int_equal(RESOLVE("model.preset=gpt2"), STATUS_OK);
    assert_int_equal(config.model.vocab_size, 50257);
    assert_int_equal(config.model.block_size, 1024);
    assert_int_equal(config_resolve(&config, &sources, &err), STATUS_OK); /* resolving again changes nothing */
    assert_int_equal(config.model.n_layer, 12);
    assert_int_equal(RESOLVE("model.preset=d2"), STATUS_OK);
    assert_int_equal(RESOLVE("model.preset=d48"), STATUS_OK);
    static const char *const bad[] = {"d1", "d49", "d012", "d", "dx", "d2x", "d-2", "gpt3", "d100"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "model.preset=%s", bad[i]);
        assert_int_equal(RESOLVE(flag), STATUS_INVALID);
        assert_message("allowed: d2 to d48, gpt2, llama-1b");
    }
}

/* A worker that loads the shared text has the same configuration. */
static void check_worker_agrees(void)
{
    static char text[CONFIG_TEXT_MAX];
    struct config worker;
    struct config_sources worker_sources;
    size_t n = config_shared_text(&config, text, sizeof text);
    assert_true(n > 0);
    config_defaults(&worker, &worker_sources);
    assert_int_equal(config_parse(&worker, &worker_sources, text, n, "text", CONFIG_COORDINATOR, &err), STATUS_OK);
    assert_int_equal(config_resolve(&worker, &worker_sources, &err), STATUS_OK);
    assert_int_equal(config_run_hash(&worker), config_run_hash(&config));
}

/* model.family external: the model section is not checked, and ddp is refused with the reason. */
TEST(test_external_needs_no_model)
{
    assert_int_equal(RESOLVE("model.family=external", "model.n_head=3", "model.n_embd=128", "model.preset=nonsense",
                             "train.eval_tokens=1", "model.block_size=99", "inner.moments=bf16", "inner.optimizer=sgd",
                             "model.ffn=5"),
                     STATUS_OK);
    assert_true(config_is_external(&config));
    check_worker_agrees();
    assert_int_equal(RESOLVE("model.family=external", "train.method=ddp"), STATUS_INVALID);
    assert_message("train.method: ddp does not go with model.family external: its optimizer runs at the coordinator");
    assert_int_equal(RESOLVE("model.family=external", "model.init_from="), STATUS_INVALID);
    assert_message("model.init_from: is empty");
    assert_int_equal(RESOLVE("model.family=gpt2"), STATUS_OK);
    assert_false(config_is_external(&config));
}

/* A key of one family may stand at its default with the other family; any other value is refused. */
TEST(test_keys_of_other_family_are_refused)
{
    assert_int_equal(RESOLVE("model.preset=d12"), STATUS_OK);
    check_worker_agrees();
    assert_int_equal(RESOLVE("model.family=llama", "model.n_head=4", "model.n_embd=128"), STATUS_OK);
    assert_int_equal(config.model.n_kv_head, 4); /* as many as heads */
    assert_int_equal(config.model.ffn, 384);     /* 341.3, up to a multiple of 64 */
    assert_int_equal(SOURCE(model.ffn), CONFIG_PRESET);
    assert_true(config.model.rope_theta == 10000 && config.model.norm_eps == 1e-5);
    assert_int_equal(config.model.tie_embeddings, CHOICE_ON);
    check_worker_agrees();
    assert_int_equal(RESOLVE("model.preset=llama-8b", "model.tie_embeddings=on"), STATUS_OK);
    check_worker_agrees(); /* a user's value overrides the preset, also at the default */
    assert_int_equal(RESOLVE("model.preset=llama-1b"), STATUS_OK);
    assert_string_equal(config.model.family, "llama");
    assert_true(config.model.n_layer == 16 && config.model.n_embd == 2048 && config.model.n_head == 32);
    assert_true(config.model.n_kv_head == 8 && config.model.ffn == 8192 && config.model.vocab_size == 128256);
    assert_true(config.model.rope_theta == 500000);
    assert_int_equal(RESOLVE("model.preset=llama-8b", "model.ffn=1024"), STATUS_OK);
    assert_int_equal(config.model.ffn, 1024);
    assert_int_equal(config.model.tie_embeddings, CHOICE_OFF);
    assert_int_equal(RESOLVE("model.preset=d2", "model.family=llama"), STATUS_OK);
    assert_int_equal(RESOLVE("model.n_kv_head=0"), STATUS_OK); /* a value from a run folder gives no warning */
    assert_int_equal(RESOLVE("model.family=gpt2", "model.preset=llama-1b"), STATUS_INVALID);
    assert_message("model.preset: llama-1b is for model.family llama, not gpt2");
    static const char *const foreign[] = {
        "n_kv_head=2",       "ffn=512", "rope_theta=500000", "norm_eps=0.001", "rope_scaling=llama3:8:1:4:8192",
        "tie_embeddings=off"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "model.%s", foreign[i]);
        assert_int_equal(RESOLVE(flag), STATUS_INVALID);
        assert_message("is for model.family llama: remove it for gpt2");
    }
    assert_int_equal(RESOLVE("model.family=llama", "model.n_head=4", "model.n_kv_head=3"), STATUS_INVALID);
    assert_message("model.n_kv_head: 3 does not divide model.n_head = 4");
    assert_int_equal(RESOLVE("model.preset=llama-1b", "model.rope_scaling=llama3:32:1:4:8192"), STATUS_OK);
    static const char *const scalings[] = {"",
                                           "llama3",
                                           "llama3:32:1:4",
                                           "llama3:32:1:4:8192x",
                                           "llama3:32:4:1:8192",
                                           "llama3:0:1:4:8192",
                                           "yarn:2",
                                           "llama3:nan:1:4:8192"};
    for (size_t i = 0; i < sizeof scalings / sizeof *scalings; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "model.rope_scaling=%s", scalings[i]);
        assert_int_equal(RESOLVE("model.preset=llama-1b", flag), STATUS_INVALID);
        assert_message("model.rope_scaling: ");
    }
    assert_int_equal(RESOLVE("model.family=llama", "model.n_head=4", "model.n_embd=20"), STATUS_INVALID);
    assert_message("heads of 5 columns");
}

static void assert_outer(enum optimizer optimizer, double learning_rate, double momentum)
{
    assert_int_equal(config.outer.optimizer, optimizer);
    assert_true(config.outer.learning_rate == learning_rate);
    assert_true(config.outer.momentum == momentum);
}

/* outer.state auto: bf16 where a loss was measured, with a residual that makes it worth it. */
TEST(test_outer_state_follows_method_and_codec)
{
    static const struct {
        const char *settings[4];
        enum outer_form state;
    } cases[] = {
        {{"train.method=diloco"}, OUTER_BF16},
        {{"train.method=diloco", "outer.optimizer=sgd", "codec.up=topk:64/4096", "codec.down=union"}, OUTER_BF16},
        {{"train.method=diloco", "codec.down=fp32"}, OUTER_FP32},
        {{"train.method=diloco", "codec.down=fp32+lz4"}, OUTER_FP32},
        {{"train.method=diloco", "outer.optimizer=sgd", "codec.down=relay"}, OUTER_FP32},
        {{"train.method=diloco", "outer.state=fp32"}, OUTER_FP32},
        {{"train.method=diloco", "codec.down=fp32", "outer.state=bf16"}, OUTER_BF16},
        {{"train.method=local-sgd"}, OUTER_FP32},
        {{"train.method=streaming"}, OUTER_FP32},
        {{"train.method=async"}, OUTER_FP32},
        {{"train.method=async", "outer.state=bf16"}, OUTER_BF16},
        {{"train.method=ddp"}, OUTER_FP32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const *s = cases[i].settings;
        if (RESOLVE(s[0], s[1] ? s[1] : s[0], s[2] ? s[2] : s[0], s[3] ? s[3] : s[0]) != STATUS_OK)
            fail_msg("case %zu: %s", i, err.msg);
        if (config.outer.state != cases[i].state) fail_msg("case %zu: %d", i, (int)config.outer.state);
    }
    assert_int_equal(RESOLVE("train.method=ddp", "outer.state=bf16"), STATUS_INVALID);
    assert_message("outer.state: does not go with train.method ddp");
}

TEST(test_method_sets_its_defaults)
{
    assert_int_equal(RESOLVE("train.method=diloco"), STATUS_OK);
    assert_outer(OPTIMIZER_NESTEROV, 0.7, 0.9);
    assert_string_equal(config.codec.up, "int8:256");
    assert_int_equal(RESOLVE("train.method=async"), STATUS_OK);
    assert_outer(OPTIMIZER_NESTEROV, 0.7, 0.9);
    assert_int_equal(RESOLVE("train.method=local-sgd"), STATUS_OK);
    assert_outer(OPTIMIZER_SGD, 1.0, 0.0);
    assert_int_equal(RESOLVE("train.method=ddp", "inner.learning_rate=0.003"), STATUS_OK);
    assert_outer(OPTIMIZER_ADAMW, 0.003, 0.0);
    assert_int_equal(config.train.sync_every, 1);
    assert_string_equal(config.codec.up, "fp32");
    assert_string_equal(config.codec.down, "fp32");
    assert_int_equal(RESOLVE("train.method=ddp", "inner.optimizer=sgd", "inner.learning_rate=0.1"), STATUS_OK);
    assert_outer(OPTIMIZER_SGD, 0.1, 0.0);
    static const char *const outside_ddp[] = {"local-sgd", "diloco", "async"};
    for (int i = 0; i < 3; i++) {
        char method[32], message[128];
        snprintf(method, sizeof method, "train.method=%s", outside_ddp[i]);
        snprintf(message, sizeof message,
                 "outer.optimizer: adamw diverges with train.method %s: write nesterov or sgd, or train.method ddp",
                 outside_ddp[i]);
        assert_int_equal(RESOLVE(method, "outer.optimizer=adamw"), STATUS_INVALID);
        assert_message(message);
    }
    static const char *const outer[] = {"outer.optimizer=adamw", "outer.learning_rate=0.0015", "outer.grace=auto"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(RESOLVE("train.method=ddp", outer[i]), STATUS_INVALID);
        assert_message("does not go with train.method ddp, whose outer step is the inner optimizer: remove it");
    }
    assert_int_equal(RESOLVE("train.method=ddp", "inner.optimizer=muon"), STATUS_INVALID);
    assert_message("muon does not go with train.method ddp");
    assert_message("nearest: train.method local-sgd, train.sync_every 1");
    assert_int_equal(RESOLVE("train.method=local-sgd", "train.sync_every=1", "inner.optimizer=muon"), STATUS_OK);
    assert_int_equal(RESOLVE("inner.optimizer=muon", "train.devices=cuda:0,1"), STATUS_OK);
    assert_int_equal(config.train.ranks, 2);
    assert_int_equal(RESOLVE("inner.optimizer=muon", "train.devices=cuda:1"), STATUS_OK);
    assert_int_equal(RESOLVE("inner.optimizer=muon", "train.devices=cpu", "train.ranks=2"), STATUS_OK);
    assert_int_equal(RESOLVE("train.method=async", "inner.optimizer=muon"), STATUS_OK);
    assert_int_equal(config.inner.moments, PRECISION_FP32);
    assert_int_equal(RESOLVE("train.method=async", "inner.optimizer=muon", "inner.moments=bf16"), STATUS_OK);
    assert_int_equal(config.inner.moments, PRECISION_BF16);
    assert_int_equal(RESOLVE("train.method=local-sgd", "inner.moments=bf16"), STATUS_OK);
    assert_int_equal(RESOLVE("train.method=ddp", "inner.moments=bf16"), STATUS_INVALID);
    assert_message("inner.moments: bf16 does not go with train.method ddp");
    assert_int_equal(RESOLVE("inner.optimizer=sgd", "inner.moments=bf16"), STATUS_INVALID);
    assert_message("inner.moments: bf16 does not go with inner.optimizer sgd");
    assert_outer(OPTIMIZER_NESTEROV, 0.7, 0.9);
    assert_int_equal(RESOLVE("train.method=ddp", "train.sync_every=30", "codec.up=bf16"), STATUS_OK);
    assert_int_equal(config.train.sync_every, 1); /* ddp fixes this value */
    assert_string_equal(config.codec.up, "bf16"); /* the codec is a choice, set by the same source as the method */
    assert_int_equal(RESOLVE("train.method=diloco", "outer.optimizer=sgd"), STATUS_OK);
    assert_outer(OPTIMIZER_SGD, 1.0, 0.0);
    assert_int_equal(RESOLVE("train.method=diloco", "outer.momentum=0.5"), STATUS_OK);
    assert_outer(OPTIMIZER_NESTEROV, 0.7, 0.5);
    assert_int_equal(RESOLVE("train.max_steps=7"), STATUS_OK); /* a short trial */
    assert_int_equal(config.train.sync_every, 7);
}

/* `--train.method=ddp` on a diloco file must give ddp, not Nesterov at 0.7 on gradients through int8. */
TEST(test_method_overrides_values_of_weaker_source)
{
    const char *text = "train: {method: diloco, sync_every: 30}\nouter: {optimizer: nesterov, learning_rate: 0.6, "
                       "momentum: 0.8}\ncodec: {up: int8:64, down: bf16}\n";
    assert_int_equal(parse(text), STATUS_OK);
    assert_int_equal(config_resolve(&config, &sources, &err), STATUS_OK);
    assert_outer(OPTIMIZER_NESTEROV, 0.6, 0.8); /* same source: the file's value stays */
    assert_int_equal(parse(text), STATUS_OK);
    assert_int_equal(config_set(&config, &sources, "train.method=ddp", CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config_resolve(&config, &sources, &err), STATUS_OK);
    assert_outer(OPTIMIZER_ADAMW, config.inner.learning_rate, 0.0);
    assert_int_equal(config.train.sync_every, 1);
    assert_string_equal(config.codec.up, "fp32");
    assert_int_equal(parse(text), STATUS_OK);
    assert_int_equal(config_set(&config, &sources, "train.method=local-sgd", CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config_set(&config, &sources, "outer.momentum=0.3", CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config_resolve(&config, &sources, &err), STATUS_OK);
    assert_outer(OPTIMIZER_SGD, 1.0, 0.3);
    assert_string_equal(config.codec.up, "int8:64"); /* local-sgd sets no codec */
    assert_int_equal(config.train.sync_every, 30);
}

TEST(test_conflicting_keys_are_refused)
{
    static const struct {
        const char *flag, *message;
    } cases[] = {
        {"model.n_embd=130", "model.n_embd: 130 is not divisible by model.n_head = 4; nearest: 128 or 132"},
        {"model.n_head=200", "nearest: 200"},
        {"model.vocab_size=255", "model.vocab_size: 255 is too small for data.tokenizer bytes; nearest: 256"},
        {"train.ranks=3", "train.batch_size: 16 is not divisible by train.ranks = 3; nearest: 15 or 18"},
        {"train.threads=257", "train.threads: 257 gives 257 per rank (train.ranks = 1), more than 256; nearest: 256"},
        {"train.sync_every=1000", "train.sync_every: 1000 exceeds train.max_steps = 720"},
        {"train.eval_tokens=10", "train.eval_tokens: 10 is less than one block; nearest: 128"},
        {"train.devices=gpu", "train.devices"},
        {"train.devices=cuda:", "train.devices"},
        {"train.devices=cuda:0,", "train.devices"},
        {"train.devices=cuda:,1", "train.devices"},
        {"train.devices=cuda:1,0,01", "train.devices: \"cuda:1,0,01\" lists cuda:1 twice"},
        {"train.devices=cuda:0,1,2", "train.batch_size: 16 is not divisible by train.ranks = 3; nearest: 15 or 18"},
        {"coordinator.quorum=0", "coordinator.quorum: \"0\" is not valid"},
        {"coordinator.quorum=65", "1 to 64"},
        {"coordinator.quorum=101%", "coordinator.quorum"},
        {"coordinator.quorum=0%", "coordinator.quorum"},
        {"coordinator.quorum=%", "coordinator.quorum"},
        {"coordinator.quorum=5x", "coordinator.quorum"},
        {"coordinator.quorum=99999999999", "coordinator.quorum"},
        {"coordinator.quorum=", "coordinator.quorum"},
        {"coordinator.min_workers=65", "coordinator.min_workers: 65 exceeds coordinator.max_workers = 64"},
        {"coordinator.listen=127.0.0.1:5", "tcp://HOST:PORT"},
        {"coordinator.listen=tcp://127.0.0.1", "tcp://HOST:PORT"},
        {"coordinator.listen=tcp://h:0", "tcp://HOST:PORT"},
        {"coordinator.listen=tcp://h:65536", "tcp://HOST:PORT"},
        {"coordinator.listen=tcp://:80", "tcp://HOST:PORT"},
        {"coordinator.listen=ipc://x", "tcp://HOST:PORT"},
        {"run.name=", "run.name"},
        {"run.name=a/b", "run.name: \"a/b\" is not valid"},
        {"run.name=..", "run.name"},
        {"codec.up=", "codec.up: is empty"},
        {"codec.down=", "codec.down: is empty"},
        {"data.tokenizer=", "data.tokenizer"},
        {"model.init_from=", "model.init_from"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (RESOLVE(cases[i].flag) != STATUS_INVALID) fail_msg("accepted: %s", cases[i].flag);
        assert_message(cases[i].message);
    }
    assert_int_equal(RESOLVE("model.vocab_size=255", "data.tokenizer=none"), STATUS_OK);
    static const char *const good[] = {"coordinator.quorum=64",
                                       "coordinator.quorum=1",
                                       "coordinator.quorum=75%",
                                       "coordinator.quorum=100%",
                                       "coordinator.listen=tcp://*:80",
                                       "coordinator.listen=tcp://[::1]:65535",
                                       "coordinator.listen=tcp://h:*",
                                       "train.devices=cuda:0,1,12,3",
                                       "train.devices=cpu",
                                       "train.ranks=16",
                                       "train.precision=bf16",
                                       "train.dynamic_steps=on",
                                       "train.eval_every=0",
                                       "run.name=a.b-c_D9"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (RESOLVE(good[i]) != STATUS_OK) fail_msg("%s: %s", good[i], err.msg);
    assert_int_equal(RESOLVE("train.method=ddp", "train.dynamic_steps=true"), STATUS_INVALID);
    assert_message("train.dynamic_steps");
    assert_int_equal(RESOLVE("train.eval_every=0", "train.eval_tokens=1"), STATUS_OK);
    assert_int_equal(RESOLVE("train.devices=cuda:4,2"), STATUS_OK);
    assert_int_equal(config.train.ranks, 2);
    assert_int_equal(RESOLVE("train.devices=cuda:4,2", "train.ranks=2"), STATUS_OK);
    assert_int_equal(RESOLVE("train.devices=cuda", "train.ranks=2"), STATUS_OK);
    assert_int_equal(RESOLVE("train.devices=cuda:4,2", "train.ranks=1"), STATUS_INVALID);
    assert_message("train.ranks: 1 does not match the 2 GPUs of train.devices, \"cuda:4,2\": remove it or set");
}

TEST(test_step_size_fits_32_bits)
{
    assert_int_equal(RESOLVE("train.batch_size=65536", "train.grad_accum=65535"), STATUS_OK);
    assert_int_equal(RESOLVE("train.batch_size=65536", "train.grad_accum=65536"), STATUS_INVALID);
    assert_message("train.grad_accum: 65536 micro-steps of train.batch_size = 65536 exceed 4294967295 "
                   "sequences per step; nearest: 65535");
}

/* The number of workers is limited by the coordinator's connections and the names in an update. */
TEST(test_worker_count_is_limited)
{
    assert_int_equal(RESOLVE("coordinator.max_workers=2000", "coordinator.min_workers=2000"), STATUS_OK);
    assert_int_equal(config_set(&config, &sources, "coordinator.max_workers=2001", CONFIG_FLAG, &err), STATUS_INVALID);
    assert_message("coordinator.max_workers: \"2001\" is out of range");
    assert_int_equal(config_set(&config, &sources, "coordinator.min_workers=2001", CONFIG_FLAG, &err), STATUS_INVALID);
}

/* Updates without a plain codec, and the merge rule that follows from the codec of the deltas. */
TEST(test_downlink_follows_uplink)
{
    char spec[CODEC_SPEC_MAX];
    assert_int_equal(RESOLVE("codec.up=int8"), STATUS_OK);
    assert_int_equal(config.merge.rule, MERGE_MEAN);
    assert_int_equal(RESOLVE("codec.up=topk:64/4096+sign"), STATUS_OK);
    assert_int_equal(config.merge.rule, MERGE_CONTRIBUTORS);
    assert_int_equal(RESOLVE("codec.up=topk:64/4096+sign", "merge.rule=mean"), STATUS_OK);
    assert_int_equal(config.merge.rule, MERGE_MEAN);
#define SGD "train.method=local-sgd"
    static const struct {
        const char *method, *up, *down, *is, *spec;
    } good[] = {
        {SGD, "topk:64/4096", "relay", "relay", ""},
        {SGD, "fp32", "relay", "relay", ""},
        {SGD, "topk:64/4096", "union", "union", "topk:4095/4096+sign"},
        {SGD, "topk:64/4096", "union+int8", "union+int8", "topk:4095/4096+int8"},
        {SGD, "topk:64/4096", "auto", "auto", "topk:4095/4096+sign"},
        {SGD, "int4:64", "auto", "int4:64", "int4:64"},
        {"train.method=diloco", "int8:64", "auto", "int8:64", "int8:64"},
        {"train.method=ddp", "bf16", "auto", "bf16", "bf16"},
    };
    char up[80], down[80];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(up, sizeof up, "codec.up=%s", good[i].up);
        snprintf(down, sizeof down, "codec.down=%s", good[i].down);
        if (RESOLVE(good[i].method, up, down) != STATUS_OK) fail_msg("%s, %s: %s", up, down, err.msg);
        config_down_spec(&config, false, spec);
        assert_string_equal(config.codec.down, good[i].is);
        assert_string_equal(spec, good[i].spec);
    }
    assert_int_equal(RESOLVE(SGD, "codec.up=fp32", "codec.down=relay"), STATUS_OK);
    assert_true(config_update_replaces(&config, false));
    assert_int_equal(RESOLVE("train.method=async", "outer.optimizer=sgd", "codec.up=topk:9/256", "codec.down=auto"),
                     STATUS_OK);
    assert_string_equal(config.codec.down, "union");
    static const struct {
        const char *method, *up, *down, *message;
    } bad[] = {
        {"train.method=diloco", "topk:64/4096", "relay", "codec.down: relay needs outer.optimizer sgd"},
        {"train.method=diloco", "topk:64/4096", "union", "allowed: a codec such as int8:256 or topk:64/4096"},
        {"train.method=diloco", "topk:64/4096", "auto", "codec.down: auto needs outer.optimizer sgd"},
        {"train.method=async", "topk:64/4096", "relay", "relay does not go with train.method async"},
        {"train.method=ddp", "int8", "relay", "relay does not go with train.method ddp"},
        {SGD, "int8", "union", "union needs a sparse codec.up, not int8"},
        {SGD, "topk:64/4096+lz4", "relay", "does not go with byte stages"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(up, sizeof up, "codec.up=%s", bad[i].up);
        snprintf(down, sizeof down, "codec.down=%s", bad[i].down);
        if (RESOLVE(bad[i].method, up, down) != STATUS_INVALID) fail_msg("accepted: %s, %s", up, down);
        assert_message(bad[i].message);
    }
#undef SGD
}

TEST(test_too_large_model_is_refused)
{
    assert_int_equal(RESOLVE("model.n_embd=65536", "model.n_layer=1024", "model.n_head=1024"), STATUS_INVALID);
    assert_message(
        "model.n_layer: 1024 layers of model.n_embd = 65536 and a vocabulary of 256 make 5.28e+13 parameters; "
        "the maximum is 1.1e+12");
    assert_int_equal(RESOLVE("model.n_embd=65536", "model.n_layer=21", "model.n_head=1024"), STATUS_OK);
    assert_int_equal(RESOLVE("model.n_embd=65536", "model.n_layer=22", "model.n_head=1024"), STATUS_INVALID);
    assert_int_equal(RESOLVE("train.threads=1024", "train.ranks=4"), STATUS_OK);
}

/* A conflict names the source of each value that a user set. */
TEST(test_conflict_names_sources)
{
    static const struct {
        const char *text, *flag, *env, *message;
    } cases[] = {
        {"run: {seed: 1}\ncoordinator:\n  quorum: most\n", NULL, NULL, "a.yaml:3: coordinator.quorum: \"most\" is not"},
        {"model: {n_embd: 32}\n", NULL, "3",
         "a.yaml:1 and environment, ATOLL_MODEL_N_HEAD: model.n_embd: 32 is not divisible"},
        {"run: {seed: 1}\n", NULL, "3", "environment, ATOLL_MODEL_N_HEAD: model.n_embd: 128 is not divisible"},
        {"model:\n  n_embd: 32\n  n_head: 3\n", NULL, NULL, "a.yaml:2 and a.yaml:3: model.n_embd"},
        {"model: {n_embd: 32, n_head: 3}\n", NULL, NULL, "a.yaml:1: model.n_embd"},
        {"model: {n_embd: 32}\n", "--model.n_head=3", NULL, "a.yaml:1 and command line: model.n_embd"},
        {"codec: {up: ''}\n", NULL, NULL, "a.yaml:1: codec.up: is empty"},
        {"model: {n_kv_head: 2}\n", NULL, NULL, "a.yaml:1: model.n_kv_head: 2 is for"},
        {"model: {family: llama}\n", "model.rope_scaling=x", NULL, "command line: model.rope_scaling: "},
        {"train:\n  devices: gpu\n", NULL, NULL, "a.yaml:2: train.devices: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(cases[i].text), STATUS_OK);
        if (cases[i].env) assert_int_equal(setenv("ATOLL_MODEL_N_HEAD", cases[i].env, 1), 0);
        assert_int_equal(config_env(&config, &sources, &err), STATUS_OK);
        assert_int_equal(unsetenv("ATOLL_MODEL_N_HEAD"), 0);
        if (cases[i].flag) assert_int_equal(config_set(&config, &sources, cases[i].flag, CONFIG_FLAG, &err), STATUS_OK);
        assert_int_equal(config_resolve(&config, &sources, &err), STATUS_INVALID);
        if (strncmp(err.msg, cases[i].message, strlen(cases[i].message))) fail_msg("%s", err.msg);
    }
}

static int shipped;

static int check_shipped(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    const char *dot = strrchr(path, '.');
    if (type != FTW_F || !dot || strcmp(dot, ".yaml")) return 0;
    if (!strncmp(path + ftw->base, "compare", 7)) return 0; /* grids: tests/python/compare reads them */
    shipped++;
    config_defaults(&config, &sources);
    if (config_load(&config, &sources, path, &err) != STATUS_OK || config_resolve(&config, &sources, &err) != STATUS_OK)
        fail_msg("%s: %s", path, err.msg);
    return 0;
}

/* A printed value that follows from other keys names those keys. */
TEST(test_printed_value_names_its_source)
{
    static const struct {
        const char *flags[4], *section, *line, *source;
    } cases[] = {
        {{"codec.up=topk:64/4096", "codec.down=relay", "train.method=local-sgd"},
         "merge:",
         "  rule: contributors ",
         "# follows codec.up\n"},
        {{"train.method=local-sgd"}, "outer:", "  optimizer: sgd ", "# follows method local-sgd\n"},
        {{"outer.optimizer=sgd"}, "outer:", "  learning_rate: 1 ", "# follows optimizer sgd\n"},
        {{"outer.optimizer=sgd"}, "outer:", "  momentum: 0 ", "# follows optimizer sgd\n"},
        {{"outer.optimizer=sgd"}, "outer:", "  optimizer: sgd ", "# flag\n"},
        {{"train.method=ddp"}, "outer:", "  learning_rate: 0.0015 ", "# follows inner.learning_rate\n"},
        {{"model.preset=d2"}, "model:", "  n_layer: 2 ", "# preset d2\n"},
        {{"model.family=llama"}, "model:", "  n_kv_head: 4 ", "# follows from the other sizes\n"},
        {{"train.devices=cuda:0,1"}, "train:", "  ranks: 2 ", "# follows train.devices\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char printed[16384] = {0};
        assert_int_equal(resolve(cases[i].flags), STATUS_OK);
        FILE *out = fmemopen(printed, sizeof printed, "w");
        config_print(&config, &sources, out);
        fclose(out);
        const char *section = strstr(printed, cases[i].section),
                   *line = section ? strstr(section, cases[i].line) : NULL;
        const char *source = line ? strchr(line, '#') : NULL;
        if (!source || strncmp(source, cases[i].source, strlen(cases[i].source)))
            fail_msg("%s: %.80s", cases[i].line, line ? line : printed);
    }
}

TEST(test_shipped_files_are_valid)
{
    assert_int_equal(nftw("configs", check_shipped, 8, FTW_PHYS), 0);
    assert_true(shipped >= 4); /* the test runs in the root folder of the tree */
}

static void no_log(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

TEST(test_evaluations_by_rounds_or_steps)
{
    bool by_steps;
    static const char *const bad[] = {"train.eval_every=", "train.eval_every=steps", "train.eval_every=-1",
                                      "train.eval_every=5 rounds", "train.eval_every=4294967296"};
    assert_int_equal(RESOLVE("train.eval_every=40 steps"), STATUS_OK);
    assert_int_equal(config_eval_every(&config, &by_steps), 40);
    assert_true(by_steps);
    assert_int_equal(RESOLVE("train.eval_every=3"), STATUS_OK);
    assert_int_equal(config_eval_every(&config, &by_steps), 3);
    assert_false(by_steps);
    assert_int_equal(RESOLVE("train.eval_every=0 steps", "train.eval_tokens=1"), STATUS_OK);
    assert_int_equal(config_eval_every(&config, &by_steps), 0);
    assert_int_equal(RESOLVE("train.eval_every=9 steps", "train.eval_tokens=1"), STATUS_INVALID);
    assert_message("train.eval_tokens: 1 is less than one block");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(RESOLVE(bad[i]), STATUS_INVALID);
        assert_message("is not valid; allowed: a number of rounds, or of steps such as 100 steps");
    }
}

/* A key of an earlier release is accepted with the value that this release has always; another value is refused with
 * advice, from every source. */
TEST(test_removed_keys_are_refused_with_advice)
{
    struct config before;
    config_defaults(&before, &sources);
    for (int i = 0; i < config_removed_count; i++) {
        const struct config_removed *r = &config_removed[i];
        char text[256], name[128];
        assert_int_equal(config_key_find(r->section, strlen(r->section), r->key, strlen(r->key)), -1);
        for (int wrong = 0; wrong < 2; wrong++) {
            const char *value = wrong ? "7" : r->same;
            enum status want = wrong ? STATUS_INVALID : STATUS_OK;
            snprintf(text, sizeof text, "run: {seed: 1}\n%s:\n  %s: \"%s\"\n", r->section, r->key, value);
            assert_int_equal(parse(text), want);
            if (wrong) assert_message("a.yaml:3: ");
            if (wrong) assert_message(r->advice);
            config_defaults(&config, &sources);
            snprintf(text, sizeof text, "--%s.%s=%s", r->section, r->key, value);
            assert_int_equal(config_set(&config, &sources, text, CONFIG_FLAG, &err), want);
            if (wrong) assert_message("command line: ");
            snprintf(name, sizeof name, "ATOLL_%s_%s", r->section, r->key);
            for (char *p = name; *p; p++) *p = (char)toupper((unsigned char)*p);
            setenv(name, value, 1);
            assert_int_equal(config_env(&config, &sources, &err), want);
            if (wrong) assert_message(name);
            unsetenv(name);
            assert_memory_equal(&config, &before, sizeof config);
        }
    }
    assert_int_equal(parse("coordinator: {readmit_s: 3.6e3}"), STATUS_OK);
    assert_int_equal(parse("coordinator: {readmit_s: {}}"), STATUS_INVALID);
    assert_int_equal(parse("launch: {speed: 1}"), STATUS_INVALID);
    assert_message("unknown key launch.speed");
}

int main(int argc, char **argv)
{
    log_set_sink(no_log, NULL);
    return test_run(argc, argv, NULL, NULL);
}
