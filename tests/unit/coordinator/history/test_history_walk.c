/* Random walks of a run: it goes on, stops, waits, is rolled back and loses workers, in any order. After each change an
 * audit finds nothing, a rollback has the parameters of its round, and the run goes on. ctest: timeout=240 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/history/history_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

enum { ROUNDS_MAX = 400, MOVES = 14, WAIT_US = 100000000, CAUSES = 6 };

static const char *const *const methods[] = {
    (const char *const[]){"train.fragments=2", NULL},
    (const char *const[]){"train.fragments=2", "checkpoint.keep=2", NULL},
    (const char *const[]){"train.stagger=true", "train.sync_every=4", NULL},
    (const char *const[]){"train.overlap=1", "train.sync_every=4", NULL},
    (const char *const[]){"codec.up=topk:24/256", "codec.down=relay", "outer.optimizer=sgd", NULL},
    (const char *const[]){"codec.up=topk:24/256", "codec.down=auto", "outer.optimizer=sgd", NULL},
    (const char *const[]){"codec.up=fp32+lz4", "codec.down=fp32", NULL},
    (const char *const[]){"train.method=ddp", "codec.up=fp32", "codec.down=fp32", "train.sync_every=1", NULL},
    (const char *const[]){"train.method=async", "outer.grace=0", "coordinator.quorum=all", NULL},
    (const char *const[]){"train.method=async", "outer.grace=0", "coordinator.quorum=all", "codec.up=topk:24/256",
                          NULL},
    (const char *const[]){"train.method=async", "train.fragments=3", "outer.grace=0.3", "coordinator.quorum=all", NULL},
};
enum { METHODS = sizeof methods / sizeof *methods };

static uint64_t seed;
static uint64_t hashes[ROUNDS_MAX]; /* of the parameters after each round; 0: unknown */
static const char *settings[24];

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static void open_with_workers(void)
{
    open_run("walk", settings);
    for (int i = 0; i < WORKERS; i++) rig_join(&rig, i);
}

static void go_on(uint64_t n)
{
    const uint64_t to = rounds() + n;
    for (uint64_t r = rounds() + 1; r <= to && r < ROUNDS_MAX; r++) {
        if (!draw(4)) { /* one worker is late */
            for (int i = 0; i < 2; i++) deliver((int)draw(WORKERS));
            rig_wait(&rig, 20000000);
            close_run();
            open_with_workers();
        }
        if (rounds() < r) play(r, WORKERS);
        hashes[r] = rounds() == r ? rig_theta_hash(&rig) : 0;
    }
}

static void check(const char *what)
{
    struct audit a;
    audit("walk", &a);
    if (a.wrong) fail_msg("%s: %s", what, a.what);
}

static void forget_behind(uint64_t round)
{
    for (uint64_t r = round + 1; r < ROUNDS_MAX; r++) hashes[r] = 0;
}

/* A refusal that names what is possible must not refuse it. */
static void check_refusal(uint64_t round)
{
    unsigned long long first, last;
    const char *range = strstr(err.msg, "possible are");
    if (range && sscanf(range, "possible are %llu to %llu", &first, &last) == 2 && round >= first && round <= last)
        fail_msg("round %d: %s", (int)round, err.msg);
}

static void roll_back(void)
{
    struct history h;
    bool may_merge = rig.config.train.method == METHOD_ASYNC; /* deltas that waited then */
    uint64_t before = rounds();
    if (before < 2) return;
    struct history_request request = {.round = before - 1 - draw(before < 6 ? (uint32_t)before : 6)};
    close_run();
    enum status status = try_take_back("walk", &request, &h);
    if (status == STATUS_OK) {
        if (!may_merge && hashes[request.round] && h.theta_hash != hashes[request.round])
            fail_msg("round %d has other parameters", (int)request.round);
        forget_behind(h.kept);
        check("rollback");
    } else if (status != STATUS_INVALID ||
               (!strstr(err.msg, "possible are") && !strstr(err.msg, "ended the last one, too") &&
                !strstr(err.msg, "nothing that can be taken back"))) {
        fail_msg("rollback to %d of %d: %s", (int)request.round, (int)before, err.msg);
    } else {
        check_refusal(request.round);
    }
    history_finish(&h);
    open_with_workers();
    if (status == STATUS_OK && !may_merge && rounds() != request.round) fail_msg("%d rounds", (int)rounds());
}

static void exclude(void)
{
    struct history h;
    char name[16];
    uint64_t before = rounds();
    if (!before) return;
    snprintf(name, sizeof name, "worker-%u", draw(WORKERS));
    struct history_request request = {.exclude = name,
                                      .round = draw(3) ? before - draw(before < 6 ? (uint32_t)before : 6) : 0,
                                      .keep_member = draw(2)};
    close_run();
    enum status status = try_take_back("walk", &request, &h);
    static const char *const good[CAUSES] = {"possible are", "nothing is left",           "has delivered nothing",
                                             "give --since", "nothing that can be taken", "ended the last one, too"};
    bool known = status == STATUS_OK;
    for (int i = 0; i < CAUSES && !known; i++) known = strstr(err.msg, good[i]) != NULL;
    if (status != STATUS_OK && request.round) check_refusal(request.round);
    if (!known) fail_msg("exclude %s since %d of %d: %s", name, (int)request.round, (int)before, err.msg);
    if (status == STATUS_OK) {
        forget_behind(h.kept);
        check("exclude");
    }
    history_finish(&h);
    open_with_workers();
}

static void walk(int method, uint64_t number)
{
    memset(hashes, 0, sizeof hashes);
    seed = number;
    const char *const *from = settings_of(methods[method]);
    int n = 0;
    for (; from[n]; n++) settings[n] = from[n];
    settings[n++] = "train.max_steps=800";
    settings[n] = NULL;
    open_with_workers();
    go_on(3);
    for (int i = 0; i < MOVES; i++) {
        switch (draw(6)) {
        case 0: go_on(1 + draw(5)); break;
        case 1: deliver((int)draw(WORKERS)); break;
        case 2:
            assert_int_equal(engine_stop(rig.engine, &err), STATUS_OK);
            close_run();
            open_with_workers();
            break;
        case 3:
            rig_wait(&rig, WAIT_US);
            for (int k = 0; k < WORKERS; k++) rig_join(&rig, k);
            break;
        case 4: roll_back(); break;
        default: exclude(); break;
        }
        go_on(draw(2));
    }
    go_on(3);
    close_run();
    check("the end");
    remove_run("walk");
}

/* ATOLL_WALKS=N: the walks 1 to N. */
TEST(test_walks)
{
    static const uint64_t usual[] = {1, 7};
    const char *more = getenv("ATOLL_WALKS");
    uint64_t n = more ? strtoull(more, NULL, 10) : sizeof usual / sizeof *usual;
    for (uint64_t k = 0; k < n; k++)
        for (int i = 0; i < METHODS; i++) {
            uint64_t number = more ? k + 1 : usual[k];
            printf("method %d, walk %d\n", i, (int)number);
            fflush(stdout);
            walk(i, 1000 * number + (uint64_t)i);
        }
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
