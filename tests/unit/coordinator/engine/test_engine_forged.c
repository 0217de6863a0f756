/* Forged evaluations: a liar changes parts of its first answer. Each lie is named, or moves the loss within a bound. */
#include <math.h>

#include "common/base/rng.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;
static uint64_t draws;

enum { SHARE = 128, PARTS = 64, TOKENS = 8, SEEDS = 9 }; /* windows and parts of a share; tokens of a window */

static uint64_t draw(uint64_t below)
{
    return rng_u64(5, RNG_TEST, draws++) % below;
}

/* --- lies --------------------------------------------------------------------------------------------------------- */

typedef void lie_fn(struct wire_part *parts);

/* The whole share then has 10.9 nats per token, less than 2 ln 256 = 11.09. */
static const double whole_lie = (10.9 - 2) * SHARE * TOKENS;

static void first_part(struct wire_part *p)
{
    p[0].sum += whole_lie;
}

static void last_part(struct wire_part *p)
{
    p[PARTS - 1].sum += whole_lie;
}

static void random_part(struct wire_part *p)
{
    p[draw(PARTS)].sum += whole_lie;
}

static void two_parts(struct wire_part *p)
{
    p[0].sum += whole_lie / 2;
    p[PARTS - 1].sum += whole_lie / 2;
}

static void half_a_nat(struct wire_part *p)
{
    p[draw(PARTS)].sum += 0.5 * 2 * TOKENS;
}

static void even(struct wire_part *p)
{
    for (int i = 0; i < PARTS; i++) p[i].sum *= 1.05;
}

static void even_low(struct wire_part *p)
{
    for (int i = 0; i < PARTS; i++) p[i].sum *= 0.8;
}

static void within_rounding(struct wire_part *p)
{
    for (int i = 0; i < PARTS; i++) p[i].sum *= 1 - 0.9e-4;
}

static void zero_part(struct wire_part *p)
{
    p[draw(PARTS)].sum = 0;
}

static void nan_part(struct wire_part *p)
{
    p[draw(PARTS)].sum = NAN;
}

static void infinite_part(struct wire_part *p)
{
    p[draw(PARTS)].sum = INFINITY;
}

static void swapped(struct wire_part *p)
{
    uint64_t a = draw(PARTS), b = draw(PARTS);
    struct wire_part part = p[a];
    p[a] = p[b];
    p[b] = part;
}

/* An honest value, but of another part: half of the parts take the highest value, which is true. */
static void raised_to_highest(struct wire_part *p)
{
    double high = 0;
    for (int i = 0; i < PARTS; i++) high = fmax(high, p[i].sum);
    for (int i = 0; i < PARTS; i += 2) p[i].sum = high;
}

/* The same in one part: found by chance alone. */
static void one_raised_to_highest(struct wire_part *p)
{
    double high = 0;
    for (int i = 0; i < PARTS; i++) high = fmax(high, p[i].sum);
    p[draw(PARTS)].sum = high;
}

/* Two extreme lies cancel, and hide a third one between them. */
static void cancelling(struct wire_part *p)
{
    p[10].sum += 1e5;
    p[11].sum -= 1e5;
    p[12].sum += 9e4;
}

static void one_negative(struct wire_part *p)
{
    p[draw(PARTS)].sum -= 1000;
}

static void many_tokens(struct wire_part *p)
{
    struct wire_part *part = &p[draw(PARTS)];
    part->sum *= 4;
    part->tokens *= 4;
}

static void half_of_the_tokens(struct wire_part *p)
{
    for (int i = 0; i < PARTS; i++) p[i].tokens /= 2;
}

static void all_zero(struct wire_part *p)
{
    for (int i = 0; i < PARTS; i++) p[i].sum = 0;
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

struct run {
    int workers;
    bool external;
    int liar;      /* worker */
    lie_fn *lie;   /* in its first answers; NULL: none */
    double spread; /* of the honest loss per window */
};

/* The true loss of a window, in nats per token. External: around 0. */
static double truth(const struct run *run, uint64_t window)
{
    return (run->external ? 0.05 : 2) + run->spread * sin(1.7 * (double)window);
}

static void say_result(const struct run *run, int worker, const struct msg *eval)
{
    const struct msg_eval *task = &eval->eval;
    struct msg m;
    rig_eval_result(&rig, worker, eval, 1, &m);
    struct msg_eval_result *r = &m.eval_result;
    uint64_t n = msg_eval_parts(task->count, task->part), at = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (!(task->wanted >> i & 1)) continue;
        double sum = 0;
        for (uint64_t w = i * task->part; w < (i + 1) * task->part; w++) sum += TOKENS * truth(run, task->start + w);
        r->parts[at++].sum = sum * (1 + 1e-6 * worker); /* other instructions */
        if (run->external) r->parts[at - 1].tokens /= 4;
    }
    if (run->lie && worker == run->liar && task->wanted == msg_eval_all(n)) run->lie(r->parts);
    r->loss_sum = 0;
    r->tokens = 0;
    for (uint32_t i = 0; i < r->n_parts; i++) {
        r->loss_sum += r->parts[i].sum;
        r->tokens += r->parts[i].tokens;
    }
    rig_say(&rig, rig.workers[worker].control, &m);
}

/* Opens a run at its first evaluation. */
static void open_run(const struct run *run, const char *method, const char *steps)
{
    char least[40], tokens[40];
    rig_val_samples = SHARE * (uint64_t)run->workers;
    snprintf(least, sizeof least, "coordinator.min_workers=%d", run->workers);
    snprintf(tokens, sizeof tokens, "train.eval_tokens=%d", SHARE * TOKENS * run->workers);
    const char *settings[] = {least, tokens, "train.eval_every=1", "model.vocab_size=256", steps, method, NULL};
    rig_open(&rig, settings);
    for (int i = 0; i < run->workers; i++) rig_join(&rig, i);
    for (int i = 0; i < run->workers; i++) rig_assigned(&rig, i);
    /* The judge reads the family alone; a run of this rig has a model of its own. */
    struct config *config = (struct config *)(uintptr_t)engine_config(rig.engine);
    rig_deliver_all(&rig, run->workers, 1);
    if (run->external) snprintf(config->model.family, sizeof config->model.family, "external");
}

/* Answers all EVALs. wanted_p: counts the parts of the samples, or NULL. */
static void answer_all(const struct run *run, int *counts)
{
    struct msg eval;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < run->workers; i++) {
            if (!rig_take(&rig, i, MSG_EVAL, &eval)) continue;
            any = true;
            for (int p = 0; counts && p < PARTS; p++)
                counts[p] += eval.eval.wanted != UINT64_MAX && eval.eval.wanted >> p & 1;
            say_result(run, i, &eval);
            rig_wait(&rig, 1000); /* a refused share goes to the next worker */
        }
    }
}

static const struct engine_event_eval *eval_event(void)
{
    for (size_t i = rig.n_events; i > 0; i--)
        if (rig.events[i - 1].kind == ENGINE_EVENT_EVAL) return &rig.events[i - 1].eval;
    fail_msg("no evaluation");
    return NULL;
}

static double true_loss(const struct run *run)
{
    double sum = 0;
    for (uint64_t w = 0; w < rig_val_samples; w++) sum += truth(run, w) * (run->external ? 4 : 1);
    return sum / (double)rig_val_samples;
}

/* The liar is named in a refusal, and nobody else. */
static bool named(const struct run *run)
{
    char name[16];
    bool any = false;
    snprintf(name, sizeof name, "worker-%d", run->liar);
    for (size_t i = 0; i < rig.n_events; i++) {
        if (rig.events[i].kind != ENGINE_EVENT_FAULT) continue;
        if (!strstr(rig.event_text[i], "refused its evaluation")) fail_msg("%s", rig.event_text[i]);
        assert_string_equal(rig.events[i].line.worker, name);
        any = true;
    }
    return any;
}

struct forgery {
    const char *name;
    lie_fn *lie;
    double harm; /* of the run's loss, at most, if the liar is not named; 0: it is named always */
};

/* A share is a third of the run, its parts spread by 0.3 on either side. */
static const struct forgery forgeries[] = {
    {"first part", first_part, 0},
    {"last part", last_part, 0},
    {"a random part", random_part, 0},
    {"first and last part", two_parts, 0},
    {"half a nat in a part", half_a_nat, 0.5 / PARTS / 3},
    {"all parts x 1.05", even, 0},
    {"all parts x 0.8", even_low, 0},
    {"all parts, within rounding", within_rounding, 1e-4},
    {"a part of 0", zero_part, 0},
    {"a part of NaN", nan_part, 0},
    {"an infinite part", infinite_part, 0},
    {"two parts swapped", swapped, 1e-5},
    {"half of the parts as high as the highest", raised_to_highest, 0},
    {"a part as high as the highest", one_raised_to_highest, 0.6 / PARTS / 3},
};

static const struct forgery external_forgeries[] = {
    {"first part", first_part, 0},
    {"last part", last_part, 0},
    {"a random part", random_part, 0},
    {"first and last part", two_parts, 0},
    {"a negative part", one_negative, 0},
    {"lies that cancel", cancelling, 0},
    {"a part of NaN", nan_part, 0},
    {"a part with four times the tokens", many_tokens, 0},
    {"half of the tokens", half_of_the_tokens, 0},
    {"all zero", all_zero, 0},
};

static void try_forgery(const struct forgery *f, bool external)
{
    int caught = 0;
    for (int seed = 0; seed < SEEDS; seed++) {
        rig_entropy = (uint64_t)(100 + seed);
        struct run run = {3, external, seed % 3, f->lie, 0.3};
        open_run(&run, "train.method=diloco", "train.max_steps=20");
        answer_all(&run, NULL);
        double harm = fabs(eval_event()->val_loss - true_loss(&run));
        bool is_named = named(&run);
        if (!is_named && !(harm <= f->harm + 1e-5)) fail_msg("%s: not named, harm %g", f->name, harm);
        if (is_named && !(harm < 1e-5)) fail_msg("%s: named, harm %g", f->name, harm);
        if (!is_named && f->harm == 0) fail_msg("%s: not named, seed %d", f->name, seed);
        assert_false(eval_event()->disputed || eval_event()->by_one);
        caught += is_named;
        rig_close(&rig);
    }
    print_message("%s%s: named in %d of %d\n", external ? "external, " : "", f->name, caught, SEEDS);
}

TEST(test_forged_parts_are_named_or_harmless)
{
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) try_forgery(&forgeries[i], false);
    for (size_t i = 0; i < sizeof external_forgeries / sizeof *external_forgeries; i++)
        try_forgery(&external_forgeries[i], true);
}

/* Two workers: a part above 2 ln(vocabulary) proves the lie; otherwise the larger value counts, up to the error of the
 * sample: 5 % of a lie of 0.2 nats. */
TEST(test_forged_parts_among_two_never_flatter)
{
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        for (int seed = 0; seed < SEEDS; seed++) {
            rig_entropy = (uint64_t)(200 + seed);
            struct run run = {2, false, seed % 2, forgeries[i].lie, 0.3};
            open_run(&run, "train.method=diloco", "train.max_steps=20");
            answer_all(&run, NULL);
            double gain = true_loss(&run) - eval_event()->val_loss;
            if (!(gain < 1e-2)) fail_msg("%s: the loss is %g too low", forgeries[i].name, gain);
            bool proven = forgeries[i].lie == first_part || forgeries[i].lie == last_part ||
                          forgeries[i].lie == random_part || forgeries[i].lie == nan_part;
            if (proven) assert_true(named(&run));
            if (proven) assert_true(fabs(gain) < 1e-5);
            rig_close(&rig);
        }
    }
}

/* Workers of other precision differ by rounding, also where losses are near zero or below it. */
TEST(test_honest_workers_are_never_named)
{
    static const double spreads[] = {0, 1e-7, 0.3, 1.9};
    for (int external = 0; external < 2; external++)
        for (size_t i = 0; i < 4; i++) {
            struct run run = {3, external, 0, NULL, spreads[i]};
            open_run(&run, "train.method=diloco", "train.max_steps=20");
            answer_all(&run, NULL);
            assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0);
            assert_true(fabs(eval_event()->val_loss - true_loss(&run)) < 1e-4);
            assert_false(eval_event()->by_one);
            rig_close(&rig);
        }
}

TEST_MAIN(NULL, NULL)
