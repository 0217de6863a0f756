/* The head of an initial model: round trip, golden bytes, and refusal of every damage. Hostile heads as the engine sees
 * them: tests/unit/coordinator/engine/test_engine_initial.c. */

#include "tests/lib/rigs/golden.h"
#include "tests/lib/test.h"
#include "wire/initial.h"

static uint8_t buffer[2 * INITIAL_HEAD_MAX];

static struct initial_head sample(void)
{
    return (struct initial_head){
        .n_files = 3, .files = {{"config.json", 700}, {"tokenizer.json", 1 << 20}, {INITIAL_MODEL, 500000000}}};
}

TEST(test_head_is_restored)
{
    struct initial_head h = sample(), got;
    struct err err = {0};
    size_t n = initial_head_encode(&h, buffer);
    assert_int_equal(n, initial_head_size(&h));
    assert_int_equal(initial_total(&h), n + 700 + (1 << 20) + 500000000);
    assert_int_equal(initial_head_decode(&got, buffer, n + 100, &err), STATUS_OK); /* the first file follows */
    assert_memory_equal(&got, &h, sizeof h);
    for (size_t cut = 0; cut < n; cut++) assert_int_equal(initial_head_decode(&got, buffer, cut, &err), STATUS_CORRUPT);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(initial_head_decode(&got, buffer, n, &err), STATUS_CORRUPT);
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(test_largest_head_fits)
{
    struct initial_head h = {.n_files = INITIAL_FILES_MAX}, got;
    for (uint32_t i = 0; i < h.n_files; i++) {
        memset(h.files[i].name, 'a', sizeof h.files[i].name - 1);
        h.files[i].size = 1;
    }
    size_t n = initial_head_encode(&h, buffer);
    assert_true(n <= INITIAL_HEAD_MAX);
    struct err err = {0};
    assert_int_equal(initial_head_decode(&got, buffer, n, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "a name that no model folder has"));
}

TEST(test_head_matches_golden_file)
{
    struct initial_head h = sample();
    size_t n = initial_head_encode(&h, buffer);
    golden_check("protocol_v3/initial_head", buffer, n);
}

TEST_MAIN(NULL, NULL)
