/* Settings of a run that continues: what may change, what may not, and that a change survives every restart. */

#include "common/base/mem.h"
#include "common/config/config_keys.h"
#include "coordinator/ledger/ledger.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/rigs/engine_view.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

static struct rig rig;

static void begin(const char *const *settings)
{
    rig_open_with(&rig, settings, 2, false);
}

static void join_again(void)
{
    for (int i = 0; i < 2; i++) {
        rig_join(&rig, i);
        if (rig.at_work[i]) rig_beat(&rig, i, WORKER_SENDING);
    }
}

/* Restarts with one change, or without (NULL). */
static void restart(const char *const *change, bool power, uint64_t draw)
{
    rig.changes = change;
    rig.n_changes = change ? 1 : 0;
    rig_restart(&rig, power, draw);
    rig.changes = NULL;
    rig.n_changes = 0;
}

static struct engine_summary summary(void)
{
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    return sum;
}

static uint64_t whole_run(const char *const *settings)
{
    begin(settings);
    rig_play(&rig, NULL);
    uint64_t theta = rig_theta_hash(&rig);
    assert_true(summary().done);
    rig_close(&rig);
    return theta;
}

/* --- a longer run ------------------------------------------------------------------------------------------------- */

/* H is 2. The last round of 5 steps has one step, and the next one begins after it. */
TEST(test_a_longer_run_takes_all_its_steps)
{
    static const struct {
        const char *at_first, *then;
        uint32_t rounds, steps;
    } cases[] = {{"train.max_steps=6", "train.max_steps=10", 5, 10},
                 {"train.max_steps=5", "train.max_steps=9", 5, 9},
                 {"train.max_steps=5", "train.max_steps=6", 4, 6},
                 {"train.max_steps=3", "train.max_steps=4", 3, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const settings[] = {"coordinator.min_workers=2", "inner.schedule=constant", "train.eval_every=1",
                                        cases[i].at_first, NULL};
        begin(settings);
        rig_play(&rig, NULL);
        assert_true(summary().done);
        restart(&cases[i].then, false, 0);
        assert_false(engine_done(rig.engine));
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_CHANGE), 1);
        join_again();
        rig_play(&rig, NULL);
        assert_true(summary().done);
        assert_int_equal(summary().rounds, cases[i].rounds);
        assert_int_equal(summary().steps, cases[i].steps);
        assert_int_equal(summary().worker_steps, 2 * cases[i].steps);
        assert_true(summary().val_tokens > 0);
        restart(NULL, false, 0);
        assert_int_equal(summary().steps, cases[i].steps);
        rig_close(&rig);
    }
}

/* --- restarts ----------------------------------------------------------------------------------------------------- */

static bool power;
static uint64_t draws;

static void restart_between(void)
{
    restart(NULL, power, draws++);
    join_again();
}

/* The settings of any time of the run still continue it: the first command, and a config.yaml that a crash left old. */
TEST(test_earlier_settings_continue_the_run)
{
    static const char *const first[] = {"inner.learning_rate=0.001"}, *const second[] = {"inner.learning_rate=0.002"};
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    begin(settings);
    double original = rig.config.inner.learning_rate;
    restart(first, false, 0);
    restart(second, false, 0);
    for (int i = 0; i < 3; i++) {
        rig.config.inner.learning_rate = i == 0 ? original : i == 1 ? 0.001 : 0.002;
        restart(NULL, true, 1);
        assert_true(engine_config(rig.engine)->inner.learning_rate == 0.002);
    }
    rig.config.inner.learning_rate = 0.003;
    rig_stop(&rig);
    rig_start_fails(&rig, STATUS_INVALID,
                    "the run has other values: inner.learning_rate (0.003 here, 0.002 in the run): write "
                    "--change KEY=VALUE to change one from here on, or leave CONFIG and these settings "
                    "out to continue as before");
    rig.config.inner.learning_rate = original;
    restart(NULL, false, 0);
    rig_close(&rig);
}

/* Keys that may differ at any start do, and are no change. */
TEST(test_other_keys_follow_each_start)
{
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    struct msg m;
    begin(settings);
    rig.config.checkpoint.every = 7;
    snprintf(rig.config.train.eval_every, sizeof rig.config.train.eval_every, "3");
    snprintf(rig.config.run.name, sizeof rig.config.run.name, "other");
    restart(NULL, false, 0);
    assert_int_equal(engine_config(rig.engine)->checkpoint.every, 7);
    rig_hello(&rig, 0);
    rig_expect(&rig, 0, MSG_CONFIG, &m);
    assert_non_null(strstr(m.config.text, "name: \"other\""));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_CHANGE), 0);
    rig_close(&rig);
}

static enum status start_with(uint32_t max_steps, struct err *err)
{
    rig_stop(&rig);
    rig.config.train.max_steps = max_steps;
    enum status status = rig_start(&rig, err);
    if (status != STATUS_OK) rig.engine = NULL;
    return status;
}

/* CONFIG prolongs a run that is over, too. Kills change no bit of it. */
TEST(test_a_longer_config_prolongs_the_run)
{
    const char *const brief[] = {"coordinator.min_workers=2", "inner.schedule=constant", "train.max_steps=6", NULL};
    const char *const whole[] = {"coordinator.min_workers=2", "inner.schedule=constant", "train.max_steps=10", NULL};
    struct err err = {0};
    uint64_t theta = whole_run(whole);
    for (power = false, draws = 1; draws < 100; power = true, draws = 100) {
        begin(brief);
        rig_play(&rig, NULL);
        assert_true(summary().done);
        rig.config.train.max_steps = 10;
        restart(NULL, power, draws);
        assert_false(engine_done(rig.engine));
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_CHANGE), 1);
        join_again();
        rig_play(&rig, restart_between);
        assert_true(summary().done);
        assert_int_equal(summary().steps, 10);
        assert_true(rig_theta_hash(&rig) == theta);
        rig.config.train.max_steps = 6; /* the first command */
        restart(NULL, false, 0);
        assert_int_equal(summary().steps, 10);
        assert_int_equal(start_with(8, &err), STATUS_INVALID);
        assert_string_equal(err.msg, "train.max_steps: 8 is below the run's 10: it can only grow; leave it out to "
                                     "continue as before");
        rig.config.inner.learning_rate *= 2;
        assert_int_equal(start_with(12, &err), STATUS_INVALID);
        assert_non_null(strstr(err.msg, "write --change KEY=VALUE"));
        rig.config.inner.learning_rate /= 2;
        assert_int_equal(start_with(10, &err), STATUS_OK);
        rig_close(&rig);
    }
}

TEST(test_impossible_changes_are_refused)
{
    static const struct {
        const char *change, *line;
    } cases[] = {
        {"train.sync_every=5", "--change: train.sync_every stays as it is for the whole run: start a new run from a "
                               "checkpoint of this one (model.init_from)"},
        {"checkpoint.every=5",
         "--change: checkpoint.every may have another value at any start: write --checkpoint.every=5"},
        {"coordinator.min_workers=5",
         "--change: coordinator.min_workers may have another value at any start: write --coordinator.min_workers=5"},
        {"train.max_steps=5", "--change: train.max_steps: 5 is below the run's 6: it can only rise"},
        {"inner.learning_rate=-1",
         "--change inner.learning_rate=-1: command line: inner.learning_rate: \"-1\" is out of range; allowed: 0 to "
         "1000"},
        {"inner.lr=1", "--change inner.lr=1: unknown option --inner.lr; the nearest is --inner.learning_rate"},
        {"inner.learning_rate", "--change inner.learning_rate: --inner.learning_rate needs a value: write "
                                "--inner.learning_rate=VALUE"},
    };
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    begin(settings);
    uint64_t theta = rig_theta_hash(&rig);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig_stop(&rig);
        rig.changes = &cases[i].change;
        rig.n_changes = 1;
        rig_start_fails(&rig, STATUS_INVALID, cases[i].line);
        restart(NULL, false, 0);
        assert_true(rig_theta_hash(&rig) == theta);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_CHANGE), 0);
    }
    rig_close(&rig);
}

/* --- deltas from before ------------------------------------------------------------------------------------------- */

/* A delta that was trained at the old rate arrives after the rate fell to a hundredth: it is honest. */
TEST(test_a_delta_of_the_old_rate_is_taken)
{
    static const char *const lower[] = {"inner.learning_rate=0.001"};
    const char *const settings[] = {"coordinator.min_workers=2", "inner.learning_rate=1", "train.max_steps=100",
                                    "inner.optimizer=adamw",     "codec.up=int8:16",      NULL};
    begin(settings);
    rig_assigned(&rig, 0);
    rig_assigned(&rig, 1);
    uint64_t version = engine_version(rig.engine, 0);
    restart(lower, false, 0);
    for (int i = 0; i < 2; i++) {
        rig_join(&rig, i);
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, i, f, 10).type, MSG_CREDIT);
    }
    assert_int_equal(engine_version(rig.engine, 0), version + 1);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0);
    rig_close(&rig);
}

/* async: the budget of steps follows coordinator.min_workers. A lower one at a restart must not contradict the log. */
TEST(test_async_takes_fewer_workers_at_a_restart)
{
    const char *const settings[] = {"train.method=async", "coordinator.min_workers=2",
                                    "train.max_steps=6",  "checkpoint.every=100",
                                    "outer.grace=0",      NULL};
    begin(settings);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 2; i++) {
            rig_assigned(&rig, i);
            for (uint32_t f = 0; f < 2; f++) rig_deliver(&rig, i, f, 1);
            rig_catch_up(&rig, i);
        }
    uint64_t theta = rig_theta_hash(&rig);
    rig.config.coordinator.min_workers = 1;
    restart(NULL, false, 0);
    assert_true(rig_theta_hash(&rig) == theta);
    rig_close(&rig);
}

/* The settings of a release without outer.state mean fp32, and the run continues so. */
TEST(test_settings_without_outer_state_mean_fp32)
{
    static const struct {
        const char *text;
        enum outer_form state;
    } cases[] = {{"train: {method: diloco}\n", OUTER_FP32},
                 {"outer: {state: fp32}\n", OUTER_FP32},
                 {"outer: {state: bf16}\n", OUTER_BF16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config;
        struct config_sources sources;
        struct err err = {0};
        config_defaults(&config, &sources);
        struct ledger ledger = {.config = &config};
        struct record_run run = {.config_text = cases[i].text, .config_size = strlen(cases[i].text)};
        assert_int_equal(ledger_set_run(&ledger, &run, &err), STATUS_OK);
        assert_int_equal(config.outer.state, cases[i].state);
        mem_free(ledger.config_text);
    }
}

TEST(test_outer_state_stays_for_the_whole_run)
{
    static const char *const change[] = {"outer.state=bf16"};
    const char *const settings[] = {"codec.up=int8:16", "codec.down=int8:16", "outer.state=fp32",
                                    "coordinator.min_workers=2", NULL};
    begin(settings);
    rig_stop(&rig);
    rig.config.outer.state = OUTER_BF16;
    rig_start_fails(&rig, STATUS_INVALID, "outer.state (bf16 here, fp32 in the run)");
    rig.config.outer.state = OUTER_FP32;
    rig.changes = change;
    rig.n_changes = 1;
    rig_start_fails(&rig, STATUS_INVALID, "--change: outer.state stays as it is for the whole run");
    restart(NULL, false, 0);
    rig_close(&rig);
}

/* The journal of the release before: its settings hold keys that are gone, with the values that every run has now. */
TEST(test_settings_with_removed_keys_are_read)
{
    static char text[CONFIG_TEXT_MAX];
    for (int i = 0; i <= config_removed_count; i++) {
        const struct config_removed *other = i < config_removed_count ? &config_removed[i] : NULL;
        struct config config;
        struct config_sources sources;
        struct err err = {0};
        config_defaults(&config, &sources);
        size_t n = (size_t)snprintf(text, sizeof text, "train:\n  sync_every: 7\n");
        const char *section = "train";
        for (int k = 0; k < config_removed_count; k++) {
            const struct config_removed *r = &config_removed[k];
            if (strcmp(section, r->section) != 0) n += (size_t)snprintf(text + n, sizeof text - n, "%s:\n", r->section);
            section = r->section;
            n += (size_t)snprintf(text + n, sizeof text - n, "  %s: \"%s\"\n", r->key, r == other ? "9" : r->same);
        }
        struct ledger ledger = {.config = &config};
        struct record_run run = {.config_text = text, .config_size = n};
        assert_int_equal(ledger_set_run(&ledger, &run, &err), other ? STATUS_UNSUPPORTED : STATUS_OK);
        assert_int_equal(config.train.sync_every, other ? 30 : 7);
        if (other) assert_non_null(strstr(err.msg, other->advice));
        if (other) assert_non_null(strstr(err.msg, "continue with the release that began it"));
        mem_free(ledger.config_text);
    }
}

TEST_MAIN(NULL, NULL)
