/* Counters to windows: each epoch shows every window once, in its own order, and rows hold the contents of their
 * window. */

#include "tests/lib/test.h"
#include "worker/replica/batch.h"

enum { SEQ = 4, N_TOKENS = 403, N_WINDOWS = 100 };

static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};

static int fill_data(void **state)
{
    (void)state;
    for (int i = 0; i < N_TOKENS; i++) {
        bytes[2 * i] = (uint8_t)i;
        bytes[2 * i + 1] = (uint8_t)(i >> 8);
    }
    return 0;
}

static struct batch_source source(uint32_t vocab, bool in_order)
{
    struct batch_source s;
    assert_int_equal(batch_source_init(&s, &data, SEQ, vocab, 7, in_order, NULL), STATUS_OK);
    return s;
}

TEST(test_epoch_shows_every_window_once)
{
    struct batch_source s = source(1000, false);
    assert_int_equal(s.n_samples, N_WINDOWS);
    int moved = 0;
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint8_t seen[N_WINDOWS] = {0};
        for (uint64_t k = 0; k < N_WINDOWS; k++) {
            uint64_t window = batch_window(&s, epoch * N_WINDOWS + k);
            assert_true(window < N_WINDOWS);
            assert_int_equal(seen[window]++, 0);
            moved += epoch && window != batch_window(&s, k);
        }
    }
    assert_true(moved > N_WINDOWS); /* later epochs have another order */
}

TEST(test_rows_hold_tokens_and_targets)
{
    struct batch_source s = source(1000, false);
    uint64_t counters[2] = {3, 250};
    int32_t tokens[3 * SEQ], targets[3 * SEQ];
    uint32_t scratch[SEQ + 1];
    assert_int_equal(batch_fill(&s, counters, 2, 3, tokens, targets, scratch, NULL), STATUS_OK);
    for (int row = 0; row < 2; row++) {
        int32_t first = (int32_t)batch_window(&s, counters[row]) * SEQ;
        for (int t = 0; t < SEQ; t++) {
            assert_int_equal(tokens[row * SEQ + t], first + t);
            assert_int_equal(targets[row * SEQ + t], first + t + 1);
        }
    }
    for (int t = 0; t < SEQ; t++) {
        assert_int_equal(tokens[2 * SEQ + t], 0);
        assert_int_equal(targets[2 * SEQ + t], -1);
    }
}

TEST(test_in_order_keeps_order)
{
    struct batch_source s = source(1000, true);
    for (uint64_t k = 0; k < N_WINDOWS; k++) assert_int_equal(batch_window(&s, k), k);
}

TEST(test_token_outside_vocabulary_is_refused)
{
    struct err err = {0};
    uint64_t counter = N_WINDOWS - 1; /* tokens 396 .. 400 */
    int32_t tokens[SEQ], targets[SEQ];
    uint32_t scratch[SEQ + 1];
    struct batch_source s = source(401, true);
    assert_int_equal(batch_fill(&s, &counter, 1, 1, tokens, targets, scratch, &err), STATUS_OK);
    s = source(400, true); /* the last target is too large */
    assert_int_equal(batch_fill(&s, &counter, 1, 1, tokens, targets, scratch, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "token 400 at position 400, but model.vocab_size is 400"));
}

TEST(test_too_short_data_are_refused)
{
    struct batch_source s;
    struct err err = {0};
    assert_int_equal(batch_source_init(&s, &data, N_TOKENS, 1000, 7, false, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "block_size"));
    assert_int_equal(batch_source_init(&s, &data, N_TOKENS - 1, 1000, 7, false, &err), STATUS_OK);
    assert_int_equal(s.n_samples, 1);
}

TEST_MAIN(fill_data, NULL)
