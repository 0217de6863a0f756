/* The worker's saved state: restored as saved, refused after one flipped bit or a missing end. An interrupted save
 * leaves an older state. ctest: labels=threads */
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "tests/lib/rigs/golden.h"
#include "tests/lib/rigs/scripted.h"
#include "tests/lib/store/save_image.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/outer/state_dir.h"

enum { N = 50, INNER = 24, PAYLOAD = 17 };

static struct saved_state state_in, state_out;
static float theta[N], residual[N];
static uint8_t inner[INNER], payload[PAYLOAD], whole[8192] __attribute__((aligned(64)));
static struct outer_part body[4];

/* The state in its disk format, in `whole`. */
static size_t image(void)
{
    size_t size;
    uint8_t *bytes = save_image(&state_in, body, 4, &size);
    memcpy(whole, bytes, size);
    mem_free(bytes);
    return size;
}

/* Makes two fragments of 20 and 30 floats; the second has a pending delta. `salt` distinguishes states. */
static size_t make(uint8_t salt)
{
    memset(&state_in, 0, sizeof state_in);
    memset(state_in.uuid, 1 + salt, WIRE_UUID);
    memset(state_in.run_id, 2, WIRE_UUID);
    state_in.layout_hash = 77;
    state_in.n_params = N;
    state_in.inner_size = INNER;
    state_in.round = 9;
    state_in.tokens = 1000;
    state_in.compute_us = 5;
    state_in.loss_sum = 2.5;
    state_in.steps = 30;
    state_in.worker_id = 4;
    state_in.n_fragments = 2;
    state_in.form = DELTA_PSEUDO_GRADIENT;
    state_in.has_residual = true;
    for (int i = 0; i < N; i++) {
        theta[i] = (float)i + salt;
        residual[i] = 0.5f * (float)i;
    }
    memset(inner, 3, sizeof inner);
    memset(payload, 4, sizeof payload);
    state_in.f[0] = (struct saved_fragment){.version = 9, .hash = 1, .count = 20};
    state_in.f[1] = (struct saved_fragment){.version = 8,
                                            .hash = 2,
                                            .count = 30,
                                            .base_version = 8,
                                            .payload_size = PAYLOAD,
                                            .payload_crc = 6,
                                            .norm = 1.5f};
    body[0] = (struct outer_part){.data = theta, .size = sizeof theta};
    body[1] = (struct outer_part){.data = residual, .size = sizeof residual};
    body[2] = (struct outer_part){.data = inner, .size = sizeof inner};
    body[3] = (struct outer_part){.data = payload, .size = sizeof payload};
    return image();
}

static enum status decode(size_t size)
{
    struct err err = {0};
    enum status status = saved_state_decode(&state_out, whole, size, &err);
    if (status != STATUS_OK) assert_int_not_equal(err.msg[0], 0); /* the error has a text */
    return status;
}

TEST(test_decode_restores_state)
{
    size_t size = make(0);
    size_t content = sizeof theta + sizeof residual + sizeof inner + sizeof payload;
    assert_int_equal((size - content) % 64, 0);
    assert_int_equal(decode(size), STATUS_OK);
    assert_memory_equal(state_out.uuid, state_in.uuid, WIRE_UUID);
    assert_memory_equal(state_out.run_id, state_in.run_id, WIRE_UUID);
    assert_int_equal(state_out.round, 9);
    assert_int_equal(state_out.tokens, 1000);
    assert_true(state_out.loss_sum == 2.5);
    assert_int_equal(state_out.steps, 30);
    assert_int_equal(state_out.worker_id, 4);
    assert_memory_equal(state_out.f, state_in.f, 2 * sizeof state_in.f[0]);
    assert_memory_equal(state_out.theta, theta, sizeof theta);
    assert_memory_equal(state_out.residual, residual, sizeof residual);
    assert_memory_equal(state_out.inner, inner, sizeof inner);
    assert_null(state_out.payload[0]);
    assert_memory_equal(state_out.payload[1], payload, sizeof payload);
    assert_int_equal(saved_state_peek(&state_out, whole, size, NULL), STATUS_OK);
    assert_memory_equal(state_out.run_id, state_in.run_id, WIRE_UUID);
}

TEST(test_every_flipped_bit_is_detected)
{
    size_t size = make(0);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        whole[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (decode(size) == STATUS_OK) fail_msg("bit %zu of byte %zu", bit % 8, bit / 8);
        whole[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(decode(size), STATUS_OK);
}

TEST(test_every_truncation_is_detected)
{
    size_t size = make(0);
    for (size_t n = 0; n < size; n++) assert_int_not_equal(decode(n), STATUS_OK);
    assert_int_not_equal(decode(size + 1), STATUS_OK);
}

/* Written by another release. */
TEST(test_other_format_is_refused)
{
    struct err err = {0};
    size_t size = make(0);
    assert_int_equal(whole[8], 1);
    whole[8] = 3;
    assert_int_equal(saved_state_peek(&state_out, whole, size, &err), STATUS_UNSUPPORTED);
    assert_string_equal(err.msg, "format version 3, this program reads version 2");
    assert_int_equal(decode(size), STATUS_UNSUPPORTED);
}

static void set_task(uint32_t step, uint32_t steps)
{
    state_in.in_round = true;
    state_in.step = step;
    state_in.task = (struct msg_assign){.round = 9,
                                        .worker_id = 4,
                                        .steps = steps,
                                        .step0 = 270.5,
                                        .step_rate = 0.25,
                                        .n_ranges = 2,
                                        .ranges = {{5, 6}, {70, 80}}};
    state_in.f[0].assigned = 9;
    state_in.f[1].assigned = 8;
}

/* The bytes that the first release with this format wrote. */
TEST(test_state_matches_golden_file)
{
    static uint8_t head[SAVED_HEAD_MAX];
    make(0);
    set_task(3, 30);
    size_t size = image();
    golden_check("state_v1/state", whole, size);
    assert_int_equal(decode(size), STATUS_OK);
    assert_int_equal(state_out.task.ranges[1].count, 80);
    assert_int_equal(state_out.task.versions[1], 8);
    state_in.n_fragments = LAYOUT_FRAGMENTS_MAX;
    assert_true(saved_state_head(&state_in, 0, 0, head) <= sizeof head);
}

/* Valid checksum, inconsistent content, from a defect or an attacker: the decoder never reads out of bounds. */
TEST(test_inconsistent_state_is_refused)
{
    size_t size = make(0);
    struct saved_state good = state_in;
    for (int i = 0; i < 9; i++) {
        state_in = good;
        if (i == 0) state_in.n_params = UINT64_MAX;
        if (i == 1) state_in.f[0].count = UINT64_MAX;
        if (i == 2) state_in.inner_size = UINT64_MAX - 3;
        if (i == 3) state_in.f[1].payload_size = 1u << 30;
        if (i == 4) state_in.has_residual = false;
        if (i == 5) state_in.n_params = N - 1;
        if (i == 6) state_in.inner_size = INNER + 1;
        if (i == 7) state_in.in_round = true; /* of no assignment */
        if (i == 8) set_task(31, 30);
        assert_int_equal(image(), size);
        assert_int_equal(decode(size), STATUS_CORRUPT);
    }
}

/* ---- on disk ------------------------------------------------------------------------------------------------------
 */

static struct state_dir dir;
static struct outer_setup setup;

static enum status load(int age)
{
    const uint8_t *data;
    size_t size;
    enum status status = setup.load(setup.storage_ctx, age, &data, &size, NULL);
    if (status != STATUS_OK) return status;
    status = saved_state_decode(&state_out, data, size, NULL);
    if (status == STATUS_OK) memcpy(theta, state_out.theta, sizeof theta);
    setup.release(setup.storage_ctx, data, size);
    return status;
}

static enum status save(uint8_t salt)
{
    make(salt);
    setup.save_begin(setup.storage_ctx, &state_in, body, 4);
    return setup.save_poll(setup.storage_ctx, true, NULL);
}

static int setup_dir(void **state)
{
    if (tmpdir_make(state) != 0) return -1;
    state_dir_init(&dir, tmpdir);
    state_dir_attach(&dir, &setup);
    return 0;
}

static ino_t inode(const char *name)
{
    char path[CONFIG_PATH_MAX + 64];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", tmpdir, name);
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* The three files rotate: a disk that filled up still has space for another save. */
TEST_WITH(test_files_rotate, setup_dir, tmpdir_remove)
{
    static const char *const names[] = {"state.bin", "state.old.bin", "state.spare.bin"};
    ino_t known[3];
    for (uint8_t salt = 0; salt < 3; salt++) assert_int_equal(save(salt), STATUS_OK);
    for (int i = 0; i < 3; i++) assert_int_not_equal(known[i] = inode(names[i]), 0);
    for (uint8_t salt = 3; salt < 9; salt++) {
        assert_int_equal(save(salt), STATUS_OK);
        ino_t last = known[2];
        known[2] = known[1];
        known[1] = known[0];
        known[0] = last;
        for (int i = 0; i < 3; i++) assert_int_equal(inode(names[i]), known[i]);
        assert_int_equal(inode("state.passing.bin"), 0);
    }
    /* A longer old content leaves no bytes after the new one. */
    assert_int_equal(truncate(dir.spare, 1 << 20), 0);
    assert_int_equal(save(9), STATUS_OK);
    assert_int_equal(load(0), STATUS_OK);
}

/* A save in a thread: the owner only polls it. The file equals the state made in one piece; parts are longer and
 * shorter than a block of the checksum and the write. */
TEST_WITH(test_save_in_thread_writes_same_bytes, setup_dir, tmpdir_remove)
{
    enum { PIECE = 1 << 20 };
    static uint8_t big[2 * PIECE + 77];
    make(5);
    for (size_t i = 0; i < sizeof big; i++) big[i] = (uint8_t)(i * i >> 7);
    const size_t sizes[] = {0, 1, PIECE - 1, PIECE, PIECE + 1, sizeof big};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct outer_part pieces[] = {body[0], body[1], {big, sizes[i]}, {big + 3, 100}};
        const uint8_t *data;
        size_t size, want_size;
        struct err err = {0};
        enum status status;
        assert_int_equal(setup.save_poll(setup.storage_ctx, false, &err), STATUS_OK); /* no save in progress */
        setup.save_begin(setup.storage_ctx, &state_in, pieces, 4);
        while ((status = setup.save_poll(setup.storage_ctx, i == 3, &err)) == STATUS_AGAIN) usleep(1000);
        assert_int_equal(status, STATUS_OK);
        uint8_t *want = save_image(&state_in, pieces, 4, &want_size);
        assert_int_equal(setup.load(setup.storage_ctx, 0, &data, &size, &err), STATUS_OK);
        assert_int_equal(size, want_size);
        assert_memory_equal(data, want, size);
        setup.release(setup.storage_ctx, data, size);
        mem_free(want);
    }
}

/* The thread reads the loop's state while the loop continues: rounds, a refusal and an end during a save. */
TEST_WITH(test_loop_continues_during_save, setup_dir, tmpdir_remove)
{
    struct scripted *s = &scripted;
    log_set_level(LOG_ERROR - 1);
    scripted_begin("int8:256");
    scripted_worker_kill();
    state_dir_attach(&dir, &s->setup);
    for (int round = 0; round < 6; round++) {
        if (round % 3 == 0) {
            if (round) scripted_worker_kill();
            scripted_worker_up();
        }
        for (int i = 0; i < 100000 && outer_loop_want(s->loop) != OUTER_TRAIN; i++) {
            scripted_pass(2000);
            usleep(100);
        }
        assert_int_equal(outer_loop_want(s->loop), OUTER_TRAIN);
        assert_true(s->inner[0] == (float)round); /* every state is restored */
        scripted_train();
        s->no_work = round == 4;
        s->reject = round == 4 ? REJECT_LATE : 0;
        scripted_train_done();
        scripted_pass(2000);
        if (round == 4)
            for (uint32_t f = 0; f < SCRIPTED_F; f++) scripted_publish(f, false);
        s->reject = 0;
        s->no_work = false;
    }
    scripted_end();
}

TEST_MAIN(NULL, NULL)
