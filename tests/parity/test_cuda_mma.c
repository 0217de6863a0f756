/* Tests the emulated instructions of gpu/cuda/kernels/cuda_mma.h:
 * - Products through fragments equal the plain product.
 * - Asynchronous copies arrive at their wait.
 * - Misaligned addresses and bank conflicts end the process. ctest: labels=asan */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu/cuda/kernels/cuda_mma.h"
#include "tests/cuda/emulator/emulate.h"

enum { M = 16, N = 8, K = 16, ROW = 16 * K / 8 /* bytes per row of K */, BYTES = 2048 };

struct job {
    uint16_t a[M * K], b[N * K], b_rows[K * N] __attribute__((aligned(16))); /* b: column-major; b_rows: row-major */
    float sums[2][M * N], early[4], late[4];
    unsigned wrong; /* which mistake the kernel makes */
} __attribute__((aligned(16)));

static struct job job;

/* Offset of row `row` of 16 bytes, swizzled so that eight rows in sequence use all banks. */
static unsigned place(unsigned row, unsigned half)
{
    return row * 32 + (half ^ (row >> 2 & 1)) * 16;
}

static void put(struct shared s, unsigned at, const uint16_t *rows, unsigned n)
{
    for (unsigned i = threadIdx.x; i < 2 * n; i += 32) copy_16(s, at + place(i / 2, i % 2), rows + 8 * i, 16);
}

/* sums[0] with b column-major, sums[1] with b row-major, both added to 1. */
static void product(const void *args)
{
    (void)args;
    const struct shared s = {.bytes = BYTES};
    unsigned lane = threadIdx.x, in = lane % 8, matrix = lane / 8;
    uint32_t a[4], b[4], b_rows[4];
    put(s, 0, job.a, M);
    put(s, 512, job.b, N);
    for (unsigned i = lane; i < K; i += 32) copy_16(s, 1024 + i * 16, job.b_rows + 8 * i, 16);
    copy_commit();
    copy_wait(0);
    __syncwarp();
    rows_load(s, place(matrix % 2 * 8 + in, matrix / 2), a);
    rows_load(s, 512 + place(in, matrix % 2), b);
    columns_load(s, 1024 + (matrix % 2 * 8 + in) * 16, b_rows);
    for (int which = 0; which < 2; which++) {
        float sum[4] = {1, 1, 1, 1};
        mma(sum, a, which ? b_rows[0] : b[0], which ? b_rows[1] : b[1]);
        for (unsigned i = 0; i < 4; i++) job.sums[which][(lane / 4 + i / 2 * 8) * N + 2 * (lane % 4) + i % 2] = sum[i];
    }
}

static void test_product(void **state)
{
    (void)state;
    for (unsigned order = 0; order < 3; order++) {
        for (unsigned i = 0; i < M * K; i++) job.a[i] = bf16_of((float)(i * 37 % 101) - 50);
        for (unsigned i = 0; i < N * K; i++) job.b[i] = bf16_of((float)(i * 53 % 97) / 16 - 3);
        for (unsigned i = 0; i < N * K; i++) job.b_rows[i % K * N + i / K] = job.b[i];
        memset(job.sums, 0xff, sizeof job.sums);
        emulate_order(order);
        cuda_emulate("product", product, &job, sizeof(void *), 1, 1, 32);
        for (unsigned i = 0; i < M * N; i++) {
            double want = 1;
            for (unsigned k = 0; k < K; k++)
                want += (double)bf16_value(job.a[i / N * K + k]) * bf16_value(job.b[i % N * K + k]);
            assert_true(job.sums[0][i] == (float)want &&
                        job.sums[1][i] == (float)want); /* exact: the products need few bits */
        }
    }
    emulate_order(0);
}

/* Two groups of copies: the first arrives at the first wait, the second at the second; one copy is zeros. */
static void arrivals(const void *args)
{
    (void)args;
    const struct shared s = {.bytes = BYTES};
    if (threadIdx.x) return;
    static const float from[4] __attribute__((aligned(16))) = {5, 6, 7, 8};
    for (unsigned i = 0; i < 4; i++) {
        copy_4(s, 4 * i, from + i, i == 1 ? 0 : 4);
        if (i % 2) copy_commit();
    }
    shared_floats(s, 0, job.early);
    copy_wait(1);
    shared_floats(s, 8, job.early + 2);
    shared_floats(s, 0, job.late);
    copy_wait(0);
    shared_floats(s, 8, job.late + 2);
}

static void test_copies(void **state)
{
    (void)state;
    cuda_emulate("arrivals", arrivals, &job, sizeof(void *), 1, 1, 32);
    for (int i = 0; i < 4; i++) assert_true(isnan(job.early[i]));
    assert_true(job.late[0] == 5 && job.late[1] == 0 && job.late[2] == 7 && job.late[3] == 8);
}

static void mistake(const void *args)
{
    (void)args;
    const struct shared s = {.bytes = BYTES};
    uint32_t out[4];
    unsigned lane = threadIdx.x;
    switch (job.wrong) {
    case 0: rows_load(s, lane * 16, out); break; /* no mistake */
    case 1: rows_load(s, lane * 32, out); break; /* bank conflict: every bank twice */
    case 2: rows_load(s, lane * 16 + 8, out); break;
    case 3: rows_load(s, BYTES - 31 * 16 + lane * 16, out); break;
    case 4:
        copy_16(s, lane * 16, job.a, 16);
        copy_commit();
        break;
    case 5: copy_16(s, lane * 16, job.a + 1, 16); break;
    case 6: copy_16(s, lane * 16, job.a, 8); break;
    case 7: shared_put(s, BYTES, 0); break;
    default: /* one lane is missing */
        if (lane) columns_load(s, lane * 16, out);
        break;
    }
}

static void test_mistakes(void **state)
{
    (void)state;
    for (job.wrong = 0; job.wrong <= 8; job.wrong++) {
        int status = 0;
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            signal(SIGABRT, SIG_DFL); /* cmocka's handler would continue with the tests */
            if (!freopen("/dev/null", "w", stderr)) _exit(1);
            cuda_emulate("mistake", mistake, &job, sizeof(void *), 1, 1, 32);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (job.wrong)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
