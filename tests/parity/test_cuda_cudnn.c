/* Tests attention through the emulated cuDNN (tests/cuda/emulator/emulate_cudnn.c) against the CPU device on inputs
 * rounded to bf16: pointers into packed memory, workspace, parts of the batch, grouped key heads. */
#include "common/base/mem.h"
#include "gpu/cuda/cuda_impl.h"
#include "gpu/cuda/cudnn/cuda_cudnn.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

static struct cuda_rt *rt(void)
{
    return cuda_of(pair.devs[1])->rt;
}

static void one(struct attn_shape shape, bool exact, size_t scratch_max, size_t parts)
{
    size_t kv = shape.kv_heads ? shape.kv_heads : shape.heads, n = shape.batch * shape.seq;
    size_t c = n * shape.heads * shape.head_dim, packed = n * (shape.heads + 2 * kv) * shape.head_dim;
    struct vec qkv = act_normal(packed, 1, 1.3f), d_o = act_normal(c, 2, 1), o = act_poisoned(c), o2 = act_poisoned(c);
    struct vec dqkv = act_poisoned(packed), lse = vec_poisoned(n * shape.heads);
    struct device *cpu = pair.devs[0];
    struct attn_plan *wanted;
    struct cuda_cudnn *dnn;
    struct cuda_cudnn_attn *plan, *infer;
    struct err err = {0};
    char name[32];
    assert_int_equal(cpu->ops->attn_plan(cpu, &shape, &wanted), STATUS_OK);
    cpu->ops->attn_fwd(cpu, wanted, qkv.at[0], o.at[0], lse.at[0]);
    cpu->ops->attn_fwd(cpu, wanted, qkv.at[0], o2.at[0], lse.at[0]);
    cpu->ops->attn_bwd(cpu, wanted, qkv.at[0], o.at[0], lse.at[0], d_o.at[0], dqkv.at[0]);
    cpu->ops->plan_free(cpu, wanted);
    if (cuda_cudnn_open(rt(), exact, scratch_max, &dnn, name, sizeof name, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (cuda_cudnn_attn_create(dnn, &shape, &plan, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(cuda_cudnn_attn_parts(plan), parts);
    if (scratch_max) assert_true(cuda_cudnn_attn_scratch(plan) <= scratch_max);
    assert_int_equal(cuda_cudnn_attn_bytes(dnn, &shape), cuda_cudnn_attn_scratch(plan)); /* the memory plan uses it */
    shape.inference = true;
    if (cuda_cudnn_attn_create(dnn, &shape, &infer, &err) != STATUS_OK) fail_msg("%s", err.msg);
    cuda_cudnn_attn_fwd(plan, qkv.at[1], o.at[1], lse.at[1]);
    cuda_cudnn_attn_fwd(infer, qkv.at[1], o2.at[1], NULL);
    cuda_cudnn_attn_bwd(plan, qkv.at[1], o.at[1], lse.at[1], d_o.at[1], dqkv.at[1]);
    if (cuda_rt_sync(rt(), &err) != STATUS_OK) fail_msg("%s", err.msg);
    cuda_cudnn_attn_free(plan);
    cuda_cudnn_attn_free(infer);
    cuda_cudnn_close(dnn);
    vec_same("o", &o, 4e-3);
    vec_same("o, inference", &o2, 4e-3);
    vec_same("dqkv", &dqkv, 1e-2);
    vec_same("lse", &lse, 3e-6);
    vecs_free();
}

static void check_attention(void)
{
    if (!pair.bf16) return;
    for (int exact = 0; exact < 2; exact++) {
        one((struct attn_shape){.batch = 2, .seq = 5, .heads = 3, .head_dim = 8}, exact, 0, 1);
        one((struct attn_shape){.batch = 3, .seq = 18, .heads = 2, .head_dim = 64}, exact, 0, 1);
        one((struct attn_shape){.batch = 2, .seq = 20, .heads = 4, .kv_heads = 2, .head_dim = 16}, exact, 0, 1);
    }
}

/* The planned workspace equals the library's on GPUs of other generations. */
static void check_generations(void)
{
    if (!pair.bf16) return;
    for (int capability = 80; capability <= 120; capability += 20) {
        char number[16];
        snprintf(number, sizeof number, "%d", capability);
        setenv("ATOLL_EMULATED_CAPABILITY", number, 1);
        for (int exact = 0; exact < 2; exact++)
            one((struct attn_shape){.batch = 2, .seq = 20, .heads = 4, .kv_heads = 2, .head_dim = 16}, exact, 0, 1);
    }
    unsetenv("ATOLL_EMULATED_CAPABILITY");
}

static void check_parts(void)
{
    if (!pair.bf16) return;
    const struct attn_shape plain = {.batch = 6, .seq = 12, .heads = 2, .head_dim = 16};
    const struct attn_shape shared = {.batch = 4, .seq = 8, .heads = 4, .kv_heads = 1, .head_dim = 8};
    one(plain, false, 5000, 3);
    one(plain, true, 70000, 3);
    one(shared, false, 3500, 4);
    one(shared, true, 140000, 2);
}

/* One sequence cannot be split: its workspace may take an eighth of a large GPU. Without a plan, no memory is planned.
 */
static void check_one_sequence(void)
{
    if (!pair.bf16) return;
    static const struct {
        const char *memory; /* GiB */
        size_t seq;
        bool exact;
        size_t parts; /* 0: no plan */
    } cases[] = {{"7", 4096, true, 0},   {"10", 4096, true, 4},  {"141", 4096, true, 4},   {"10", 8192, true, 0},
                 {"141", 8192, true, 4}, {"7", 4096, false, 1},  {"7", 1 << 16, false, 0}, {"24", 1 << 16, false, 4},
                 {"141", 512, true, 1},  {"141", 2048, true, 2}, {"141", 1 << 16, true, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct attn_shape shape = {.batch = 4, .seq = cases[i].seq, .heads = 32, .kv_heads = 8, .head_dim = 128};
        struct cuda_cudnn *dnn;
        struct cuda_cudnn_attn *plan;
        struct err err = {0};
        char name[32], bytes[32];
        snprintf(bytes, sizeof bytes, "%lld", atoll(cases[i].memory) << 30);
        setenv("ATOLL_EMULATED_MEMORY", bytes, 1);
        assert_int_equal(cuda_cudnn_open(rt(), cases[i].exact, 0, &dnn, name, sizeof name, &err), STATUS_OK);
        enum status status = cuda_cudnn_attn_create(dnn, &shape, &plan, &err);
        assert_int_equal(status, cases[i].parts ? STATUS_OK : STATUS_UNSUPPORTED);
        size_t planned = cuda_cudnn_attn_bytes(dnn, &shape);
        assert_int_equal(planned, cases[i].parts ? cuda_cudnn_attn_scratch(plan) : 0);
        if (cases[i].parts) assert_int_equal(cuda_cudnn_attn_parts(plan), cases[i].parts);
        if (cases[i].parts) cuda_cudnn_attn_free(plan);
        cuda_cudnn_close(dnn);
    }
    unsetenv("ATOLL_EMULATED_MEMORY");
}

static void check_refusals(void)
{
    if (!pair.bf16) return;
    struct cuda_cudnn *dnn;
    struct cuda_cudnn_attn *plan;
    struct err err = {0};
    char name[32];
    enum cuda_attention wish;
    static const char *const words[] = {"plain", "cudnn", "exact"};
    assert_int_equal(cuda_cudnn_open(rt(), false, 2000, &dnn, name, sizeof name, &err), STATUS_OK);
    struct attn_shape shape = {.batch = 2, .seq = 12, .heads = 2, .head_dim = 12};
    assert_int_equal(cuda_cudnn_attn_create(dnn, &shape, &plan, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "12"));
    shape.head_dim = 64;
    assert_int_equal(cuda_cudnn_attn_create(dnn, &shape, &plan, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "scratch"));
    shape.head_dim = 8;
    for (long nth = 1; nth < 8; nth++) {
        size_t live = mem_live_bytes();
        mem_fail_after(nth);
        enum status status = cuda_cudnn_attn_create(dnn, &shape, &plan, &err);
        mem_fail_after(0);
        if (status == STATUS_OK)
            cuda_cudnn_attn_free(plan);
        else
            assert_int_equal(status, STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), live);
    }
    cuda_cudnn_close(dnn);
    unsetenv("ATOLL_ATTENTION");
    assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_OK);
    assert_int_equal(wish, CUDA_ATTENTION_AUTO);
    for (int i = 0; i < 3; i++) {
        setenv("ATOLL_ATTENTION", words[i], 1);
        assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_OK);
        assert_int_equal(wish, i + 1);
    }
    setenv("ATOLL_ATTENTION", "flash", 1);
    assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_INVALID);
    setenv("ATOLL_ATTENTION", "own", 1); /* an earlier value */
    assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "those kernels are gone: set it to exact"));
    unsetenv("ATOLL_ATTENTION");
    unsetenv("ATOLL_EMULATE_CUDNN");
    assert_int_equal(cuda_cudnn_open(rt(), false, 0, &dnn, name, sizeof name, &err), STATUS_UNSUPPORTED);
    setenv("ATOLL_EMULATE_CUDNN", "1", 1);
}

PAIR_TEST(attention)
PAIR_TEST(generations)
PAIR_TEST(parts)
PAIR_TEST(one_sequence)
PAIR_TEST(refusals)

static int set_up(void **state)
{
    (void)state;
    return setenv("ATOLL_EMULATE_CUDNN", "1", 1);
}

TEST_MAIN(set_up, NULL)
