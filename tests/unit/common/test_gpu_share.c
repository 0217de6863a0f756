/* How the workers of one machine share its GPUs. */

#include "common/config/config_keys.h"
#include "common/config/gpu_share.h"
#include "tests/lib/test.h"

enum { MOST = 12 };

static struct gpu_share deal(uint32_t workers, uint32_t index, uint32_t gpus, uint32_t ranks, uint32_t batch)
{
    struct gpu_share s = {.workers = workers, .index = index};
    if (!gpu_share_deal(&s, gpus, ranks, batch)) s.gpus = 0;
    return s;
}

/* For any numbers: each worker gets consecutive GPUs, all the same count, with equally many sharers per GPU. */
static void check(uint32_t workers, uint32_t gpus, uint32_t ranks, uint32_t batch)
{
    uint32_t on[MOST] = {0}, idle = 0;
    struct gpu_share all[MOST];
    for (uint32_t i = 0; i < workers; i++) {
        struct gpu_share *s = &all[i];
        *s = deal(workers, i, gpus, ranks, batch);
        assert_int_equal(s->gpus, ranks <= gpus ? gpus : 0);
        if (!s->gpus) continue;
        assert_true(s->ranks > 0 && s->first + s->ranks <= gpus && s->ranks == all[0].ranks);
        assert_true(ranks ? s->ranks == ranks : batch % s->ranks == 0);
        for (uint32_t g = 0; g < s->ranks; g++) on[s->first + g]++;
    }
    if (!all[0].gpus) return;
    for (uint32_t g = 0; g < gpus; g++) idle += on[g] == 0;
    for (uint32_t i = 0; i < workers; i++) {
        assert_int_equal(all[i].idle, idle);
        for (uint32_t g = 0; g < all[i].ranks; g++) assert_int_equal(on[all[i].first + g], all[i].sharers);
        if (workers * all[i].ranks <= gpus) assert_int_equal(all[i].sharers, 1);
        if (!ranks && !batch && workers <= gpus) assert_int_equal(idle, gpus % workers);
        if (workers >= gpus && !ranks) assert_int_equal(idle, 0);
    }
}

TEST(test_every_gpu_is_dealt_evenly)
{
    for (uint32_t workers = 1; workers < MOST; workers++)
        for (uint32_t gpus = 1; gpus < MOST; gpus++)
            for (uint32_t ranks = 0; ranks < MOST; ranks++)
                for (uint32_t batch = 0; batch < MOST; batch++) check(workers, gpus, ranks, batch);
    assert_false(gpu_share_deal(&(struct gpu_share){0}, 4, 0, 4)); /* set by the user */
    assert_int_equal(deal(2, 0, 0, 0, 4).gpus, 0);
}

TEST(test_workers_get_expected_gpus)
{
    static const struct {
        uint32_t workers, index, gpus, ranks, batch, first, has, sharers;
    } cases[] = {
        {2, 0, 4, 0, 16, 0, 2, 1}, {2, 1, 4, 0, 16, 2, 2, 1},                            /* equal parts */
        {4, 0, 2, 0, 16, 0, 1, 2}, {4, 1, 2, 0, 16, 1, 1, 2}, {4, 2, 2, 0, 16, 0, 1, 2}, /* in turn */
        {3, 1, 2, 0, 16, 1, 1, 1}, {3, 2, 2, 0, 16, 0, 1, 2}, /* uneven: one has a GPU alone */
        {3, 2, 4, 0, 16, 2, 1, 1},                            /* the fourth is idle */
        {2, 1, 6, 0, 16, 3, 2, 1}, /* 3 each would not divide 16, but each worker stays in its half */
        {2, 1, 6, 0, 3, 3, 3, 1},  {2, 1, 8, 1, 16, 4, 1, 1}, {3, 2, 4, 2, 16, 0, 2, 2}, {1, 0, 8, 0, 16, 0, 8, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gpu_share s = deal(cases[i].workers, cases[i].index, cases[i].gpus, cases[i].ranks, cases[i].batch);
        assert_int_equal(s.first, cases[i].first);
        assert_int_equal(s.ranks, cases[i].has);
        assert_int_equal(s.sharers, cases[i].sharers);
    }
}

struct share_result {
    struct config config;
    enum status status;
    struct err err;
    struct gpu_share share;
};

static struct share_result take_share(uint32_t workers, uint32_t index, const char *devices, uint32_t gpus,
                                      uint32_t ranks)
{
    static struct share_result t;
    struct config_sources sources;
    char setting[96];
    t = (struct share_result){.share = {.workers = workers, .index = index}};
    config_defaults(&t.config, &sources);
    snprintf(setting, sizeof setting, "train.devices=%s", devices);
    assert_int_equal(config_set(&t.config, &sources, setting, CONFIG_FLAG, &t.err), STATUS_OK);
    snprintf(setting, sizeof setting, "train.ranks=%u", ranks);
    if (ranks) assert_int_equal(config_set(&t.config, &sources, setting, CONFIG_FLAG, &t.err), STATUS_OK);
    uint32_t listed = gpu_share_count_listed(devices);
    t.status = gpu_share_apply(&t.share, listed ? listed : gpus, 0, &t.config, &sources, &t.err);
    return t;
}

TEST(test_settings_select_devices)
{
    static const struct {
        uint32_t workers, index;
        const char *devices;
        uint32_t gpus, ranks;
        const char *mine;
        uint32_t has;
    } cases[] = {
        {2, 1, "auto", 4, 0, "cuda:2,3", 2},
        {2, 0, "cuda", 4, 0, "cuda:0,1", 2},
        {2, 1, "cuda:3,5,0,1", 0, 0, "cuda:0,1", 2},
        {2, 1, "cuda:3,1", 0, 0, "cuda:1", 1},
        {5, 3, "cuda:3,1", 0, 0, "cuda:1", 1},
        {2, 1, "cuda:0,1,2,3", 0, 4, "cuda:0,1,2,3", 4}, /* the user wants all GPUs */
        {2, 1, "cuda", 1, 0, "cuda", 1},                 /* one GPU: unchanged, and auto may fall back to the CPU */
        {2, 1, "auto", 0, 0, "auto", 1},                 /* none */
        {2, 1, "cpu", 0, 0, "cpu", 1},
        {2, 1, "auto", 2, 3, "auto", 3}, /* threads become ranks */
        {0, 0, "cuda", 4, 0, "cuda", 1}, /* set by the user */
        {0, 0, "cuda:0,1", 0, 0, "cuda:0,1", 1},
        {1, 0, "cuda:0,1", 0, 0, "cuda:0,1", 1}, /* the ranks follow from the list */
        {1, 0, "cuda", 4, 1, "cuda:0", 1},
        {1, 0, "auto", 2, 0, "cuda:0,1", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct share_result t =
            take_share(cases[i].workers, cases[i].index, cases[i].devices, cases[i].gpus, cases[i].ranks);
        if (t.status != STATUS_OK) fail_msg("%s", t.err.msg);
        assert_string_equal(t.config.train.devices, cases[i].mine);
        assert_int_equal(t.config.train.ranks, cases[i].has);
    }
    struct share_result t = take_share(2, 0, "auto", 64, 32);
    assert_int_equal(t.status, STATUS_INVALID);
    assert_non_null(strstr(t.err.msg, "32 GPUs are too many for one worker"));
    assert_int_equal(take_share(2, 1, "cuda:0,1,0", 0, 0).status, STATUS_INVALID);
    assert_int_equal(take_share(2, 1, "cuda:0,,1", 0, 0).status, STATUS_INVALID);
}

TEST(test_invalid_environment_is_refused)
{
    static const struct {
        const char *workers, *index, *refused; /* NULL: accepted */
        uint32_t n, i;
    } cases[] = {
        {"", "", NULL, 0, 0},
        {"3", "2", NULL, 3, 2},
        {"3", "", NULL, 3, 0},
        {"", "7", NULL, 0, 0},
        {"4294967295", "4294967294", NULL, UINT32_MAX, UINT32_MAX - 1},
        {"3", "3", "ATOLL_WORKER_INDEX=3: expected the number of a worker, 0 to 2", 7, 7},
        {"x", "1", "ATOLL_WORKERS_HERE=x: expected a number of workers, 0 to 4294967295", 7, 7},
        {"3x", "1", "ATOLL_WORKERS_HERE=3x: expected", 7, 7},
        {"-3", "1", "ATOLL_WORKERS_HERE=-3: expected", 7, 7},
        {" 3", "1", "ATOLL_WORKERS_HERE= 3: expected", 7, 7},
        {"4294967296", "1", "ATOLL_WORKERS_HERE=4294967296: expected", 7, 7},
        {"18446744073709551617", "1", "ATOLL_WORKERS_HERE=18446744073709551617: expected", 7, 7}, /* 2^64 + 1 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gpu_share s = {.workers = 7, .index = 7};
        struct err err = {0};
        setenv(WORKERS_HERE_ENV, cases[i].workers, 1);
        setenv(WORKER_INDEX_ENV, cases[i].index, 1);
        assert_int_equal(gpu_share_from_env(&s, &err), cases[i].refused ? STATUS_INVALID : STATUS_OK);
        if (cases[i].refused && !strstr(err.msg, cases[i].refused)) fail_msg("%s", err.msg);
        assert_int_equal(s.workers, cases[i].n);
        assert_int_equal(s.index, cases[i].i);
    }
    unsetenv(WORKERS_HERE_ENV);
    unsetenv(WORKER_INDEX_ENV);
}

TEST(test_text_describes_share)
{
    char text[128];
    struct gpu_share s = deal(2, 1, 4, 0, 16);
    assert_string_equal(gpu_share_text(&s, "cuda:2,3", text, sizeof text),
                        "2 workers on 4 GPUs: this one has cuda:2,3");
    s = deal(4, 1, 1, 0, 16);
    assert_string_equal(gpu_share_text(&s, "it", text, sizeof text),
                        "4 workers on 1 GPU: this one has it, shared with 3 more");
}

TEST_MAIN(NULL, NULL)
