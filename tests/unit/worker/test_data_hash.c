/* The hash of all tokens: finds a byte that the fingerprint of JOIN misses, and reads a shard once. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/data_hash.h"

enum { TOKENS = 400000, SHARD = 200000 }; /* two shards of 400 kB: the fingerprint reads 256 KiB of each */

static void write_set(uint32_t changed)
{
    struct token_writer w;
    struct err err = {0};
    assert_int_equal(token_writer_open(&w, tmpdir, "train", 2, SHARD, &err), STATUS_OK);
    for (uint32_t i = 0; i < TOKENS; i++) {
        uint32_t token = i % 1000 + (i == changed);
        assert_int_equal(token_writer_put(&w, &token, 1, &err), STATUS_OK);
    }
    assert_int_equal(token_writer_close(&w, &err), STATUS_OK);
}

static void open_set(struct tokens *tokens)
{
    char pattern[128];
    snprintf(pattern, sizeof pattern, "%s/train_*.bin", tmpdir);
    assert_int_equal(tokens_open(tokens, pattern, NULL), STATUS_OK);
    assert_int_equal(tokens->n_shards, 2);
}

static uint64_t hash_once(const struct tokens *tokens, const char *known, char **next_p, uint64_t *bytes_p)
{
    size_t size;
    FILE *next = open_memstream(next_p, &size);
    *bytes_p = 0;
    uint64_t hash = data_hash_tokens(tokens, &known, next, NULL, bytes_p);
    assert_int_equal(fclose(next), 0);
    return hash;
}

TEST_WITH(test_every_token_counts, tmpdir_make, tmpdir_remove)
{
    struct tokens tokens;
    uint64_t fingerprint[2], hash[2], bytes;
    for (int i = 0; i < 2; i++) {
        char *next;
        write_set(i ? 2600 : UINT32_MAX); /* between two of the 64 places */
        open_set(&tokens);
        fingerprint[i] = tokens.hash;
        hash[i] = hash_once(&tokens, "", &next, &bytes);
        assert_int_equal(bytes, 2 * TOKENS);
        free(next);
        tokens_close(&tokens);
    }
    assert_true(fingerprint[0] == fingerprint[1]);
    assert_true(hash[0] && hash[0] != hash[1]);
}

TEST_WITH(test_known_shard_is_not_read_again, tmpdir_make, tmpdir_remove)
{
    struct tokens tokens;
    char *known, *next;
    uint64_t bytes;
    write_set(UINT32_MAX);
    open_set(&tokens);
    uint64_t hash = hash_once(&tokens, "", &known, &bytes);
    assert_true(hash_once(&tokens, known, &next, &bytes) == hash);
    assert_int_equal(bytes, 0);
    assert_string_equal(next, known);
    free(next);
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, tokens.shards[1].path, times, 0), 0); /* another change time */
    assert_true(hash_once(&tokens, known, &next, &bytes) == hash);
    assert_int_equal(bytes, 2 * SHARD);
    free(next);
    memset(known, 'x', 16); /* a damaged line */
    assert_true(hash_once(&tokens, known, &next, &bytes) == hash);
    assert_int_equal(bytes, 4 * SHARD);
    free(next);
    free(known);
    atomic_bool stop = true;
    const char *none = "";
    assert_int_equal(data_hash_tokens(&tokens, &none, NULL, &stop, &bytes), 0);
    tokens_close(&tokens);
}

/* The thread gives its result to the heartbeat and keeps it in the worker's folder. */
TEST_WITH(test_thread_reports_and_keeps_hashes, tmpdir_make, tmpdir_remove)
{
    struct tokens tokens;
    struct heartbeat heartbeat;
    write_set(UINT32_MAX);
    open_set(&tokens);
    heartbeat_init(&heartbeat);
    heartbeat_join(&heartbeat, 1, 1000);
    for (int i = 0; i < 2; i++) {
        struct data_hash h = {0};
        struct msg m;
        data_hash_start(&h, &tokens, &tokens, tmpdir, &heartbeat);
        for (int turns = 0; turns < 1000; turns++) {
            m = (struct msg){0};
            if (heartbeat_take(&heartbeat, 1, &m) && m.heartbeat.train_hash) break;
            usleep(10000);
        }
        assert_true(m.heartbeat.train_hash && m.heartbeat.train_hash == m.heartbeat.val_hash);
        data_hash_stop(&h);
        data_hash_stop(&h);
        assert_int_equal(access(tmpdir_path("data_hashes"), R_OK), 0);
        heartbeat_set_data(&heartbeat, 0, 0);
    }
    heartbeat_finish(&heartbeat);
    tokens_close(&tokens);
}

TEST_MAIN(NULL, NULL)
