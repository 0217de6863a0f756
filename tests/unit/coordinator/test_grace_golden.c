/* Outer steps of groups of deltas against tests/golden/grace_steps.csv (make_grace_golden.py). */
#include <math.h>

#include "coordinator/outer/outer_state.h"
#include "tests/lib/test.h"

enum { SIZE = 4 };

static void open_outer(struct outer_state *outer, struct config *config, struct layout *layout)
{
    static const char *const settings[] = {"train.method=async",  "outer.learning_rate=0.7", "outer.momentum=0.9",
                                           "train.sync_every=20", "codec.up=fp32",           "codec.down=fp32"};
    struct config_sources sources;
    struct err err = {0};
    uint64_t shape = SIZE;
    config_defaults(config, &sources);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_int_equal(config_set(config, &sources, settings[i], CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    layout_init(layout);
    assert_int_equal(layout_add(layout, "t", 1, &shape, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(layout_split(layout, 1), STATUS_OK);
    assert_int_equal(outer_state_init(outer, config, layout, &err), STATUS_OK);
    assert_int_equal(outer_state_fill(outer, NULL, &err), STATUS_OK);
}

static double number_after(char **at)
{
    char *comma = strchr(*at, ',');
    assert_non_null(comma);
    *at = comma + 1;
    return strtod(*at, NULL);
}

TEST(test_groups_match_the_reference)
{
    static struct outer_state outer;
    struct config config;
    struct layout layout;
    char line[512];
    unsigned groups = 0;
    FILE *file = fopen("tests/golden/grace_steps.csv", "r");
    assert_non_null(file);
    open_outer(&outer, &config, &layout);
    for (; fgets(line, sizeof line, file); groups++) {
        char *at = line;
        struct outer_step step = {.version = groups + 1, .round = groups, .members = 4};
        size_t size = 0;
        uint32_t deltas = (uint32_t)number_after(&at);
        (void)number_after(&at);
        char *delta = at;
        for (uint32_t i = 0; i < deltas; i++) {
            uint64_t steps = strtoull(delta, &delta, 10), staleness = strtoull(delta + 1, &delta, 10);
            step.steps += steps;
            step.fresh += pow(1 + (double)staleness, -0.5);
        }
        for (int i = 0; i < SIZE; i++) outer.acc[i] = (float)number_after(&at);
        assert_int_equal(outer_state_step(&outer, &step, 0, &size), STATUS_OK);
        for (int i = 0; i < SIZE; i++) {
            double want = number_after(&at);
            if (!(fabs((double)outer.theta[i] - want) < 1e-6))
                fail_msg("group %u: %.9g, not %.9g", groups, (double)outer.theta[i], want);
        }
    }
    assert_int_equal(groups, 13);
    fclose(file);
    outer_state_finish(&outer);
    layout_finish(&layout);
}

TEST_MAIN(NULL, NULL)
