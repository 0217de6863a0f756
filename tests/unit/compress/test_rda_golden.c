/* Merges by rda against tests/golden/rda_merges.csv (make_rda_golden.py), of deltas and of parameters. */
#include <math.h>

#include "common/tensor/layout.h"
#include "compress/merge.h"
#include "tests/lib/test.h"

enum { SIZE = 13, WORKERS = 5, MERGES = 12 };

struct line {
    uint32_t n;
    uint64_t tokens[WORKERS];
    float deltas[WORKERS][SIZE];
    double want[SIZE];
};

static void open_layout(struct layout *layout)
{
    static const struct {
        const char *name;
        uint64_t size;
    } tensors[] = {{"wte.weight", 4}, {"h.0.attn.weight", 6}, {"h.0.attn.bias", 2}, {"ln_f.weight", 1}};
    layout_init(layout);
    for (int t = 0; t < 4; t++)
        assert_int_equal(layout_add(layout, tensors[t].name, 1, &tensors[t].size, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(layout_split(layout, 1), STATUS_OK);
}

static double number_after(char **at)
{
    char *comma = strchr(*at, ',');
    assert_non_null(comma);
    *at = comma + 1;
    return strtod(*at, NULL);
}

static void read_line(struct line *l, char *at)
{
    l->n = (uint32_t)strtoul(at, NULL, 10);
    assert_in_range(l->n, 2, WORKERS);
    (void)number_after(&at);
    char *tokens = at;
    for (uint32_t i = 0; i < l->n; i++) l->tokens[i] = strtoull(tokens, &tokens, 10);
    for (uint32_t i = 0; i < l->n; i++)
        for (int k = 0; k < SIZE; k++) l->deltas[i][k] = (float)number_after(&at);
    for (int k = 0; k < SIZE; k++) l->want[k] = number_after(&at);
}

/* theta NULL: the payloads are deltas, otherwise theta minus the deltas. */
static void check(const struct line *l, struct layout *layout, struct codec *codec, const float *theta)
{
    static const struct config config = {.merge.rule = MERGE_RDA};
    struct merger m;
    struct merge merge;
    struct merge_delta deltas[WORKERS];
    float values[WORKERS][SIZE], acc[SIZE];
    assert_int_equal(merger_init(&m, &config, theta != NULL, NULL, merge_part_max(codec)), STATUS_OK);
    assert_int_equal(merge_start(&merge, &m, layout, 0, codec, theta, acc, l->tokens, l->n), STATUS_OK);
    assert_true(merge_needs_all(&m, codec) && merge_needs_norms(&merge));
    for (uint32_t i = 0; i < l->n; i++) {
        for (int k = 0; k < SIZE; k++) values[i][k] = theta ? theta[k] - l->deltas[i][k] : l->deltas[i][k];
        deltas[i] = (struct merge_delta){
            .payload = (const uint8_t *)values[i], .size = sizeof values[i], .tokens = l->tokens[i]};
        assert_int_equal(merge_open(codec, &deltas[i]), STATUS_OK);
    }
    merge_compute_norms(&merge, deltas, l->n);
    merge_add(&merge, deltas, l->n);
    for (int k = 0; k < SIZE; k++) {
        double got = theta ? (double)theta[k] - (double)acc[k] : (double)acc[k];
        if (!(fabs(got - l->want[k]) < 1e-6)) fail_msg("element %d: %.9g, not %.9g", k, got, l->want[k]);
    }
    merger_finish(&m);
}

TEST(test_merges_match_the_reference)
{
    static struct line l;
    struct layout layout;
    struct codec *codec;
    struct err err = {0};
    char text[2048];
    float theta[SIZE];
    int merges = 0;
    FILE *file = fopen("tests/golden/rda_merges.csv", "r");
    assert_non_null(file);
    open_layout(&layout);
    assert_int_equal(codec_create_for_fragment(&codec, "fp32", &layout, 0, &err), STATUS_OK);
    for (int k = 0; k < SIZE; k++) theta[k] = 0.1f * (float)(k % 5) - 0.2f;
    for (; fgets(text, sizeof text, file); merges++) {
        read_line(&l, text);
        check(&l, &layout, codec, NULL);
        check(&l, &layout, codec, theta);
    }
    assert_int_equal(merges, MERGES);
    fclose(file);
    codec_destroy(codec);
    layout_finish(&layout);
}

TEST_MAIN(NULL, NULL)
