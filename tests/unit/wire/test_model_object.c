/* The description of a model: round trip, golden bytes, and refusal of every damage. */

#include "tests/lib/rigs/golden.h"
#include "tests/lib/test.h"
#include "wire/model_object.h"

static uint8_t buffer[4096];
static const uint8_t layout[] = {1, 0, 0, 0, 1, 0, 0, 0, 7};

static struct model_object sample(void)
{
    return (struct model_object){.layout = layout,
                                 .layout_size = sizeof layout,
                                 .config_json = "{\"model_type\": \"gpt2\"}\n",
                                 .settings = "run: {name: \"a\"}\n",
                                 .n_files = 2,
                                 .files = {{"tokenizer.json", 1 << 20}, {"frozen.safetensors", 5000000000}}};
}

static size_t encode(const struct model_object *m)
{
    size_t n = model_object_size(m);
    assert_true(n <= sizeof buffer);
    assert_int_equal(model_object_encode(m, buffer), STATUS_OK);
    return n;
}

TEST(test_description_is_restored)
{
    struct model_object m = sample(), got;
    size_t n = encode(&m);
    assert_int_equal(model_object_decode(&got, buffer, n), STATUS_OK);
    assert_int_equal(got.layout_size, sizeof layout);
    assert_memory_equal(got.layout, layout, sizeof layout);
    assert_string_equal(got.config_json, m.config_json);
    assert_string_equal(got.settings, m.settings);
    assert_int_equal(got.n_files, 2);
    assert_memory_equal(got.files, m.files, 2 * sizeof *m.files);
    for (size_t cut = 0; cut < n; cut++) assert_int_equal(model_object_decode(&got, buffer, cut), STATUS_CORRUPT);
    assert_int_equal(model_object_decode(&got, buffer, n + 1), STATUS_CORRUPT);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(model_object_decode(&got, buffer, n), STATUS_CORRUPT);
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* A follower writes these files: no name leads out of its folder. */
TEST(test_other_files_are_refused)
{
    static const char *const names[] = {"../config.json", "model.safetensors", "atoll.json", "/etc/passwd",
                                        "tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model_object m = sample(), got;
        snprintf(m.files[1].name, sizeof m.files[1].name, "%s", names[i]); /* the last one: twice */
        assert_int_equal(model_object_decode(&got, buffer, encode(&m)), STATUS_CORRUPT);
    }
    struct model_object m = sample();
    m.layout_size = 0;
    assert_int_equal(model_object_encode(&m, buffer), STATUS_LIMIT);
}

TEST(test_description_matches_golden_file)
{
    struct model_object m = sample();
    golden_check("protocol_v3/model_object", buffer, encode(&m));
}

TEST_MAIN(NULL, NULL)
