/* Places in a run: who keeps one, who gets a vacant one, and who hears why not. */

#include "common/base/mem.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

static struct rig rig;

/* Gives a worker of the rig another identity. */
static void become(int worker, unsigned number)
{
    struct rig_worker *w = &rig.workers[worker];
    memset(w->uuid, 0x80, WIRE_UUID);
    memcpy(w->uuid, &number, sizeof number);
    snprintf(w->name, sizeof w->name, "guest-%u", number);
    w->session = 0;
}

/* Ten thousand workers join and leave without a delta: the run does not grow, and a restart finds the same state. */
TEST(test_guests_leave_nothing_behind)
{
    const char *settings[] = {"train.max_steps=40", NULL};
    char before[4096], json[4096];
    rig_open_with(&rig, settings, 1, true);
    rig_deliver_all(&rig, 1, 1);
    become(1, 0);
    rig_join(&rig, 1);
    rig_leave(&rig, 1);
    rig_forget(&rig);
    uint64_t written = store_mem_counts(rig.store).appended;
    size_t live = mem_live_bytes(), status = engine_status_json(rig.engine, before, sizeof before);
    for (unsigned i = 1; i < 10000; i++) {
        become(1, i);
        rig_join(&rig, 1);
        assert_int_equal(rig.workers[1].id, 1);
        rig_leave(&rig, 1);
        rig_forget(&rig);
    }
    written = store_mem_counts(rig.store).appended - written;
    assert_in_range(written / 10000, 1, 300);
    assert_in_range(mem_live_bytes() - live, 0, 2 * written + 4096); /* the rig's journal is in memory, too */
    assert_int_equal(engine_members(rig.engine), 2);
    size_t grown = engine_status_json(rig.engine, json, sizeof json); /* worker-0 fell silent meanwhile */
    assert_in_range(grown, status - 40, status + 200);
    assert_null(strstr(json, "guest"));
    rig_restart(&rig, false, 0);
    rig_join(&rig, 0);
    rig_join(&rig, 2);
    assert_int_equal(rig.workers[0].id, 0);
    assert_int_equal(rig.workers[2].id, 1);
    rig_close(&rig);
}

/* All places are taken. A worker that takes work and delivers nothing loses its place to a new one, after the limit. */
TEST(test_idle_worker_is_replaced)
{
    const char *settings[] = {"coordinator.max_workers=2", "coordinator.min_workers=2", "coordinator.evict_after_s=100",
                              "coordinator.quorum=1",      "train.max_steps=40",        NULL};
    rig_open_with(&rig, settings, 2, false);
    for (int round = 0; round < 3; round++) { /* measured rounds */
        for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
        rig_deliver_all(&rig, 2, 1);
    }
    rig_say_join(&rig, 2);
    rig_refused(&rig, 2, REFUSE_FULL,
                "worker-0, worker-1 hold all 2 places (coordinator.max_workers). 'worker-2' gets a place when one of "
                "them leaves or delivers nothing for 1 min 40 s");
    rig_assigned(&rig, 0);
    for (uint32_t f = 0; f < 2; f++) rig_deliver(&rig, 0, f, 1);
    for (int s = 0; s < 99; s++) { /* worker-0 waits for its next round, worker-1 claims to train */
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 0, WORKER_WAITING);
        rig_beat(&rig, 1, WORKER_TRAINING);
        rig_forget(&rig);
    }
    rig_say_join(&rig, 2);
    rig_refused(&rig, 2, REFUSE_FULL, "worker-0, worker-1 hold");
    for (int s = 0; s < 3; s++) {
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 0, WORKER_READY);
        rig_beat(&rig, 1, WORKER_TRAINING);
    }
    rig_forget(&rig);
    rig_say_join(&rig, 2);
    struct msg m;
    rig_expect(&rig, 2, MSG_WELCOME, &m);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 1);
    assert_non_null(strstr(rig.event_text[0], "delivered nothing for"));
    assert_non_null(strstr(rig.event_text[0], "worker-2 gets the place"));
    rig_beat(&rig, 1, WORKER_TRAINING);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_UNKNOWN_SESSION);
    rig_say_join(&rig, 1);
    rig_refused(&rig, 1, REFUSE_FULL, "worker-0, worker-2 hold");
    rig_close(&rig);
}

/* Sessions that join again and again do not restart their limit. A first round may take ten minutes. */
TEST(test_worker_that_never_takes_work_is_replaced)
{
    const char *settings[] = {"coordinator.max_workers=1", NULL};
    struct msg m;
    rig_open(&rig, settings);
    rig_say_join(&rig, 1);
    rig_expect(&rig, 1, MSG_WELCOME, &m);
    for (int s = 0; s < 590; s += 10) {
        rig_wait(&rig, 10000000);
        rig_forget(&rig);
        rig_say_join(&rig, 1);
    }
    rig_say_join(&rig, 0);
    rig_refused(&rig, 0, REFUSE_FULL, "worker-1 hold all 1 places");
    rig_wait(&rig, 11000000);
    rig_join(&rig, 0);
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
