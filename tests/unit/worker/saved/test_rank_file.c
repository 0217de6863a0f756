/* The files of a worker's ranks in a saved state: written beside state.bin, which waits for them; a process that is
 * killed at any moment leaves a state that has all its files. ctest: labels=threads */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/outer/rank_board.h"
#include "worker/outer/rank_file.h"
#include "worker/outer/state_dir.h"

enum { N = 16, RANKS = 3, LARGE = 3 * 1000 * 1000 + 17 };

static struct err err;
static float theta[N];
static uint8_t bytes[LARGE];

/* The bytes of a rank in the save with this number. */
static const uint8_t *fill(uint32_t rank, uint64_t tag, size_t *size_p)
{
    *size_p = rank == 1 ? LARGE : 1000 + rank;
    for (size_t i = 0; i < *size_p; i++) bytes[i] = (uint8_t)(i * 7 + rank * 31 + tag * 13);
    return bytes;
}

/* What a rank does in a save. Returns its status. */
static enum status write_rank(struct rank_board *board, uint64_t tag)
{
    struct rank_file f;
    size_t size;
    const uint8_t *data = fill(board->rank, tag, &size);
    enum status status = rank_file_begin(&f, tmpdir, board->rank, tag, &err);
    if (status == STATUS_OK) status = rank_file_put(&f, data, size / 3, &err);
    if (status == STATUS_OK) status = rank_file_put(&f, data + size / 3, size - size / 3, &err);
    if (status == STATUS_OK) status = rank_file_end(&f, &err);
    rank_file_abort(&f);
    if (rank_board_set(board, tag, status == STATUS_OK ? RANK_DURABLE : RANK_FAILED, err.msg, NULL) != STATUS_OK)
        return STATUS_IO;
    return status;
}

static void open_boards(struct rank_board boards[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(rank_board_open(&boards[r], tmpdir, r, &err), STATUS_OK);
}

static void close_boards(struct rank_board boards[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++) rank_board_close(&boards[r]);
}

static void announce(struct rank_board boards[RANKS], uint64_t tag)
{
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(rank_board_set(&boards[r], tag, RANK_WRITES, "", &err), STATUS_OK);
}

static struct saved_state state_of(uint64_t tag)
{
    struct saved_state s = {.n_params = N, .n_fragments = 1, .round = tag, .tag = tag, .n_ranks = RANKS};
    s.f[0].count = N;
    return s;
}

static struct state_dir dir;
static struct outer_setup setup;
static struct saved_state saving;
static const struct outer_part body = {.data = theta, .size = sizeof theta};

static void begin_state(uint64_t tag)
{
    saving = state_of(tag);
    setup.save_begin(setup.storage_ctx, &saving, &body, 1);
}

/* Returns the tag of the state of this age, all of whose files are whole; 0: there is no such state. */
static uint64_t whole_state(int age)
{
    struct saved_state s;
    const uint8_t *data;
    size_t size;
    if (setup.load(setup.storage_ctx, age, &data, &size, &err) != STATUS_OK) return 0;
    enum status status = saved_state_decode(&s, data, size, &err);
    setup.release(setup.storage_ctx, data, size);
    if (status != STATUS_OK || setup.has_files(setup.storage_ctx, s.tag, s.n_ranks, &err) != STATUS_OK) return 0;
    for (uint32_t r = 0; r < s.n_ranks; r++) {
        struct file_map map;
        const uint8_t *at;
        size_t n, expected;
        if (rank_file_map(&map, tmpdir, r, s.tag, &at, &n, &err) != STATUS_OK) return 0;
        const uint8_t *same = fill(r, s.tag, &expected);
        bool equal = n == expected && !memcmp(at, same, n);
        file_map_close(&map);
        if (!equal) return 0;
    }
    return s.tag;
}

static int count_files(const char *start)
{
    int n = 0;
    DIR *d = opendir(tmpdir);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) n += !strncmp(e->d_name, start, strlen(start));
    closedir(d);
    return n;
}

static int attach(void **state)
{
    tmpdir_make(state);
    setup = (struct outer_setup){0};
    state_dir_init(&dir, tmpdir);
    state_dir_attach(&dir, &setup);
    return 0;
}

static void save_all(struct rank_board boards[RANKS], uint64_t tag)
{
    announce(boards, tag);
    begin_state(tag);
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(write_rank(&boards[r], tag), STATUS_OK);
    assert_int_equal(setup.save_poll(setup.storage_ctx, true, &err), STATUS_OK);
}

TEST_WITH(test_three_files_of_each_rank_take_turns, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    open_boards(boards);
    for (uint64_t tag = 1; tag <= 6; tag++) {
        save_all(boards, tag);
        assert_int_equal(whole_state(0), tag);
        if (tag > 1) assert_int_equal(whole_state(1), tag - 1);
        for (uint32_t r = 0; r < RANKS; r++) {
            char start[32];
            snprintf(start, sizeof start, "state.rank-%u.", r);
            assert_in_range(count_files(start), tag < 3 ? (int)tag : 3, 3);
        }
    }
    close_boards(boards);
}

/* state.bin is renamed when the last rank is durable, and not before. */
TEST_WITH(test_state_waits_for_every_rank, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    open_boards(boards);
    save_all(boards, 1);
    for (uint32_t last = 0; last < RANKS; last++) {
        uint64_t tag = 2 + last;
        announce(boards, tag);
        begin_state(tag);
        for (uint32_t r = 0; r < RANKS; r++)
            if (r != last) assert_int_equal(write_rank(&boards[r], tag), STATUS_OK);
        usleep(50000);
        assert_int_equal(setup.save_poll(setup.storage_ctx, false, &err), STATUS_AGAIN);
        assert_int_equal(whole_state(0), tag - 1);
        assert_int_equal(write_rank(&boards[last], tag), STATUS_OK);
        assert_int_equal(setup.save_poll(setup.storage_ctx, true, &err), STATUS_OK);
        assert_int_equal(whole_state(0), tag);
    }
    close_boards(boards);
}

TEST_WITH(test_failure_of_a_rank_is_that_of_the_save, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    open_boards(boards);
    save_all(boards, 1);
    announce(boards, 2);
    begin_state(2);
    assert_int_equal(write_rank(&boards[0], 2), STATUS_OK);
    assert_int_equal(rank_board_set(&boards[2], 2, RANK_FAILED, "cannot write x: No space left on device", &err), 0);
    assert_int_equal(write_rank(&boards[1], 2), STATUS_OK);
    assert_int_equal(setup.save_poll(setup.storage_ctx, true, &err), STATUS_IO);
    assert_string_equal(err.msg, "rank 2: cannot write x: No space left on device");
    assert_int_equal(whole_state(0), 1);
    rank_board_close(&boards[1]); /* a process that ends */
    assert_int_equal(rank_board_set(&boards[0], 3, RANK_DURABLE, "", &err), STATUS_OK);
    begin_state(3);
    assert_int_equal(setup.save_poll(setup.storage_ctx, true, &err), STATUS_IO);
    assert_string_equal(err.msg, "the process of rank 1 ended during the save");
    assert_int_equal(whole_state(0), 1);
    assert_int_equal(rank_board_open(&boards[1], tmpdir, 1, &err), STATUS_OK);
    for (uint64_t tag = 4; tag < 9; tag++) save_all(boards, tag);
    assert_int_equal(whole_state(0), 8);
    close_boards(boards);
}

/* Saves that fail one after the other overwrite no file of the states that exist. */
TEST_WITH(test_failed_saves_keep_the_states, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    open_boards(boards);
    save_all(boards, 1);
    save_all(boards, 2);
    for (uint64_t tag = 3; tag < 8; tag++) {
        announce(boards, tag);
        begin_state(tag);
        for (uint32_t r = 0; r + 1 < RANKS; r++) assert_int_equal(write_rank(&boards[r], tag), STATUS_OK);
        assert_int_equal(rank_board_set(&boards[RANKS - 1], tag, RANK_FAILED, "full", &err), STATUS_OK);
        assert_int_equal(setup.save_poll(setup.storage_ctx, true, &err), STATUS_IO);
        assert_int_equal(whole_state(0), 2);
        assert_int_equal(whole_state(1), 1);
    }
    save_all(boards, 9);
    assert_int_equal(whole_state(0), 9);
    assert_int_equal(whole_state(1), 2);
    close_boards(boards);
}

/* One process for each rank; all are killed after a random time. A restart finds the newest state or the one before,
 * with all files. */
TEST_WITH(test_kill_at_any_moment, attach, tmpdir_remove)
{
    uint64_t newest = 0, moved = 0, pause_us = 1000; /* long enough for some saves, also on a busy machine */
    struct rank_board boards[RANKS];
    open_boards(boards);
    save_all(boards, 1);
    close_boards(boards);
    newest = 1;
    for (unsigned round = 0; round < 40 || moved <= 10; round++) {
        pid_t child = fork();
        if (!child) { /* it saves without end; state.bin of tag t says that the save is over */
            open_boards(boards);
            for (uint64_t tag = newest + 100;; tag++) save_all(boards, tag);
        }
        usleep((useconds_t)(pause_us * (1 + round * 997 % 31) / 16));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        uint64_t now = whole_state(0);
        if (!now) now = whole_state(1); /* between two renames, without hard links */
        if (now < newest)
            fail_msg("kill %u: the newest state is %llu, and was %llu", round, (unsigned long long)now,
                     (unsigned long long)newest);
        moved += now != newest;
        if (now == newest && pause_us < 1000000) pause_us += pause_us / 4;
        newest = now;
    }
}

TEST_WITH(test_damaged_file_is_refused, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    struct file_map map;
    const uint8_t *at;
    size_t size;
    char path[512];
    open_boards(boards);
    save_all(boards, 1);
    save_all(boards, 2);
    snprintf(path, sizeof path, "%s/state.rank-1.%016x.bin", tmpdir, 2);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, 2000000), 1);
    assert_int_equal(rank_file_map(&map, tmpdir, 1, 2, &at, &size, &err), STATUS_CORRUPT);
    assert_string_equal(err.msg, "the file of rank 1 does not match its checksum");
    assert_int_equal(setup.has_files(setup.storage_ctx, 2, RANKS, &err), STATUS_OK); /* looks at the head only */
    assert_int_equal(ftruncate(fd, 2000000), 0);
    close(fd);
    assert_int_equal(setup.has_files(setup.storage_ctx, 2, RANKS, &err), STATUS_CORRUPT);
    assert_string_equal(err.msg, "the file of rank 1 is truncated");
    rank_file_set_aside(tmpdir, 1, 2);
    assert_int_equal(setup.has_files(setup.storage_ctx, 2, RANKS, &err), STATUS_CORRUPT);
    assert_string_equal(err.msg, "the file of rank 1 is missing");
    assert_int_equal(whole_state(1), 1);
    close_boards(boards);
}

/* Whole files under the names of others. */
TEST_WITH(test_other_file_is_refused, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    char path[512], other[512];
    open_boards(boards);
    save_all(boards, 1);
    save_all(boards, 2);
    snprintf(path, sizeof path, "%s/state.rank-1.%016x.bin", tmpdir, 2);
    snprintf(other, sizeof other, "%s/state.rank-0.%016x.bin", tmpdir, 2);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(rank_files_check(tmpdir, 1, RANKS, &err), STATUS_OK);
    assert_int_equal(rename(path, other), 0);
    snprintf(other, sizeof other, "%s/state.rank-1.%016x.bin", tmpdir, 1);
    assert_int_equal(rename(other, path), 0);
    assert_int_equal(rank_files_check(tmpdir, 2, RANKS, &err), STATUS_CORRUPT);
    assert_string_equal(err.msg, "the file of rank 1 is that of another save");
    snprintf(other, sizeof other, "%s/state.rank-0.%016x.bin", tmpdir, 2);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(rank_files_check(tmpdir, 2, RANKS, &err), STATUS_CORRUPT);
    assert_string_equal(err.msg, "the file of rank 0 is that of another rank");
    close_boards(boards);
}

/* A worker that had three ranks and then none: their files go once no state needs them. */
TEST_WITH(test_files_of_former_ranks_go, attach, tmpdir_remove)
{
    struct rank_board boards[RANKS];
    open_boards(boards);
    save_all(boards, 1);
    save_all(boards, 2);
    close_boards(boards);
    for (uint64_t round = 3; round < 5; round++) {
        saving = state_of(round);
        saving.n_ranks = 0;
        assert_int_equal(count_files("state.rank-"), round == 3 ? 2 * RANKS : RANKS);
        setup.save_begin(setup.storage_ctx, &saving, &body, 1);
        assert_int_equal(setup.save_poll(setup.storage_ctx, true, &err), STATUS_OK);
    }
    assert_int_equal(count_files("state.rank-"), 0);
}

TEST_MAIN(NULL, NULL)
