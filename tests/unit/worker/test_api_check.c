/* The library checks the caller's texts and pointers at the call, and refuses a worker of another process. */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct atoll_error error;
static char long_text[1 << 15];

static int stop(void **state)
{
    api_rig_stop();
    return tmpdir_remove(state);
}

static void expect(enum atoll_status status, const char *what)
{
    if (status != ATOLL_INVALID || !strstr(error.text, what)) print_error("%d: %s\n", (int)status, error.text);
    assert_int_equal(status, ATOLL_INVALID);
    assert_non_null(strstr(error.text, what));
    for (const char *p = error.text; *p; p++) assert_true(*p >= 0x20 && *p != 0x7f); /* these messages are ASCII */
    error = (struct atoll_error){.status = ATOLL_OK};
}

static void refuse(const struct atoll_options *o, const char *what)
{
    struct atoll *a;
    expect(atoll_open(&a, o, &error), what);
    assert_null(a);
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

/* Texts of join, name and dir: tests/python/test_numpy_run.py. */
TEST_WITH(test_open_checks_texts, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    const struct atoll_options good = api_rig_options(0, "w0");
    memset(long_text, 'x', sizeof long_text - 1);
    struct atoll_options o = good;
    char e40[81] = "", e31[63] = "";
    for (int i = 0; i < 40; i++) memcpy(e40 + 2 * i, "\xc3\xa9", 3);
    for (int i = 0; i < 31; i++) memcpy(e31 + 2 * i, "\xc3\xa9", 3);
    o.devices = "a\x1b[2Jb";
    refuse(&o, "options.devices");
    o.devices = e40;
    refuse(&o, "options.devices is longer than 63 bytes");
    struct atoll *a;
    o.devices = e31;
    assert_int_equal(atoll_open(&a, &o, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN); /* the coordinator takes it */
    atoll_close(a);
    struct atoll_tokens *t;
    struct atoll_data data;
    expect(atoll_tokens_open(&t, "x\x1b[2J*.bin", 4, &data, &error), "the pattern of token shards");
    expect(atoll_tokens_open(&t, long_text, 4, &data, &error), "the pattern of token shards");
}

/* --- NULL --------------------------------------------------------------------------------------------------------- */

static size_t save_null(void *ctx, struct atoll_part *parts, size_t cap)
{
    (void)ctx;
    assert_true(cap > 0);
    parts[0] = (struct atoll_part){NULL, 8};
    return 1;
}

static int load_any(void *ctx, const void *data, size_t size)
{
    (void)ctx, (void)data, (void)size;
    return 0;
}

TEST_WITH(test_open_refuses_null, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    const struct atoll_options good = api_rig_options(0, "w0");
    struct atoll *a;
    expect(atoll_open(NULL, &good, &error), "atoll_open");
    expect(atoll_open(&a, NULL, &error), "options is NULL");
    assert_int_equal(atoll_open(NULL, NULL, NULL), ATOLL_INVALID);
    struct atoll_options o = good;
    o.files = NULL, o.n_files = 3;
    refuse(&o, "options.files is NULL");
    struct atoll_file file = {.name = "config.json", .data = NULL, .size = 5};
    o.files = &file, o.n_files = 1;
    refuse(&o, "the data of config.json is NULL");
    file.data = "{}", file.size = SIZE_MAX;
    refuse(&o, "options.files has more than");
    file.name = NULL, file.size = 2;
    refuse(&o, "options.files");
    o = good, o.n_frozen = 2;
    refuse(&o, "options.frozen is NULL, but options.n_frozen is 2");
    struct atoll_frozen frozen = {.name = "base", .dtype = NULL, .ndim = 1, .shape = {3}, .bytes = 3};
    o.frozen = &frozen, o.n_frozen = 1;
    refuse(&o, "frozen tensor 0, 'base'");
    frozen.dtype = "U8", frozen.name = NULL;
    refuse(&o, "frozen tensor 0, ''");
    frozen.name = "base", frozen.ndim = ATOLL_DIMS_MAX + 1;
    refuse(&o, "frozen tensor 0, 'base'");
    o.n_frozen = 70000;
    refuse(&o, "options.frozen has 70000 tensors, more than 16384");
    struct atoll_tensor tensor = {.name = NULL, .ndim = 1, .shape = {3}};
    o = good, o.tensors = &tensor, o.n_tensors = 1;
    refuse(&o, "tensor 0");
    o = good, o.tensors = NULL;
    refuse(&o, "options.tensors");
    o = good, o.join = o.dir = o.devices = o.name = NULL, o.size = 0;
    refuse(&o, "options.size");
}

static void refuse_worker(struct atoll *a)
{
    struct atoll_round round;
    struct atoll_evaluation evaluation;
    struct atoll_info info;
    enum atoll_event event;
    enum atoll_action action;
    uint64_t indices[1];
    double sums[1] = {0};
    char text[16];
    const struct atoll_data data = {.hash = 1};
    const struct atoll_step step = {.tokens = 1, .loss = 1, .lr = NAN, .grad_norm = NAN};
    expect(atoll_set_data(a, &data, NULL, &error), "atoll_set_data");
    expect(atoll_wait(a, 0, &event, &error), "atoll_wait");
    expect(atoll_begin(a, &round, &error), "atoll_begin");
    expect(atoll_samples(a, indices, 1, &error), "atoll_samples");
    expect(atoll_step(a, &step, &action, &error), "atoll_step");
    expect(atoll_push(a, &error), "atoll_push");
    expect(atoll_evaluation(a, &evaluation, &error), "atoll_evaluation");
    expect(atoll_evaluated(a, sums, indices, &error), "atoll_evaluated");
    expect(atoll_setting(a, "train.method", text, sizeof text, &error), "atoll_setting");
    assert_int_equal(atoll_push(a, NULL), ATOLL_INVALID);
    assert_int_equal(atoll_theta_hash(a), 0);
    assert_non_null(atoll_text(a));
    atoll_get_info(a, &info);
    assert_int_equal(info.connected, 0);
    atoll_leave(a, "x");
    atoll_leave(a, NULL);
    atoll_close(a);
}

TEST_WITH(test_calls_refuse_null, tmpdir_make, stop)
{
    refuse_worker(NULL);
    assert_null(atoll_params(NULL));
    assert_int_equal(atoll_n_params(NULL), 0);
    atoll_get_info(NULL, NULL);
    struct atoll_tokens *t = NULL;
    struct atoll_data data;
    uint32_t out[8];
    expect(atoll_tokens_open(&t, NULL, 4, &data, &error), "give a pattern");
    expect(atoll_tokens_open(&t, "x", 4, NULL, &error), "data is NULL");
    expect(atoll_tokens_open(NULL, "x", 4, &data, &error), "atoll_tokens_open");
    expect(atoll_tokens_read(NULL, 0, out, &error), "atoll_tokens_read");
    atoll_tokens_close(NULL);

    api_rig_start("log: {level: info}");
    const struct atoll_options good = api_rig_options(0, "w0");
    struct atoll *a;
    char text[16];
    uint64_t indices[1];
    const struct atoll_step step = {.tokens = 16, .loss = 1, .lr = NAN, .grad_norm = NAN};
    enum atoll_action action;
    struct atoll_round round;
    assert_int_equal(atoll_open(&a, &good, &error), ATOLL_OK);
    expect(atoll_set_data(a, NULL, NULL, &error), "atoll_set_data");
    expect(atoll_wait(a, 0, NULL, &error), "atoll_wait");
    api_rig_wait(a, ATOLL_TRAIN);
    expect(atoll_begin(a, NULL, &error), "atoll_begin");
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
    expect(atoll_samples(a, NULL, 2, &error), "atoll_samples");
    assert_int_equal(atoll_samples(a, NULL, 0, &error), ATOLL_OK);
    assert_int_equal(atoll_samples(a, indices, 1, &error), ATOLL_OK);
    expect(atoll_step(a, NULL, &action, &error), "atoll_step");
    expect(atoll_step(a, &step, NULL, &error), "atoll_step");
    expect(atoll_evaluation(a, NULL, &error), "atoll_evaluation");
    expect(atoll_setting(a, NULL, text, sizeof text, &error), "atoll_setting");
    expect(atoll_setting(a, "train.method", NULL, 16, &error), "atoll_setting");
    expect(atoll_setting(a, "train.method", text, 0, &error), "train.method");
    expect(atoll_setting(a, "a\x1b[2J", text, sizeof text, &error), "no setting a?[2J");
    atoll_get_info(a, NULL);
    atoll_close(a);
}

TEST_WITH(test_state_with_null_is_not_saved, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    struct atoll_options o = api_rig_options(0, "w0");
    o.state = (struct atoll_state){.save = save_null, .load = load_any};
    struct atoll *a;
    assert_int_equal(atoll_open(&a, &o, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    assert_int_equal(api_rig_round(a, 0.5f, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    atoll_close(a);
}

/* --- a fork ------------------------------------------------------------------------------------------------------- */

TEST_WITH(test_fork_cannot_use_the_worker, tmpdir_make, stop)
{
    api_rig_start("log: {level: info}");
    const struct atoll_options good = api_rig_options(0, "w0");
    struct atoll *a;
    assert_int_equal(atoll_open(&a, &good, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    assert_int_equal(api_rig_round(a, 0.5f, &error), ATOLL_OK); /* a save may run in another thread */
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        refuse_worker(a);
        _exit(strcmp(atoll_text(a), "this process is a fork of the worker's") ? 2 : 0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    api_rig_wait(a, ATOLL_TRAIN); /* the child disturbed nothing */
    assert_int_equal(api_rig_round(a, 0.5f, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    atoll_close(a);
}

TEST_MAIN(NULL, NULL)
