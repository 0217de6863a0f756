/* The training step.
 * - Splitting a batch over ranks or micro-steps changes only rounding.
 * - The same step gives the same bits.
 * - A nonfinite gradient changes no state.
 * - A failure of a rank ends in an error, not in a wait.
 * ctest: labels=threads */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"
#include "worker/model/gpt2.h"
#include "worker/replica/replica.h"

enum { N_TOKENS = 1601, BATCH = 4 };

static const struct model_config model = {.n_layer = 2, .n_head = 2, .n_embd = 16, .block_size = 8, .vocab_size = 32};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;

static int set_up(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_TOKENS; i++)
        bytes[2 * i] = (uint8_t)((i % 5 * 7 + rng_u64(1, RNG_TEST, i) % 3) % model.vocab_size);
    layout_init(&layout);
    return gpt2_layout(&model, &layout, NULL) == STATUS_OK && layout_split(&layout, 1) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    layout_finish(&layout);
    return mem_live_bytes() ? -1 : 0;
}

static struct replica_config config_of(uint32_t ranks, uint32_t threads, uint32_t batch, uint32_t accum)
{
    return (struct replica_config){.family = &gpt2_family,
                                   .model = model,
                                   .device = "cpu",
                                   .ranks = ranks,
                                   .threads = threads,
                                   .batch_size = batch,
                                   .grad_accum = accum,
                                   .seed = 5,
                                   .opt = {.kind = OPTIMIZER_ADAMW,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .eps = 1e-8,
                                           .weight_decay = 0.1,
                                           .grad_clip = 1,
                                           .muon_momentum = 0.95,
                                           .muon_steps = 5}};
}

static struct replica *open_replica(const struct replica_config *config)
{
    struct replica *r = NULL;
    struct err err = {0};
    if (replica_create(&r, config, &layout, &data, &err) != STATUS_OK) fail_msg("%s", err.msg);
    float *values = mem_alloc(layout.n_params, sizeof *values);
    layout_fill(&layout, 0, 9, values);
    assert_int_equal(replica_set_params(r, values, NULL), STATUS_OK);
    mem_free(values);
    return r;
}

static double distance(const float *a, const float *b)
{
    double diff = 0, norm = 0;
    for (uint64_t i = 0; i < layout.n_params; i++) {
        diff += pow((double)a[i] - b[i], 2);
        norm += pow(b[i], 2);
    }
    return sqrt(diff / norm);
}

/* Returns the loss sum of samples 10 .. 10 + n, and copies their gradient. */
static double gradient(const struct replica_config *config, size_t n, float *out)
{
    struct replica *r = open_replica(config);
    struct step_result result;
    struct err err = {0};
    const float *grad;
    uint64_t counters[BATCH] = {10, 11, 12, 13};
    if (replica_gradient(r, counters, n, &grad, &result, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(result.tokens, n * model.block_size);
    assert_true(result.grad_norm > 0.01 && isfinite(result.grad_norm));
    memcpy(out, grad, layout.n_params * sizeof *out);
    replica_destroy(r);
    return result.loss_sum;
}

TEST(test_gradient_is_independent_of_split)
{
    static const struct {
        uint32_t ranks, threads, batch, accum;
        size_t n;
    } cuts[] = {{1, 1, 4, 1, 4}, {2, 2, 4, 1, 4}, {4, 3, 4, 1, 4}, {1, 1, 2, 2, 4}, {1, 1, 1, 4, 4}, {2, 2, 2, 2, 4},
                {1, 1, 3, 1, 3}, {1, 1, 4, 1, 3}, {4, 4, 4, 1, 3}, {2, 2, 2, 2, 3}, /* three samples, some rows empty */
                {1, 1, 1, 1, 1}, {4, 2, 4, 1, 1}};
    float *want = mem_alloc(layout.n_params, sizeof *want), *got = mem_alloc(layout.n_params, sizeof *got);
    double want_loss = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct replica_config config = config_of(cuts[i].ranks, cuts[i].threads, cuts[i].batch, cuts[i].accum);
        config.sharded = i % 2; /* ranks with separate memory give the same gradient, too */
        config.bucket = 500;
        bool first = i == 0 || cuts[i].n != cuts[i - 1].n;
        double loss = gradient(&config, cuts[i].n, first ? want : got);
        if (first) {
            want_loss = loss;
            continue;
        }
        if (!(distance(got, want) < 1e-6)) fail_msg("cut %zu: gradient differs by %.3g", i, distance(got, want));
        if (!(fabs(loss - want_loss) < 1e-6 * want_loss)) fail_msg("cut %zu: loss %.9g, %.9g", i, loss, want_loss);
    }
    mem_free(want);
    mem_free(got);
}

/* Trains six steps; returns the hash of parameters and moments. */
static uint64_t train(const struct replica_config *config, double *last_loss)
{
    struct replica *r = open_replica(config);
    struct step_result result;
    struct err err = {0};
    for (uint64_t step = 0; step < 6; step++) {
        uint64_t counters[BATCH];
        for (uint64_t i = 0; i < BATCH; i++) counters[i] = step * BATCH + i;
        if (replica_train_step(r, counters, BATCH, 3e-3, &result, &err) != STATUS_OK) fail_msg("%s", err.msg);
        assert_false(result.skipped);
    }
    *last_loss = result.loss_sum / (double)result.tokens;
    const struct inner_opt *opt = replica_optimizer(r);
    assert_int_equal(opt->steps, 6);
    uint64_t hash = layout_theta_hash(&layout, replica_params(r)) ^ layout_theta_hash(&layout, opt->v) ^
                    3 * layout_theta_hash(&layout, opt->m);
    replica_destroy(r);
    return hash;
}

TEST(test_same_step_gives_same_bits)
{
    double loss, again;
    for (uint32_t cut = 0; cut < 4; cut++) {
        uint32_t ranks = 1 + cut % 2;
        struct replica_config config = config_of(ranks, ranks, BATCH, 1);
        if (cut >= 2) config.opt.kind = OPTIMIZER_MUON;
        uint64_t hash = train(&config, &loss);
        assert_true(train(&config, &again) == hash);
        assert_true(loss == again);
        config.threads = 3 * ranks; /* the result is independent of the number of threads */
        assert_true(train(&config, &again) == hash);
        assert_true(loss < log(model.vocab_size)); /* the loss falls */
    }
}

TEST(test_nonfinite_gradient_changes_nothing)
{
    static const enum optimizer kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_MUON};
    for (int kind = 0; kind < 6; kind++) {
        struct replica_config config = config_of(1 + (uint32_t)kind / 3, 2, BATCH, 1);
        config.opt.kind = kinds[kind % 3];
        struct replica *r = open_replica(&config);
        struct inner_opt *opt = replica_optimizer(r);
        struct step_result result;
        const float *grad;
        uint64_t counters[BATCH] = {0, 1, 2, 3};
        float *before = mem_alloc(layout.n_params, sizeof *before);
        replica_params(r)[layout.n_params - 1] = NAN;
        memcpy(before, replica_params(r), layout.n_params * sizeof *before);
        assert_int_equal(replica_train_step(r, counters, BATCH, 1e-3, &result, NULL), STATUS_OK);
        assert_true(result.skipped);
        assert_false(isfinite(result.grad_norm));
        assert_memory_equal(before, replica_params(r), layout.n_params * sizeof *before);
        assert_int_equal(opt->steps, 0);
        assert_int_equal(opt->skipped, 1);
        const float *m = opt->m, *v = opt->v;
        for (uint64_t i = 0; m && i < layout.n_params; i++) assert_true(m[i] == 0 && v[i] == 0);
        assert_int_equal(replica_gradient(r, counters, BATCH, &grad, &result, NULL), STATUS_NONFINITE);
        layout_fill(&layout, 0, 9, replica_params(r));
        assert_int_equal(replica_train_step(r, counters, BATCH, 1e-3, &result, NULL), STATUS_OK);
        assert_false(result.skipped);
        assert_int_equal(opt->steps, 1);
        mem_free(before);
        replica_destroy(r);
    }
}

/* From the same gradient, 1 to 4 ranks make the same step, bit for bit, with any owners of matrices and any split of
 * the rest. All ranks but the first have empty rows, so that no reduction rounds. */
TEST(test_muon_step_is_independent_of_ranks)
{
    float *want = mem_alloc(layout.n_params, sizeof *want);
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        struct replica_config config = config_of(ranks, 2, BATCH, 1);
        config.opt.kind = OPTIMIZER_MUON;
        struct replica *r = open_replica(&config);
        struct step_result result;
        for (uint64_t step = 0; step < 4; step++)
            assert_int_equal(replica_train_step(r, &step, 1, 1e-2, &result, NULL), STATUS_OK);
        if (ranks == 1) memcpy(want, replica_params(r), layout.n_params * sizeof *want);
        for (uint64_t i = 0; i < layout.n_params; i++)
            if (want[i] != replica_params(r)[i])
                fail_msg("%u ranks: parameter %llu is %a, with one rank %a", ranks, (unsigned long long)i,
                         (double)replica_params(r)[i], (double)want[i]);
        replica_destroy(r);
    }
    mem_free(want);
}

/* One SGD step by hand: decay on matrices only, clipping of the global norm. */
TEST(test_sgd_step_matches_formula)
{
    const double lr = 0.5, wd = 0.1;
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 4) {
        struct replica_config config = config_of(ranks, ranks, BATCH, 1);
        config.opt.kind = OPTIMIZER_SGD;
        config.opt.grad_clip = 0.25;
        struct replica *r = open_replica(&config);
        struct step_result result;
        const float *grad;
        uint64_t counters[BATCH] = {0, 1, 2, 3};
        float *want = mem_alloc(layout.n_params, sizeof *want);
        assert_int_equal(replica_gradient(r, counters, BATCH, &grad, &result, NULL), STATUS_OK);
        assert_true(result.grad_norm > 0.3); /* so that clipping has an effect */
        for (uint32_t i = 0; i < layout.n_tensors; i++) {
            const struct tensor *t = &layout.tensors[i];
            for (uint64_t k = t->offset; k < t->offset + t->count; k++)
                want[k] = (float)(replica_params(r)[k] * (t->ndim >= 2 ? 1 - lr * wd : 1) -
                                  lr * grad[k] * (0.25 / result.grad_norm));
        }
        assert_int_equal(replica_train_step(r, counters, BATCH, lr, &result, NULL), STATUS_OK);
        for (uint64_t k = 0; k < layout.n_params; k++) assert_true(fabsf(replica_params(r)[k] - want[k]) < 1e-6f);
        mem_free(want);
        replica_destroy(r);
    }
}

TEST(test_evaluation_is_independent_of_split)
{
    uint64_t windows = (N_TOKENS - 1) / model.block_size, tokens, part_tokens;
    double want = 0, got, part, sums[8];
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct replica_config config = config_of(ranks, 2, BATCH, 1);
        config.eval_only = ranks == 2;
        struct replica *r = open_replica(&config);
        struct err err = {0};
        assert_int_equal(replica_eval(r, &data, 0, UINT64_MAX, &got, &tokens, NULL, &err), STATUS_OK);
        assert_int_equal(tokens, windows * model.block_size);
        if (ranks == 1) want = got;
        assert_true(fabs(got - want) < 1e-6 * want);
        assert_true(got / (double)tokens > 2 && got / (double)tokens < 5); /* untrained: about log(32) = 3.47 */
        double sum = 0;
        for (uint64_t first = 0; first < windows; first += 37) {
            assert_int_equal(replica_eval(r, &data, first, 37, &part, &part_tokens, NULL, &err), STATUS_OK);
            sum += part;
            tokens -= part_tokens;
        }
        assert_int_equal(tokens, 0);
        assert_true(fabs(sum - want) < 1e-6 * want);
        assert_int_equal(replica_eval(r, &data, 0, 2 * BATCH + 1, &part, &part_tokens, sums, &err), STATUS_OK);
        assert_true(part == sums[0] + sums[1] + sums[2] && sums[2] > 0 && sums[2] < sums[0]);
        assert_int_equal(replica_eval(r, &data, windows, 5, &part, &part_tokens, NULL, &err), STATUS_OK);
        assert_true(part == 0 && part_tokens == 0);
        replica_destroy(r);
    }
}

TEST(test_invalid_settings_are_refused)
{
    struct replica *r;
    struct step_result result;
    struct err err = {0};
    uint64_t counters[2 * BATCH] = {0};
    struct replica_config config = config_of(2, 2, 5, 1);
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "use 4"));
    config = config_of(0, 1, 1, 1);
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_INVALID);
    config = config_of(1, 1, 1, 0);
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_INVALID);
    config = config_of(1, 1, BATCH, 1);
    config.opt.kind = OPTIMIZER_NESTEROV;
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_INVALID);
    config = config_of(1, 1, BATCH, 1);
    r = open_replica(&config);
    assert_int_equal(replica_train_step(r, counters, 2 * BATCH, 1e-3, &result, &err), STATUS_INVALID);
    assert_int_equal(replica_train_step(r, counters, 0, 1e-3, &result, &err), STATUS_INVALID);
    replica_destroy(r);
}

/* A token outside the vocabulary reaches one of two ranks; the other must not wait without end. */
TEST(test_failure_of_one_rank_ends_step)
{
    struct replica_config config = config_of(2, 2, BATCH, 1);
    struct replica *r = open_replica(&config);
    struct step_result result;
    struct err err = {0};
    uint64_t counters[BATCH], window = 100;
    for (uint64_t k = 0, n = 0; n < BATCH; k++) /* the invalid window comes last: rank 1 gets it */
        if (rng_permute(5, 0, k, 200) != window) counters[n++] = k;
    for (uint64_t k = 0; k < 200; k++)
        if (rng_permute(5, 0, k, 200) == window) counters[BATCH - 1] = k;
    size_t at = (size_t)(window * model.block_size + 3) * 2;
    uint8_t good = bytes[at];
    bytes[at] = 200;
    assert_int_equal(replica_train_step(r, counters, BATCH, 1e-3, &result, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "token 200"));
    assert_int_equal(replica_train_step(r, counters, BATCH, 1e-3, &result, &err), STATUS_INVALID);
    bytes[at] = good;
    err.msg[0] = 0; /* the first error is kept */
    assert_int_equal(replica_train_step(r, counters, BATCH, 1e-3, &result, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "token 200"));
    replica_destroy(r);
}

TEST(test_out_of_memory_is_reported)
{
    struct replica_config config = config_of(2, 2, BATCH, 1);
    size_t before = mem_live_bytes();
    for (long n = 1;; n++) {
        struct replica *r = NULL;
        struct err err = {0};
        mem_fail_after(n);
        enum status status = replica_create(&r, &config, &layout, &data, &err);
        mem_fail_after(0);
        replica_destroy(status == STATUS_OK ? r : NULL);
        assert_int_equal(mem_live_bytes(), before);
        if (status == STATUS_OK) {
            assert_true(n > 20);
            return;
        }
        assert_int_equal(status, STATUS_NOMEM);
        assert_true(err.msg[0]);
    }
}

TEST_MAIN(set_up, tear_down)
