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

enum { DRAWN = -1, ALL = 1, ONE = PARTS, SAME = 4 };

/* The whole share then has 10.9 nats per token, less than 2 ln 256 = 11.09. */
static const double whole_lie = (10.9 - 2) * SHARE * TOKENS;

/* Changes the parts first, first + step, ...: loss = times * loss + plus, tokens = tokens * quarters / 4. */
struct change {
    int first, step;
    double times, plus;
    unsigned quarters;
};

struct forgery {
    const char *name;
    bool highest; /* the changed parts take the highest value, which is true, but of another part */
    double harm;  /* of the run's loss, at most, if the liar is not named; 0: it is named always */
    struct change changes[3];
};

/* A share is a third of the run, its parts spread by 0.3 on either side. */
static const struct forgery forgeries[] = {
    {"first part", false, 0, {{0, ONE, 1, whole_lie, SAME}}},
    {"last part", false, 0, {{PARTS - 1, ONE, 1, whole_lie, SAME}}},
    {"a random part", false, 0, {{DRAWN, ONE, 1, whole_lie, SAME}}},
    {"first and last part", false, 0, {{0, PARTS - 1, 1, whole_lie / 2, SAME}}},
    {"half a nat in a part", false, 0.5 / PARTS / 3, {{DRAWN, ONE, 1, 0.5 * 2 * TOKENS, SAME}}},
    {"all parts x 1.05", false, 0, {{0, ALL, 1.05, 0, SAME}}},
    {"all parts x 0.8", false, 0, {{0, ALL, 0.8, 0, SAME}}},
    {"all parts, within rounding", false, 1e-4, {{0, ALL, 1 - 0.9e-4, 0, SAME}}},
    {"a part of 0", false, 0, {{DRAWN, ONE, 0, 0, SAME}}},
    {"a part of NaN", false, 0, {{DRAWN, ONE, NAN, 0, SAME}}},
    {"an infinite part", false, 0, {{DRAWN, ONE, 1, INFINITY, SAME}}},
    {"half of the parts as high as the highest", true, 0, {{0, 2, 1, 0, SAME}}},
    {"a part as high as the highest", true, 0.6 / PARTS / 3, {{DRAWN, ONE, 1, 0, SAME}}},
};

static const struct forgery external_forgeries[] = {
    {"first part", false, 0, {{0, ONE, 1, whole_lie, SAME}}},
    {"a random part", false, 0, {{DRAWN, ONE, 1, whole_lie, SAME}}},
    {"a negative part", false, 0, {{DRAWN, ONE, 1, -1000, SAME}}},
    {"lies that cancel, and hide a third",
     false,
     0,
     {{10, ONE, 1, 1e5, SAME}, {11, ONE, 1, -1e5, SAME}, {12, ONE, 1, 9e4, SAME}}},
    {"a part of NaN", false, 0, {{DRAWN, ONE, NAN, 0, SAME}}},
    {"a part with four times the tokens", false, 0, {{DRAWN, ONE, 4, 0, 4 * SAME}}},
    {"half of the tokens", false, 0, {{0, ALL, 1, 0, SAME / 2}}},
    {"all zero", false, 0, {{0, ALL, 0, 0, SAME}}},
};

static void tell(const struct forgery *f, struct wire_part *parts)
{
    double high = 0;
    for (int i = 0; i < PARTS; i++) high = fmax(high, parts[i].sum);
    for (const struct change *c = f->changes; c < f->changes + 3 && c->step; c++) {
        for (int i = c->first == DRAWN ? (int)draw(PARTS) : c->first; i < PARTS; i += c->step) {
            parts[i].sum = f->highest ? high : c->times * parts[i].sum + c->plus;
            parts[i].tokens = parts[i].tokens * c->quarters / SAME;
        }
    }
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

struct run {
    int workers;
    bool external;
    int liar;                  /* worker */
    const struct forgery *lie; /* in its first answers; NULL: none */
    double spread;             /* of the honest loss per window */
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
    if (run->lie && worker == run->liar && task->wanted == msg_eval_all(n)) tell(run->lie, r->parts);
    r->loss_sum = 0;
    r->tokens = 0;
    for (uint32_t i = 0; i < r->n_parts; i++) {
        r->loss_sum += r->parts[i].sum;
        r->tokens += r->parts[i].tokens;
    }
    rig_say(&rig, rig.workers[worker].control, &m);
}

/* Opens a run at its first evaluation. */
static void open_run(const struct run *run)
{
    char least[40], tokens[40];
    rig_val_samples = SHARE * (uint64_t)run->workers;
    snprintf(least, sizeof least, "coordinator.min_workers=%d", run->workers);
    snprintf(tokens, sizeof tokens, "train.eval_tokens=%d", SHARE * TOKENS * run->workers);
    const char *settings[] = {least, tokens, "train.eval_every=1", "model.vocab_size=256", "train.max_steps=20", NULL};
    rig_open(&rig, settings);
    for (int i = 0; i < run->workers; i++) rig_join(&rig, i);
    for (int i = 0; i < run->workers; i++) rig_assigned(&rig, i);
    /* The judge reads the family alone; a run of this rig has a model of its own. */
    struct config *config = (struct config *)(uintptr_t)engine_config(rig.engine);
    rig_deliver_all(&rig, run->workers, 1);
    if (run->external) snprintf(config->model.family, sizeof config->model.family, "external");
}

/* Answers all EVALs. */
static void answer_all(const struct run *run)
{
    struct msg eval;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < run->workers; i++) {
            if (!rig_take(&rig, i, MSG_EVAL, &eval)) continue;
            any = true;
            say_result(run, i, &eval);
            rig_wait(&rig, 1000); /* a refused share goes to the next worker */
        }
    }
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

static void try_forgery(const struct forgery *f, bool external)
{
    for (int seed = 0; seed < SEEDS; seed++) {
        rig_entropy = (uint64_t)(100 + seed);
        struct run run = {3, external, seed % 3, f, 0.3};
        open_run(&run);
        answer_all(&run);
        double harm = fabs(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.val_loss - true_loss(&run));
        bool is_named = named(&run);
        if (!is_named && !(harm <= f->harm + 1e-5)) fail_msg("%s: not named, harm %g", f->name, harm);
        if (is_named && !(harm < 1e-5)) fail_msg("%s: named, harm %g", f->name, harm);
        if (!is_named && f->harm == 0) fail_msg("%s: not named, seed %d", f->name, seed);
        assert_false(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.disputed ||
                     rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.by_one);
        rig_close(&rig);
    }
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
            struct run run = {2, false, seed % 2, &forgeries[i], 0.3};
            open_run(&run);
            answer_all(&run);
            double gain = true_loss(&run) - rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.val_loss;
            if (!(gain < 1e-2)) fail_msg("%s: the loss is %g too low", forgeries[i].name, gain);
            const struct change *c = forgeries[i].changes;
            bool proven = c->step == ONE && (c->plus >= whole_lie || isnan(c->times));
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
            open_run(&run);
            answer_all(&run);
            assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0);
            assert_true(fabs(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.val_loss - true_loss(&run)) < 1e-4);
            assert_false(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.by_one);
            rig_close(&rig);
        }
}

TEST_MAIN(NULL, NULL)
