/* Token shards: writer and reader agree, every invalid header is refused with a reason, windows follow the contract. */
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/bytes.h"
#include "common/os/fileio.h"
#include "common/tensor/tokens.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static void write_set(const char *name, uint32_t width, uint64_t per_shard, uint32_t n)
{
    struct token_writer w;
    struct err err = {0};
    assert_int_equal(token_writer_open(&w, tmpdir, name, width, per_shard, &err), STATUS_OK);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = i;
        assert_int_equal(token_writer_put(&w, &token, 1, &err), STATUS_OK);
    }
    assert_int_equal(token_writer_close(&w, &err), STATUS_OK);
    assert_int_equal(w.n_tokens, n);
}

static void open_set(struct tokens *tokens, const char *name)
{
    char pattern[128];
    struct err err = {0};
    snprintf(pattern, sizeof pattern, "%s/%s_*.bin", tmpdir, name);
    enum status status = tokens_open(tokens, pattern, &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
}

static uint32_t largest_of(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t *window)
{
    struct err err = {0};
    uint32_t largest = 0;
    if (tokens_window(tokens, t, index, window, &largest, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return largest;
}

/* 25 tokens in shards of 10, 10, 5: T = 4 gives 2 + 2 + 1 windows. Each starts at a multiple of 4 in its shard and
 * includes one token of the next window. */
TEST(test_windows_cover_each_shard)
{
    static const uint32_t starts[] = {0, 4, 10, 14, 20};
    for (uint32_t width = 2; width <= 4; width += 2) {
        struct tokens tokens;
        uint32_t window[5];
        write_set("train", width, 10, 25);
        open_set(&tokens, "train");
        assert_int_equal(tokens.n_shards, 3);
        assert_int_equal(tokens.n_tokens, 25);
        assert_int_equal(tokens_samples(&tokens, 4), 5);
        assert_int_equal(tokens_samples(&tokens, 9), 2);
        assert_int_equal(tokens_samples(&tokens, 10), 0);
        for (uint32_t i = 0; i < 5; i++) {
            assert_int_equal(largest_of(&tokens, 4, i, window), starts[i] + 4);
            for (uint32_t t = 0; t < 5; t++) assert_int_equal(window[t], starts[i] + t);
        }
        tokens_close(&tokens);
    }
}

TEST(test_hash_depends_on_tokens_and_shards)
{
    struct tokens a, b;
    write_set("one", 2, 0, 5000);
    write_set("two", 2, 0, 5000);
    open_set(&a, "one");
    open_set(&b, "two");
    assert_true(a.hash == b.hash);
    tokens_close(&b);
    write_set("two", 2, 2500, 5000); /* same tokens, other shards: other windows, so another data set */
    open_set(&b, "two");
    assert_true(a.hash != b.hash);
    tokens_close(&b);
    tokens_close(&a);
}

/* A shorter set written over a longer one removes the old shards. */
TEST(test_shorter_set_replaces_longer_set)
{
    struct tokens tokens;
    write_set("again", 2, 10, 100);
    write_set("again", 2, 10, 15);
    open_set(&tokens, "again");
    assert_int_equal(tokens.n_shards, 2);
    assert_int_equal(tokens.n_tokens, 15);
    tokens_close(&tokens);
}

/* A killed writer leaves only its own shards. */
TEST(test_killed_writer_leaves_only_its_shards)
{
    struct token_writer w;
    struct tokens tokens;
    struct err err = {0};
    uint32_t token = 7;
    write_set("first", 2, 10, 100);
    assert_int_equal(token_writer_open(&w, tmpdir, "first", 2, 10, &err), STATUS_OK);
    for (int i = 0; i < 25; i++) assert_int_equal(token_writer_put(&w, &token, 1, &err), STATUS_OK);
    open_set(&tokens, "first");
    assert_int_equal(tokens.n_shards, 2);
    tokens_close(&tokens);
    token_writer_abort(&w);
}

TEST(test_empty_set_has_no_samples)
{
    struct tokens tokens;
    write_set("empty", 2, 10, 0);
    open_set(&tokens, "empty");
    assert_int_equal(tokens.n_shards, 1);
    assert_int_equal(tokens_samples(&tokens, 1), 0);
    tokens_close(&tokens);
}

TEST(test_common_shards_are_counted)
{
    struct tokens a, b, none;
    write_set("some", 2, 10, 35);
    write_set("others", 2, 10, 24); /* two shards of 10 as there, one of 4 */
    write_set("nothing", 2, 10, 0);
    open_set(&a, "some");
    open_set(&b, "others");
    open_set(&none, "nothing");
    assert_int_equal(tokens_shared(&a, &b), 2);
    assert_int_equal(tokens_shared(&b, &a), 2);
    assert_int_equal(tokens_shared(&a, &a), 4);
    assert_int_equal(tokens_shared(&none, &none), 0);
    tokens_close(&a);
    tokens_close(&b);
    tokens_close(&none);
}

TEST(test_aborted_writer_leaves_no_file)
{
    struct token_writer w;
    struct tokens tokens;
    struct err err = {0};
    uint32_t token = 70000;
    char pattern[128];
    assert_int_equal(token_writer_open(&w, tmpdir, "abort", 2, 10, &err), STATUS_OK);
    assert_int_equal(token_writer_put(&w, &token, 1, &err), STATUS_INVALID);
    token_writer_abort(&w);
    snprintf(pattern, sizeof pattern, "%s/abort*", tmpdir);
    assert_int_equal(tokens_open(&tokens, pattern, &err), STATUS_NOTFOUND);
    assert_int_equal(token_writer_open(&w, tmpdir, "abort", 2, 10, &err), STATUS_OK);
    token = 7;
    for (int i = 0; i < 35; i++) assert_int_equal(token_writer_put(&w, &token, 1, &err), STATUS_OK);
    open_set(&tokens, "abort");
    assert_int_equal(tokens.n_shards, 3); /* whole ones */
    tokens_close(&tokens);
    token_writer_abort(&w);
    assert_int_equal(tokens_open(&tokens, pattern, &err), STATUS_NOTFOUND);
    assert_non_null(strstr(err.msg, "atoll prepare"));
}

/* Writes the version of a shard: 8 has a loss mask. */
static void set_version(const char *name, uint32_t shard, uint32_t version)
{
    char path[1200];
    uint8_t bytes[4];
    struct writer w = writer_of(bytes, sizeof bytes);
    put_u32(&w, version);
    snprintf(path, sizeof path, "%s/%s_%06u.bin", tmpdir, name, shard);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 4, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
    assert_int_equal(fclose(file), 0);
}

/* Native workers cannot apply a loss mask, so only a caller that asks for it can open such a set. */
TEST(test_masked_sets_need_a_caller_that_knows_masks)
{
    struct token_writer w;
    struct tokens tokens;
    struct err err = {0};
    const uint32_t put[] = {5, 6 | TOKENS_MASK, 7, 9 | TOKENS_MASK, 8, 1 | TOKENS_MASK};
    uint32_t window[4];
    char pattern[1200];
    assert_int_equal(token_writer_open(&w, tmpdir, "mask", 4, 4, &err), STATUS_OK);
    assert_int_equal(token_writer_put(&w, put, 6, &err), STATUS_OK);
    assert_int_equal(token_writer_close(&w, &err), STATUS_OK);
    snprintf(pattern, sizeof pattern, "%s/mask_*.bin", tmpdir);
    set_version("mask", 0, 8);
    assert_int_equal(tokens_open_masked(&tokens, pattern, &err), STATUS_MISMATCH);
    set_version("mask", 1, 8);
    assert_int_equal(tokens_open(&tokens, pattern, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "has a loss mask (atoll prepare --chat)"));
    assert_int_equal(tokens_open_masked(&tokens, pattern, &err), STATUS_OK);
    assert_int_equal(tokens.n_tokens, 6);
    assert_int_equal(largest_of(&tokens, 3, 0, window), 9);
    assert_memory_equal(window, put, sizeof window);
    assert_int_equal(largest_of(&tokens, 1, 3, window), 8);
    assert_memory_equal(window, put + 4, 2 * sizeof *window);
    tokens_close(&tokens);
}

static void put_header(uint8_t *file, size_t size, uint32_t magic, uint32_t version, uint32_t count)
{
    struct writer w = writer_of(file, size);
    put_u32(&w, magic);
    put_u32(&w, version);
    put_u32(&w, count);
}

TEST(test_invalid_headers_are_refused)
{
    static const struct {
        uint32_t magic, version, count;
        size_t size;
        const char *error;
    } cases[] = {
        {20240520, 1, 3, 1024 + 6, NULL},
        {20240801, 7, 3, 1024 + 12, NULL},
        {20240801, 8, 3, 1024 + 12, NULL},
        {20240520, 8, 3, 1024 + 6, "version"},
        {20240520, 1, 0, 1024, NULL},
        {20240520, 1, 3, 1024 + 5, "truncated"},
        {20240520, 1, 3, 1024 + 7, "damaged"},
        {20240801, 7, 3, 1024 + 6, "truncated"},
        {20240520, 2, 3, 1024 + 6, "version"},
        {20240801, 1, 3, 1024 + 12, "version"},
        {20240521, 1, 3, 1024 + 6, "starts with"},
        {20240520, 1, 0x80000003u, 1024 + 6, "negative"},
        {20240520, 1, 0x7fffffffu, 1024 + 6, "truncated"},
        {20240520, 1, 0, 1023, "header"},
        {20240520, 1, 0, 12, "header"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *file = calloc(1, cases[i].size);
        struct token_shard shard = {0};
        struct err err = {0};
        put_header(file, cases[i].size, cases[i].magic, cases[i].version, cases[i].count);
        enum status status = token_shard_parse(&shard, file, cases[i].size, "x.bin", &err);
        assert_int_equal(status, cases[i].error ? STATUS_CORRUPT : STATUS_OK);
        if (cases[i].error) assert_non_null(strstr(err.msg, cases[i].error));
        if (!cases[i].error) assert_int_equal(shard.n_tokens, cases[i].count);
        free(file);
    }
    struct token_shard shard;
    assert_int_equal(token_shard_parse(&shard, "", 0, "x.bin", NULL), STATUS_CORRUPT);
}

TEST(test_shards_of_mixed_widths_are_refused)
{
    struct tokens tokens;
    struct err err = {0};
    char pattern[128];
    write_set("mixa", 2, 0, 10);
    write_set("mixb", 4, 0, 10);
    snprintf(pattern, sizeof pattern, "%s/mix*", tmpdir);
    assert_int_equal(tokens_open(&tokens, pattern, &err), STATUS_MISMATCH);
}

/* The error names the first token outside the vocabulary, at any position. Shards that are only sampled are still
 * checked as a whole. */
TEST(test_first_token_outside_vocabulary_is_named)
{
    struct tokens tokens;
    struct err err = {0};
    for (uint32_t width = 2; width <= 4; width += 2) {
        uint32_t n = width == 2 ? 60000 : 200000;
        write_set("words", width, 0, n); /* token i is i */
        open_set(&tokens, "words");
        assert_int_equal(tokens_check(&tokens, n, UINT64_MAX, &err), STATUS_OK);
        assert_int_equal(tokens_check(&tokens, n - 1, UINT64_MAX, &err), STATUS_INVALID);
        assert_int_equal(tokens_check(&tokens, n - 1, 1000, &err), width == 2 ? STATUS_INVALID : STATUS_OK);
        for (uint32_t vocab = 1; vocab < 60000; vocab += 9999) {
            char want[64];
            snprintf(want, sizeof want, "words_000000.bin: token %u at position %u,", vocab, vocab);
            assert_int_equal(tokens_check(&tokens, vocab, UINT64_MAX, &err), STATUS_INVALID);
            assert_non_null(strstr(err.msg, want));
            assert_int_equal(tokens_check(&tokens, vocab, 1000, &err), STATUS_INVALID);
        }
        assert_int_equal(tokens_check_window(&tokens, 10, 3, 35, &err), STATUS_INVALID);
        assert_non_null(strstr(err.msg, "token 35 at position 35,"));
        assert_int_equal(tokens_check_window(&tokens, 10, 3, 41, &err), STATUS_OK);
        tokens_close(&tokens);
    }
}

/* A window of more bytes than one read takes. */
TEST(test_long_window)
{
    struct tokens tokens;
    enum { LONG = 50000 };
    static uint32_t window[LONG + 1];
    for (uint32_t width = 2; width <= 4; width += 2) {
        write_set("long", width, 0, LONG + 4);
        open_set(&tokens, "long");
        assert_int_equal(largest_of(&tokens, LONG, 0, window), LONG);
        for (uint32_t i = 0; i <= LONG; i++) assert_int_equal(window[i], i);
        tokens_close(&tokens);
    }
}

/* A memory map would end the process by SIGBUS, or give zeros up to the end of the page. */
TEST(test_truncated_shard_is_an_error)
{
    struct tokens tokens;
    uint32_t window[9], largest;
    struct err err = {0};
    char path[128];
    write_set("cut", 2, 0, 8001);
    snprintf(path, sizeof path, "%s/cut_000000.bin", tmpdir);
    open_set(&tokens, "cut");
    assert_int_equal(truncate(path, 1024 + 8001 * 2 - 1), 0);
    assert_int_equal(largest_of(&tokens, 8, 998, window), 999 * 8);
    assert_int_equal(tokens_window(&tokens, 8, 999, window, &largest, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "cut_000000.bin was truncated while it was in use: restore it"));
    assert_int_equal(tokens_check(&tokens, 65000, UINT64_MAX, &err), STATUS_CORRUPT);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(tokens_window(&tokens, 8, 0, window, &largest, &err), STATUS_CORRUPT);
    tokens_close(&tokens);
}

/* `atoll prepare --force` replaces the shards of a running worker. */
TEST(test_replaced_shard_stays_readable)
{
    struct tokens tokens;
    uint32_t window[9];
    write_set("swap", 2, 0, 8001);
    open_set(&tokens, "swap");
    write_set("swap", 2, 0, 20);
    assert_int_equal(largest_of(&tokens, 8, 999, window), 8000);
    tokens_close(&tokens);
}

/* More shards than the soft limit of open files. */
TEST(test_many_shards_raise_the_limit_of_open_files)
{
    struct rlimit limit;
    struct tokens tokens;
    uint32_t window[2];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    write_set("many", 2, 2, 200);
    open_set(&tokens, "many");
    assert_int_equal(tokens.n_shards, 100);
    assert_int_equal(largest_of(&tokens, 1, 99, window), 199);
    tokens_close(&tokens);
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
