/* The cache of algorithm choices: survives a restart, is shared by several processes, and ignores invalid lines. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "gpu/cuda/rt/algo_cache.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static char path[FILEIO_PATH_MAX];

static int make_folder(void **state)
{
    if (tmpdir_make(state) != 0) return -1;
    snprintf(path, sizeof path, "%s/choices", tmpdir);
    return setenv("ATOLL_ALGO_CACHE", path, 1);
}

static int remove_folder(void **state)
{
    unsetenv("ATOLL_ALGO_CACHE");
    return tmpdir_remove(state);
}

static void words_of(uint64_t seed, uint64_t words[ALGO_WORDS])
{
    for (int i = 0; i < ALGO_WORDS; i++) words[i] = seed * 0x9e3779b97f4a7c15u + (uint64_t)i;
}

static void put(struct algo_cache *cache, const char *key, uint64_t seed)
{
    uint64_t words[ALGO_WORDS];
    struct err err = {0};
    words_of(seed, words);
    if (algo_cache_put(cache, key, words, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static bool has(const struct algo_cache *cache, const char *key, uint64_t seed)
{
    uint64_t words[ALGO_WORDS], want[ALGO_WORDS];
    words_of(seed, want);
    return algo_cache_find(cache, key, words) && !memcmp(words, want, sizeof words);
}

TEST_WITH(test_choices_survive_restart, make_folder, remove_folder)
{
    struct algo_cache cache, other;
    char key[32];
    assert_int_equal(algo_cache_open(&cache, "a GPU", 1), STATUS_OK);
    assert_false(has(&cache, "m1", 1));
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "m%d,n%d", i, 3 * i);
        put(&cache, key, (uint64_t)i);
    }
    put(&cache, "m7,n21", 1000); /* replaces */
    assert_int_equal(algo_cache_open(&other, "a GPU", 1), STATUS_OK);
    assert_int_equal(other.n, 200);
    assert_true(has(&other, "m199,n597", 199));
    assert_true(has(&other, "m7,n21", 1000));
    put(&other, "other", 5); /* lines of other processes survive the next write */
    put(&cache, "first", 6);
    algo_cache_close(&other);
    assert_int_equal(algo_cache_open(&other, "a GPU", 1), STATUS_OK);
    assert_true(has(&other, "other", 5) && has(&other, "first", 6));
    algo_cache_close(&other);
    algo_cache_close(&cache);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_WITH(test_invalid_lines_are_ignored, make_folder, remove_folder)
{
    static const char *const bad[] = {
        "",
        "k",
        "k 1 2 3 4 5 6 7",
        "k 1 2 3 4 5 6 7 8 9",
        "k 1 2 3 4 5 6 7 x",
        " 1 2 3 4 5 6 7 8",
        "k 1 2 3 4 5 6 7 10000000000000000",
        "k 1 2 3 4 5 6 7 -8",
        "k  1 2 3 4 5 6 7 8",
        "k 1 2 3 4 5 6 7 8 ",
        "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk "
        "1 2 3 4 5 6 7 8",
    };
    char text[4096] = "a-GPU-1 good 1 2 3 4 5 6 7 ffffffffffffffff\n";
    size_t used = strlen(text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "a-GPU-1 %s\n", bad[i]);
    used += (size_t)snprintf(text + used, sizeof text - used, "k 1 2 3 4 5 6 7 8\n") + 1; /* no GPU; a NUL */
    used += (size_t)snprintf(text + used, sizeof text - used, "\na-GPU-1 last 1 2 3 4 5 6 7 8\n");
    used += (size_t)snprintf(text + used, sizeof text - used, "a-GPU-1 cut 1 2 3 4 5 6 7 8"); /* truncated */
    struct algo_cache cache;
    uint64_t words[ALGO_WORDS];
    struct err err = {0};
    assert_int_equal(file_write(path, text, used, &err), STATUS_OK);
    assert_int_equal(algo_cache_open(&cache, "a GPU", 1), STATUS_OK);
    assert_int_equal(cache.n, 2);
    assert_true(algo_cache_find(&cache, "good", words) && words[7] == UINT64_MAX && words[6] == 7);
    assert_true(algo_cache_find(&cache, "last", words) && words[7] == 8);
    assert_int_equal(algo_cache_put(&cache, "two words", words, &err), STATUS_LIMIT);
    assert_int_equal(algo_cache_put(&cache, "", words, &err), STATUS_LIMIT);
    put(&cache, "after", 3); /* on its own line */
    algo_cache_close(&cache);
    assert_int_equal(algo_cache_open(&cache, "a GPU", 1), STATUS_OK);
    assert_true(has(&cache, "after", 3) && cache.n <= 4);
    algo_cache_close(&cache);
}

/* One file for all GPUs of a machine and two releases of the library: each finds only its own choices. */
TEST_WITH(test_choices_of_other_gpus_are_ignored, make_folder, remove_folder)
{
    static const struct {
        const char *gpu;
        unsigned version;
    } kinds[] = {
        {"NVIDIA H100", 130100}, {"NVIDIA H100 PCIe", 130100}, {"NVIDIA A100", 130100}, {"NVIDIA H100", 130200}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    struct algo_cache all[KINDS], cache;
    for (uint64_t i = 0; i < KINDS; i++) {
        assert_int_equal(algo_cache_open(&all[i], kinds[i].gpu, kinds[i].version), STATUS_OK);
        assert_int_equal(all[i].n, 0);
        put(&all[i], "m8,n8", i);
    }
    for (uint64_t i = 0; i < KINDS; i++) {
        assert_true(has(&all[i], "m8,n8", i));
        algo_cache_close(&all[i]);
        assert_int_equal(algo_cache_open(&cache, kinds[i].gpu, kinds[i].version), STATUS_OK);
        assert_true(cache.n == 1 && has(&cache, "m8,n8", i));
        algo_cache_close(&cache);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

/* A file beyond the size limit starts again, and does not grow without limit. */
TEST_WITH(test_too_long_file_starts_again, make_folder, remove_folder)
{
    struct algo_cache cache;
    struct err err = {0};
    size_t size = (4 << 20) + 100;
    char *text = mem_alloc(size, 1);
    memset(text, 'x', size);
    assert_int_equal(file_write(path, text, size, &err), STATUS_OK);
    mem_free(text);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(algo_cache_open(&cache, "g", 1), STATUS_OK);
        assert_true(has(&cache, "k", 1) == (i == 1));
        if (i == 0) put(&cache, "k", 1);
        algo_cache_close(&cache);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_WITH(test_environment_selects_file, make_folder, remove_folder)
{
    struct algo_cache cache;
    char want[FILEIO_PATH_MAX + 64];
    struct err err = {0};
    unsetenv("ATOLL_ALGO_CACHE");
    setenv("XDG_CACHE_HOME", tmpdir, 1);
    assert_int_equal(algo_cache_open(&cache, "NVIDIA H200/../x", 130100), STATUS_OK);
    snprintf(want, sizeof want, "%s/atoll/gemm-NVIDIA-H200-..-x-130100.txt", tmpdir);
    assert_string_equal(cache.path, want);
    put(&cache, "k", 1);
    assert_true(file_exists(want));
    algo_cache_close(&cache);
    setenv("ATOLL_ALGO_CACHE", "", 1); /* no file: for this process only */
    assert_int_equal(algo_cache_open(&cache, "g", 1), STATUS_OK);
    assert_null(cache.path);
    put(&cache, "k", 1);
    assert_true(has(&cache, "k", 1));
    algo_cache_close(&cache);
    snprintf(want, sizeof want, "%s/none/there", tmpdir);
    setenv("ATOLL_ALGO_CACHE", want, 1); /* not writable: reported, and kept in memory */
    assert_int_equal(algo_cache_open(&cache, "g", 1), STATUS_OK);
    uint64_t words[ALGO_WORDS];
    words_of(3, words);
    assert_int_not_equal(algo_cache_put(&cache, "k", words, &err), STATUS_OK);
    assert_non_null(strstr(err.msg, want));
    assert_true(has(&cache, "k", 3));
    algo_cache_close(&cache);
    unsetenv("XDG_CACHE_HOME");
    assert_int_equal(mem_live_bytes(), 0);
}

enum { TOGETHER = 200 };

static void *add_some(void *arg)
{
    struct algo_cache cache;
    char key[32];
    assert_int_equal(algo_cache_open(&cache, "g", 1), STATUS_OK);
    for (int i = 0; i < TOGETHER; i++) {
        snprintf(key, sizeof key, "t%d,%d", *(int *)arg, i);
        put(&cache, key, (uint64_t)i);
    }
    algo_cache_close(&cache);
    return NULL;
}

/* Ranks and workers that write at the same time lose no line and mix none. */
TEST_WITH(test_concurrent_writers_lose_no_line, make_folder, remove_folder)
{
    pthread_t threads[4];
    int names[4];
    struct algo_cache cache;
    for (int i = 0; i < 4; i++) {
        names[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, add_some, &names[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(algo_cache_open(&cache, "g", 1), STATUS_OK);
    assert_int_equal(cache.n, 4 * TOGETHER);
    for (size_t i = 0; i < cache.n; i++) {
        unsigned long long thread, nth;
        assert_int_equal(sscanf(cache.all[i].key, "t%llu,%llu", &thread, &nth), 2);
        assert_true(has(&cache, cache.all[i].key, nth));
    }
    algo_cache_close(&cache);
}

/* A single core may never interrupt a thread during a write, so this test holds the lock: the writer must wait. */
TEST_WITH(test_writer_waits_for_lock, make_folder, remove_folder)
{
    pthread_t thread;
    int name = 7;
    struct stat st;
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    assert_int_equal(pthread_create(&thread, NULL, add_some, &name), 0);
    usleep(100000);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 0);
    close(fd);
    pthread_join(thread, NULL);
    struct algo_cache cache;
    assert_int_equal(algo_cache_open(&cache, "g", 1), STATUS_OK);
    assert_int_equal(cache.n, TOGETHER);
    algo_cache_close(&cache);
}

static atomic_bool entered;

static void *enter_and_look(void *ctx)
{
    struct algo_cache *cache = ctx;
    algo_cache_lock(cache);
    atomic_store(&entered, true);
    put(cache, "later", 2);
    algo_cache_unlock(cache);
    return NULL;
}

/* One process measures at a time, and finds the choices of earlier ones. */
TEST_WITH(test_one_process_measures_at_a_time, make_folder, remove_folder)
{
    pthread_t thread;
    struct algo_cache first, second;
    assert_int_equal(algo_cache_open(&first, "g", 1), STATUS_OK);
    assert_int_equal(algo_cache_open(&second, "g", 1), STATUS_OK);
    algo_cache_lock(&first);
    assert_int_equal(pthread_create(&thread, NULL, enter_and_look, &second), 0);
    usleep(100000);
    assert_false(atomic_load(&entered));
    put(&first, "chosen", 1);
    algo_cache_unlock(&first);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&entered) && has(&second, "chosen", 1));
    algo_cache_lock(&first);
    assert_true(has(&first, "later", 2));
    algo_cache_unlock(&first);
    algo_cache_close(&first);
    algo_cache_close(&second);
    assert_int_equal(setenv("ATOLL_ALGO_CACHE", "/dev/null", 1), 0); /* no lock and no wait */
    assert_int_equal(algo_cache_open(&first, "g", 1), STATUS_OK);
    algo_cache_lock(&first);
    assert_int_equal(first.held, -1);
    algo_cache_unlock(&first);
    algo_cache_close(&first);
}

TEST_MAIN(NULL, NULL)
