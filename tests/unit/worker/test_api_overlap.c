/* ctest: labels=threads
 * Transfers go on while the program computes: train.overlap, train.stagger and async (worker/session/session_pump.c).
 * - An exchange ends during one step, however long that step is.
 * - The run's parameters do not depend on the length of steps.
 * - The program's functions are called by its own thread.
 * - A worker ends during a step, also without a coordinator. */
#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

enum { EXCHANGE_US = 20000000, CLOSE_US = 10000000, STEP_US = 30000 };

static const char overlap[] = "train: {method: diloco, sync_every: 4, overlap: 2, max_steps: 12}\n"
                              "outer: {learning_rate: 0.5}\n";
static struct atoll_error error;
static pthread_t program;
static unsigned saves;
static bool wrong_thread;

static int stop(void **state)
{
    api_rig_stop();
    return tmpdir_remove(state);
}

static size_t save(void *ctx, struct atoll_part *parts, size_t cap)
{
    (void)ctx, (void)cap;
    saves++;
    wrong_thread = wrong_thread || !pthread_equal(pthread_self(), program);
    parts[0] = (struct atoll_part){.data = "state", .size = 5};
    return 1;
}

static int load(void *ctx, const void *data, size_t size)
{
    (void)ctx, (void)data, (void)size;
    wrong_thread = wrong_thread || !pthread_equal(pthread_self(), program);
    return 0;
}

static struct atoll *open_worker(const char *name)
{
    struct atoll *a;
    struct atoll_options options = api_rig_options(0, name);
    options.state = (struct atoll_state){.save = save, .load = load};
    program = pthread_self();
    saves = 0;
    wrong_thread = false;
    assert_int_equal(atoll_open(&a, &options, &error), ATOLL_OK);
    return a;
}

static enum atoll_action step(struct atoll *a, useconds_t us)
{
    const struct atoll_step done = {.tokens = 2 * API_RIG_SEQ, .loss = 2.5, .lr = 0.1, .grad_norm = NAN};
    enum atoll_action action;
    uint64_t samples[2];
    assert_int_equal(atoll_samples(a, samples, 2, &error), ATOLL_OK);
    if (us) usleep(us);
    assert_int_equal(atoll_step(a, &done, &action, &error), ATOLL_OK);
    return action;
}

/* Trains one part of a round, up to the point where parameters are sent or change. */
static void train(struct atoll *a, useconds_t us)
{
    struct atoll_round round;
    enum atoll_action action;
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
    do action = step(a, us);
    while (action == ATOLL_CONTINUE);
    assert_int_equal(action, ATOLL_SYNC);
    for (uint64_t i = 0; i < atoll_n_params(a); i++) atoll_params(a)[i] += 0.25f / (float)(1 + i % 7);
    assert_int_equal(atoll_push(a, &error), ATOLL_OK);
}

static uint64_t version(struct atoll *a)
{
    struct atoll_info info;
    atoll_get_info(a, &info);
    return info.round;
}

/* Trains to the first sync point, and begins the first step behind it. */
static struct atoll *begin_overlap(void)
{
    struct atoll_round round;
    struct atoll *a = open_worker("w0");
    api_rig_wait(a, ATOLL_TRAIN);
    train(a, 0);
    api_rig_wait(a, ATOLL_TRAIN);
    assert_int_equal(atoll_begin(a, &round, &error), ATOLL_OK);
    assert_int_equal(round.round, 0);
    assert_int_equal(round.steps, 2);
    return a;
}

TEST_WITH(test_exchange_ends_during_one_step, tmpdir_make, stop)
{
    api_rig_start(overlap);
    struct atoll *a = begin_overlap();
    uint64_t before = atoll_theta_hash(a), until = clock_monotonic_us() + EXCHANGE_US;
    while (version(a) == 0 && clock_monotonic_us() < until) usleep(1000); /* the step; it tells the library nothing */
    assert_int_equal(version(a), 1);
    assert_true(atoll_theta_hash(a) != before);
    assert_int_equal(step(a, 0), ATOLL_CONTINUE);
    assert_int_equal(step(a, 0), ATOLL_SYNC);
    assert_int_equal(atoll_push(a, &error), ATOLL_OK);
    api_rig_wait(a, ATOLL_TRAIN);
    assert_true(saves > 0);
    assert_false(wrong_thread);
    atoll_close(a);
    assert_false(wrong_thread);
}

/* Returns the hash of the run's parameters after a run with one worker, whose steps take this long. */
static uint64_t run(const char *settings, useconds_t us)
{
    enum atoll_event event = ATOLL_WAITING;
    api_rig_start(settings);
    struct atoll *a = open_worker("w0");
    while (event != ATOLL_DONE) {
        assert_int_equal(atoll_wait(a, 20000, &event, &error), ATOLL_OK);
        assert_int_not_equal(event, ATOLL_WAITING);
        if (event == ATOLL_TRAIN) train(a, us);
    }
    uint64_t hash = atoll_theta_hash(a);
    atoll_close(a);
    assert_false(wrong_thread);
    api_rig_stop();
    return hash;
}

static void clear(void)
{
    assert_int_equal(tmpdir_remove(NULL) || tmpdir_make(NULL), 0);
}

TEST_WITH(test_length_of_steps_changes_no_bit, tmpdir_make, stop)
{
    static const char *const all[] = {
        overlap,
        "train: {method: diloco, sync_every: 4, overlap: 4, max_steps: 12}\n"
        "codec: {up: \"int8:64\", down: \"int8:64\"}\n",
        "model: {n_layer: 2}\n"
        "train: {method: diloco, sync_every: 4, stagger: on, overlap: 1, max_steps: 12}\n",
        "train: {method: async, sync_every: 4, max_steps: 12}\n",
        "train: {method: async, sync_every: 4, overlap: 2, max_steps: 12}\n",
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t at_once = run(all[i], 0);
        assert_true(at_once != 0);
        clear();
        assert_int_equal(run(all[i], STEP_US), at_once);
        clear();
    }
}

/* --- the end during a step ---------------------------------------------------------------------------------------- */

TEST_WITH(test_close_during_step, tmpdir_make, stop)
{
    for (int alone = 0; alone < 2; alone++) {
        api_rig_start(overlap);
        struct atoll *a = begin_overlap();
        if (alone) api_rig_stop();
        uint64_t started = clock_monotonic_us();
        usleep(STEP_US);
        if (alone) (void)step(a, STEP_US);
        assert_true(strlen(atoll_text(a)) < ATOLL_TEXT_MAX);
        atoll_close(a);
        assert_true(clock_monotonic_us() - started < CLOSE_US);
        if (!alone) api_rig_stop();
        clear();
    }
}

TEST_WITH(test_fork_during_step, tmpdir_make, stop)
{
    int how;
    api_rig_start(overlap);
    struct atoll *a = begin_overlap();
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        enum atoll_action action;
        const struct atoll_step done = {.tokens = 1, .loss = 1};
        bool refused = atoll_step(a, &done, &action, &error) == ATOLL_INVALID && version(a) == 0;
        atoll_close(a);
        _exit(refused && atoll_theta_hash(a) == 0 ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_int_equal(step(a, STEP_US), ATOLL_CONTINUE);
    atoll_close(a);
}

TEST_MAIN(NULL, NULL)
