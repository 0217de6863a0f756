/* Programs that keep the parameters themselves (options.theta and options.change): their runs have the same hash as
 * those of programs with atoll_params, whatever the order of their tensors. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/rigs/api_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

enum { PARAMS = 4096, TENSORS = 64, GUARD = 8 };

/* How a program holds its parameters. */
struct form {
    bool lent, reversed, external;
};

struct program {
    struct atoll *a;
    struct form form;
    int number;
    struct atoll_tensor tensors[TENSORS];
    uint32_t n_tensors;
    uint64_t n;
    float theta[PARAMS + GUARD], change[PARAMS + GUARD], trained[PARAMS]; /* trained: in the order of `tensors` */
};

static const float guard = 12345.5f;
static struct atoll_error error;
static struct program programs[2];

static const struct atoll_tensor external_tensors[] = {
    {.name = "norm.running_mean", .flags = ATOLL_MEAN, .ndim = 1, .shape = {300}},
    {.name = "weight", .flags = ATOLL_DECAY, .ndim = 2, .shape = {20, 70}},
    {.name = "steps", .flags = ATOLL_MEAN},
    {.name = "bias", .ndim = 1, .shape = {129}},
};

static int stop(void **state)
{
    api_rig_stop();
    return tmpdir_remove(state);
}

static void clear(void)
{
    assert_int_equal(tmpdir_remove(NULL) || tmpdir_make(NULL), 0);
}

static uint64_t count_of(const struct atoll_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* A number that depends on the tensor's name and the element, not on its place. */
static float noise(const char *name, uint64_t i, int round, int worker)
{
    double x = 0;
    for (const char *p = name; *p; p++) x = x * 1.37 + *p;
    return (float)sin(x + (double)i * 0.7 + round * 1.9 + worker * 0.31);
}

/* --- where the parameters lie ------------------------------------------------------------------------------------- */

static uint64_t own_offset(const struct program *p, uint32_t tensor)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < tensor; i++) at += count_of(&p->tensors[i]);
    return at;
}

static bool adds(const struct program *p, uint32_t tensor)
{
    return atoll_exchanges(p->a) == ATOLL_CHANGES && !(p->tensors[tensor].flags & ATOLL_MEAN);
}

/* The values of a tensor from which the program trains. */
static const float *start_of(const struct program *p, uint32_t tensor)
{
    if (!p->form.lent) return atoll_params(p->a) + own_offset(p, tensor);
    bool in_theta = atoll_exchanges(p->a) == ATOLL_CHANGES;
    return (in_theta ? p->theta : p->change) + atoll_offset(p->a, tensor);
}

static void check_guards(const struct program *p)
{
    for (int i = 0; i < GUARD; i++) {
        assert_true(p->theta[PARAMS + i] == guard);
        assert_true(p->change[PARAMS + i] == guard);
    }
}

static void open_program(struct program *p, int number, struct form form)
{
    struct atoll_options options = api_rig_options(number, number ? "w1" : "w0");
    const struct atoll_tensor *tensors = form.external ? external_tensors : options.tensors;
    *p = (struct program){.form = form, .number = number};
    p->n_tensors = form.external ? 4 : options.n_tensors;
    for (uint32_t i = 0; i < p->n_tensors; i++)
        p->tensors[i] = tensors[form.reversed && !form.external ? p->n_tensors - 1 - i : i];
    for (uint32_t i = 0; i < p->n_tensors; i++) p->n += count_of(&p->tensors[i]);
    assert_true(p->n <= PARAMS);
    for (int i = 0; i < PARAMS + GUARD; i++) p->theta[i] = p->change[i] = i < PARAMS ? NAN : guard;
    options.tensors = p->tensors;
    options.n_tensors = p->n_tensors;
    if (form.lent) {
        options.theta = p->theta;
        options.change = p->change;
    }
    assert_int_equal(atoll_open(&p->a, &options, &error), ATOLL_OK);
    assert_int_equal(atoll_n_params(p->a), p->n);
    assert_true((atoll_params(p->a) == NULL) == form.lent);
    assert_int_equal(atoll_exchanges(p->a), ATOLL_PARAMETERS);
    float *to = form.lent ? p->theta : atoll_params(p->a);
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        assert_int_equal(atoll_offset(p->a, t), own_offset(p, t));
        for (uint64_t i = 0; i < count_of(&p->tensors[t]); i++)
            to[own_offset(p, t) + i] = 1 + 0.5f * noise(p->tensors[t].name, i, -1, 0);
    }
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

static void train_steps(struct program *p, struct atoll_round *round)
{
    const struct atoll_step step = {.tokens = 2 * API_RIG_SEQ, .loss = 2.5, .lr = 0.1, .grad_norm = NAN};
    enum atoll_action action = ATOLL_CONTINUE;
    uint64_t samples[2];
    assert_int_equal(atoll_begin(p->a, round, &error), ATOLL_OK);
    for (uint32_t t = 0; t < p->n_tensors; t++)
        memcpy(p->trained + own_offset(p, t), start_of(p, t), count_of(&p->tensors[t]) * sizeof *p->trained);
    for (uint32_t i = 0; i < round->steps; i++) {
        assert_int_equal(action, ATOLL_CONTINUE);
        assert_int_equal(atoll_samples(p->a, samples, 2, &error), ATOLL_OK);
        assert_int_equal(atoll_step(p->a, &step, &action, &error), ATOLL_OK);
    }
    assert_int_equal(action, ATOLL_SYNC);
    for (uint32_t t = 0; t < p->n_tensors; t++)
        for (uint64_t i = 0; i < count_of(&p->tensors[t]); i++)
            p->trained[own_offset(p, t) + i] -=
                0.02f * noise(p->tensors[t].name, i, (int)round->position, p->number) * (i % 5 ? 1 : 0.01f);
}

/* Hands the trained parameters over. */
static void hand_over(struct program *p)
{
    for (uint32_t t = 0; t < p->n_tensors; t++) {
        uint64_t n = count_of(&p->tensors[t]);
        const float *trained = p->trained + own_offset(p, t);
        if (!p->form.lent) {
            memcpy(atoll_params(p->a) + own_offset(p, t), trained, n * sizeof *trained);
            continue;
        }
        float *change = p->change + atoll_offset(p->a, t);
        const float *theta = p->theta + atoll_offset(p->a, t);
        for (uint64_t i = 0; i < n; i++) change[i] = adds(p, t) ? change[i] + (theta[i] - trained[i]) : trained[i];
    }
}

static void train(struct program *p)
{
    struct atoll_round round;
    train_steps(p, &round);
    hand_over(p);
    assert_int_equal(atoll_push(p->a, &error), ATOLL_OK);
}

/* The run's parameters, as the program sees them after ATOLL_DONE, have this hash. */
static void check_seen(struct program *p)
{
    struct atoll_info info;
    atoll_get_info(p->a, &info);
    assert_true(info.round > 0);
    if (!p->form.lent) return;
    uint64_t before = atoll_theta_hash(p->a);
    p->theta[0] += 1; /* it is the memory that the library hashes */
    assert_true(atoll_theta_hash(p->a) != before);
    p->theta[0] -= 1;
}

/* Waits in turn until each of the n programs has an event; it is the same one. */
static enum atoll_event next_event(int n)
{
    enum atoll_event events[2] = {ATOLL_WAITING, ATOLL_WAITING};
    for (int i = 0; i < 8000; i++) {
        int k = i % n;
        if (events[k] == ATOLL_WAITING)
            assert_int_equal(atoll_wait(programs[k].a, n > 1 ? 5 : 1000, &events[k], &error), ATOLL_OK);
        if (events[0] != ATOLL_WAITING && events[n - 1] != ATOLL_WAITING) break;
    }
    assert_int_not_equal(events[0], ATOLL_WAITING);
    assert_int_equal(events[0], events[n - 1]);
    return events[0];
}

/* Returns the hash of the run's parameters after a run of these programs, the second of which may be NULL. */
static uint64_t run(const char *settings, const struct form *first, const struct form *second)
{
    int n = second ? 2 : 1;
    api_rig_start(settings);
    for (int i = 0; i < n; i++) open_program(&programs[i], i, i ? *second : *first);
    while (next_event(n) == ATOLL_TRAIN)
        for (int i = 0; i < n; i++) train(&programs[i]);
    uint64_t hash = atoll_theta_hash(programs[0].a);
    for (int i = 0; i < n; i++) {
        assert_int_equal(atoll_theta_hash(programs[i].a), hash);
        check_seen(&programs[i]);
        if (programs[i].form.lent) check_guards(&programs[i]);
        atoll_close(programs[i].a);
    }
    api_rig_stop();
    clear();
    return hash;
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

static const struct form copied = {0}, lent = {.lent = true}, turned = {.lent = true, .reversed = true};

#define LONG "sync_every: 2, max_steps: 12"

TEST_WITH(test_lent_parameters_change_no_bit, tmpdir_make, stop)
{
    static const char *const all[] = {
        "{train: {method: diloco, " LONG "}, codec: {up: int8, down: int8}}",
        "{train: {method: local-sgd, " LONG "}, codec: {up: 'topk:16/256+sign', down: auto}}",
        "{train: {method: local-sgd, " LONG "}, codec: {up: 'topk:16/256+int8', down: 'int8:64'}}",
        "{train: {method: local-sgd, fragments: 3, " LONG "}, codec: {up: int4, down: relay}}",
        "{train: {method: diloco, " LONG "}, codec: {up: int8, up_allowed: bf16, down: int4}}",
        "{train: {method: diloco, " LONG "}, codec: {up: fp32, down: fp32}}",
        "{train: {method: diloco, " LONG ", overlap: 1}, codec: {up: int8, down: int8}}",
        "{train: {method: diloco, " LONG ", overlap: 1, apply: correct}, codec: {up: int8, down: int8}}",
        "{model: {n_layer: 2}, train: {method: diloco, stagger: on, " LONG "}, codec: {up: int8, down: int8}}",
        "{train: {method: async, " LONG "}, codec: {up: int8, down: int8}}",
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t hash = run(all[i], &copied, NULL);
        if (run(all[i], &lent, NULL) != hash || run(all[i], &turned, NULL) != hash) fail_msg("%s", all[i]);
    }
}

TEST_WITH(test_lent_and_copied_parameters_meet, tmpdir_make, stop)
{
    static const char settings[] = "{train: {method: diloco, " LONG "}, codec: {up: int8, down: int8}, "
                                   "coordinator: {min_workers: 2}}";
    uint64_t hash = run(settings, &copied, &copied);
    assert_int_equal(run(settings, &turned, &copied), hash);
    assert_int_equal(run(settings, &copied, &lent), hash);
    assert_int_equal(run(settings, &turned, &lent), hash);
}

/* The run starts from the lent memory; means travel as they are. The run has them last, the program between others. */
TEST_WITH(test_lent_parameters_start_an_external_run, tmpdir_make, stop)
{
    static const struct form own = {.external = true}, shared = {.external = true, .lent = true};
    static const char *const codecs[] = {"{up: int8, down: int8}", "{up: 'topk:16/256+sign', down: auto}",
                                         "{up: fp32, down: fp32}"};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        char settings[300];
        snprintf(settings, sizeof settings,
                 "{model: {family: external}, train: {method: local-sgd, " LONG "}, codec: %s}", codecs[i]);
        uint64_t hash = run(settings, &own, NULL);
        if (run(settings, &shared, NULL) != hash) fail_msg("%s", settings);
    }
}

/* --- kill -9 ------------------------------------------------------------------------------------------------------ */

enum moment { IN_STEPS, AFTER_ADDING, AFTER_PUSH, AFTER_UPDATE, MOMENTS };

/* A process of the worker that dies in this round. */
static void die_in_round(int rounds, enum moment moment)
{
    struct atoll_round round;
    struct program *p = &programs[0];
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) {
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        return;
    }
    open_program(p, 0, turned);
    for (int r = 0; r < rounds; r++) {
        if (next_event(1) != ATOLL_TRAIN) _exit(1);
        train(p);
    }
    if (next_event(1) != ATOLL_TRAIN) _exit(1);
    train_steps(p, &round);
    if (moment > IN_STEPS) hand_over(p);
    if (moment > AFTER_ADDING) assert_int_equal(atoll_push(p->a, &error), ATOLL_OK);
    if (moment > AFTER_PUSH) (void)next_event(1);
    kill(getpid(), SIGKILL);
}

TEST_WITH(test_killed_programs_continue_with_the_same_bits, tmpdir_make, stop)
{
    static const char *const all[] = {
        "{train: {method: diloco, " LONG "}, codec: {up: int8, down: int8}}",
        "{train: {method: local-sgd, " LONG "}, codec: {up: 'topk:16/256+sign', down: auto}}",
    };
    for (size_t i = 0; i < 2; i++) {
        uint64_t hash = run(all[i], &copied, NULL);
        for (int moment = IN_STEPS; moment < MOMENTS; moment++) {
            api_rig_start(all[i]);
            die_in_round(moment, (enum moment)moment);
            die_in_round(1, (enum moment)(MOMENTS - 1 - moment));
            open_program(&programs[0], 0, lent);
            while (next_event(1) == ATOLL_TRAIN) train(&programs[0]);
            if (atoll_theta_hash(programs[0].a) != hash) fail_msg("%s, moment %d", all[i], moment);
            atoll_close(programs[0].a);
            api_rig_stop();
            clear();
        }
    }
}

/* Returns the hash after a run whose worker is closed and opened again after each of the first rounds. */
static uint64_t restart(const struct form *even, const struct form *odd)
{
    struct program *p = &programs[0];
    api_rig_start("{train: {method: local-sgd, " LONG "}, codec: {up: 'topk:16/256+sign', down: auto}}");
    for (int r = 0; r < 5; r++) {
        open_program(p, 0, r % 2 ? *odd : *even);
        for (enum atoll_event event; (event = next_event(1)) == ATOLL_TRAIN;) {
            train(p);
            if (r == 4) continue;
            if (r) assert_int_equal(next_event(1), ATOLL_TRAIN); /* the first one leaves before the update */
            break;
        }
        if (r < 4) atoll_close(p->a);
    }
    uint64_t hash = atoll_theta_hash(p->a);
    atoll_close(p->a);
    api_rig_stop();
    clear();
    return hash;
}

/* A program with atoll_params continues what one with theta and change saved, and the reverse. */
TEST_WITH(test_saved_states_have_one_form, tmpdir_make, stop)
{
    uint64_t hash = restart(&copied, &copied);
    assert_int_equal(restart(&copied, &lent), hash);
    assert_int_equal(restart(&turned, &copied), hash);
    assert_int_equal(restart(&lent, &turned), hash);
}

/* --- faults ------------------------------------------------------------------------------------------------------- */

/* What the program added cannot be told from the residual: both are dropped, and the run goes on. */
TEST_WITH(test_nonfinite_change_resets_the_residual, tmpdir_make, stop)
{
    struct atoll_round round;
    struct program *p = &programs[0];
    api_rig_start("{train: {method: diloco, " LONG "}, codec: {up: int8, down: int8}}");
    open_program(p, 0, turned);
    assert_int_equal(next_event(1), ATOLL_TRAIN);
    train(p);
    assert_int_equal(next_event(1), ATOLL_TRAIN);
    assert_int_equal(atoll_exchanges(p->a), ATOLL_CHANGES);
    uint64_t kept = 0, hash = atoll_theta_hash(p->a);
    for (uint64_t i = 0; i < p->n; i++) kept += p->change[i] != 0;
    assert_true(kept > p->n / 2); /* the residual of int8 */
    train_steps(p, &round);
    p->trained[own_offset(p, 1) + 1] = NAN;
    hand_over(p);
    assert_int_equal(atoll_push(p->a, &error), ATOLL_NONFINITE);
    char name[300];
    snprintf(name, sizeof name, "tensor '%s' has 1 value that is NaN or infinite", p->tensors[1].name);
    if (!strstr(error.text, name)) fail_msg("%s", error.text);
    for (uint64_t i = 0; i < p->n; i++) assert_true(p->change[i] == 0);
    assert_int_equal(atoll_theta_hash(p->a), hash);
    while (next_event(1) == ATOLL_TRAIN) train(p);
    assert_true(atoll_theta_hash(p->a) != hash);
    atoll_close(p->a);
}

static void refuse(const struct atoll_options *o, const char *what)
{
    struct atoll *a;
    assert_int_equal(atoll_open(&a, o, &error), ATOLL_INVALID);
    if (!strstr(error.text, what)) fail_msg("%s", error.text);
}

TEST_WITH(test_options_are_checked, tmpdir_make, stop)
{
    struct atoll *a;
    api_rig_start("{log: {level: info}}");
    struct atoll_options o = api_rig_options(0, "w0");
    o.theta = programs[0].theta;
    refuse(&o, "options.theta needs options.change");
    o.change = o.theta;
    o.theta = NULL;
    refuse(&o, "options.theta needs options.change");
    o.theta = o.change;
    refuse(&o, "options.theta and options.change share memory");
    o.change = o.theta + api_rig_layout()->n_params - 1;
    refuse(&o, "options.theta and options.change share memory");
    o.change = (void *)((char *)programs[0].change + 1);
    refuse(&o, "options.change is not aligned");
    o.size = offsetof(struct atoll_options, theta); /* a program of an earlier atoll.h has no such members */
    assert_int_equal(atoll_open(&a, &o, &error), ATOLL_OK);
    assert_non_null(atoll_params(a));
    assert_int_equal(atoll_offset(a, 1), api_rig_layout()->tensors[1].offset);
    assert_int_equal(atoll_offset(a, 1000), 0);
    assert_int_equal(atoll_offset(NULL, 0), 0);
    assert_int_equal(atoll_exchanges(NULL), ATOLL_PARAMETERS);
    atoll_close(a);
}

TEST_MAIN(NULL, NULL)
