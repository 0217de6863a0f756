/* Faults in a simulated cluster: crashes at every operation, lost messages, connections cut in mid-transfer, NaN,
 * full disks.
 * SIM_TRACE=1 prints every event. ctest: timeout=180 */

#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STRIDE = 7 };
#else
enum { STRIDE = 1 };
#endif

/* Kills the coordinator at its k-th send or write, for every k of a run. Each run must end at the same theta, bit
 * for bit. */
static void crash_everywhere(const char *const *config, bool power)
{
    struct sim_cluster_setup setup = {.seed = 11, .n_workers = 2, .config = config};
    struct sim_cluster *calm = sim_rig_cluster(&setup);
    sim_rig_start(calm, 2);
    assert_true(sim_rig_ends(calm, 1000));
    uint64_t theta = calm->result.theta_hash;
    long operations = calm->operations;
    sim_rig_done(calm);
    assert_true(operations > 100);
    for (long k = 1; k <= operations; k += STRIDE) {
        struct sim_cluster *c = sim_rig_cluster(&setup);
        c->die_in = k;
        c->die_by_power = power;
        c->revive_us = 400000;
        sim_rig_start(c, 2);
        bool ended = sim_rig_ends(c, 1000);
        if (!ended || c->result.theta_hash != theta)
            fail_msg("coordinator killed at operation %ld of %ld%s: theta is %016llx, expected %016llx", k, operations,
                     power ? " (power)" : "", (unsigned long long)c->result.theta_hash, (unsigned long long)theta);
        sim_rig_done(c);
    }
}

TEST(test_coordinator_killed_at_any_operation_ends_at_same_theta)
{
    const char *diloco[] = {"train.max_steps=10",        "train.sync_every=3",
                            "coordinator.min_workers=2", "train.fragments=2",
                            "codec.up=int8:16",          "codec.down=int8:16",
                            "checkpoint.every=2",        "checkpoint.keep=1",
                            "train.eval_every=2",        NULL};
    const char *ddp[] = {"train.method=ddp",
                         "train.max_steps=4",
                         "coordinator.min_workers=2",
                         "train.fragments=2",
                         "checkpoint.every=2",
                         "train.eval_every=2",
                         NULL};
    const char *relay[] = {"train.method=local-sgd",
                           "train.max_steps=10",
                           "train.sync_every=3",
                           "coordinator.min_workers=2",
                           "train.fragments=2",
                           "codec.up=int8:16",
                           "codec.down=relay",
                           "checkpoint.every=2",
                           "checkpoint.keep=1",
                           "train.eval_every=0",
                           NULL};
    crash_everywhere(relay, true);
    crash_everywhere(diloco, false);
    crash_everywhere(diloco, true);
    crash_everywhere(ddp, false);
    crash_everywhere(ddp, true);
}

struct guest {
    bool gone, back;
    uint32_t id, members;
};

static bool guest_moves(struct sim_cluster *c, void *ctx)
{
    struct guest *g = ctx;
    struct sim_worker *w = &c->workers[2];
    if (!g->gone && w->busy == SIM_WORKER_TRAINS) {
        g->id = w->task.worker_id;
        sim_worker_leave(w);
        g->gone = true;
    } else if (g->gone && !g->back && !w->up) {
        sim_worker_forget(w);
        sim_worker_start(w);
        g->back = true;
    }
    if (c->engine) g->members = engine_members(c->engine);
    return c->finished;
}

/* A worker leaves before its first delta is merged, and a new one gets its place. The coordinator is killed at its k-th
 * send or write. */
static long guest_run(long k, bool power, struct guest *g)
{
    const char *config[] = {"train.max_steps=40",        "train.sync_every=5",
                            "coordinator.min_workers=2", "codec.up=int8:16",
                            "codec.down=int8:16",        "coordinator.evict_after_s=4",
                            "checkpoint.every=2",        "checkpoint.keep=1",
                            "train.eval_every=0",        NULL};
    struct sim_cluster_setup setup = {.seed = 23, .n_workers = 3, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    *g = (struct guest){0};
    c->die_in = k;
    c->die_by_power = power;
    c->revive_us = 400000;
    sim_rig_start(c, 2);
    sim_cluster_start_at(c, 300000, 2);
    if (!sim_rig_until(c, 1000, guest_moves, g) || !sim_rig_ends(c, 1000))
        fail_msg("coordinator killed at operation %ld%s", k, power ? " (power)" : "");
    long operations = c->operations;
    sim_rig_done(c);
    return operations;
}

TEST(test_coordinator_killed_at_any_operation_while_place_changes_hands)
{
    struct guest g;
    long operations = guest_run(0, false, &g);
    assert_true(g.back);
    assert_int_equal(g.id, 2);
    assert_int_equal(g.members, 3); /* two workers and two guests */
    for (long k = 1; k <= operations; k += STRIDE) {
        guest_run(k, k % 2, &g);
        assert_in_range(g.members, 2, 4); /* a guest whose LEAVE was lost is evicted first */
    }
}

/* Kills worker-1 once after each of its messages. */
struct killer {
    struct sim_cluster *c;
    long left, count;
};

static int kill_after_message(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct killer *k = ctx;
    if (moment != SIM_NET_SENT || to_client || client != 1 || m->type == MSG_HEARTBEAT) return 1;
    k->count++;
    if (k->left > 0 && --k->left == 0) {
        sim_cluster_kill_at(k->c, sim_net_now(k->c->net), 1, false);
        sim_cluster_start_at(k->c, sim_net_now(k->c->net) + 500000, 1);
    }
    return 1;
}

static void die_after_every_message(const char *const *config)
{
    struct sim_cluster_setup setup = {.seed = 12, .n_workers = 2, .config = config};
    long messages = 1;
    uint64_t theta = 0;
    for (long k = 0; k <= messages; k++) {
        struct sim_cluster *c = sim_rig_cluster(&setup);
        struct killer killer = {c, k, 0};
        sim_check_script(c->check, kill_after_message, &killer);
        sim_rig_start(c, 2);
        assert_true(sim_rig_ends(c, 1000));
        if (k == 0) {
            messages = killer.count;
            theta = c->result.theta_hash;
            assert_true(messages > 10);
        } else if (c->result.theta_hash != theta) {
            fail_msg("worker-1 killed after its message %ld: theta is %016llx, expected %016llx", k,
                     (unsigned long long)c->result.theta_hash, (unsigned long long)theta);
        }
        sim_rig_done(c);
    }
}

TEST(test_worker_killed_after_any_message_ends_at_same_theta)
{
    const char *diloco[] = {"train.max_steps=10",
                            "train.sync_every=3",
                            "coordinator.min_workers=2",
                            "train.fragments=2",
                            "codec.up=int8:16",
                            "codec.down=int8:16",
                            NULL};
    const char *relay[] = {
        "train.method=local-sgd", "train.max_steps=10", "train.sync_every=3", "coordinator.min_workers=2",
        "train.fragments=2",      "codec.up=int8:16",   "codec.down=relay",   NULL};
    die_after_every_message(diloco);
    die_after_every_message(relay);
}

/* Loses the first `n` of every `n + 1` messages of one type. */
struct loser {
    enum msg_type type;
    int n, count;
};

static int lose_some(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct loser *l = ctx;
    (void)client, (void)to_client;
    if (moment != SIM_NET_SENT || m->type != l->type) return 1;
    return l->count++ % (l->n + 1) == l->n ? 1 : 0;
}

TEST(test_lost_messages_are_sent_again)
{
    static const enum msg_type types[] = {MSG_HELLO,     MSG_CONFIG,        MSG_JOIN,   MSG_WELCOME, MSG_BIND,
                                          MSG_HEARTBEAT, MSG_HEARTBEAT_ACK, MSG_ASSIGN, MSG_EVAL,    MSG_EVAL_RESULT,
                                          MSG_OFFER,     MSG_CREDIT,        MSG_GET,    MSG_CHUNK,   MSG_METRICS,
                                          MSG_LEAVE,     MSG_DONE};
    const char *config[] = {"train.max_steps=12", "coordinator.min_workers=2", "train.fragments=2", NULL};
    struct sim_cluster_setup setup = {.seed = 14, .n_workers = 2, .config = config};
    uint64_t theta = sim_rig_calm_theta(&setup);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct sim_cluster *c = sim_rig_cluster(&setup);
        struct loser loser = {types[i], 2, 0};
        sim_check_script(c->check, lose_some, &loser);
        sim_rig_start(c, 2);
        if (!sim_rig_ends(c, 2000) || c->result.theta_hash != theta) fail_msg("losing %s", msg_name(types[i]));
        sim_rig_done(c);
    }
}

/* Cuts a delta of several chunks halfway. The worker must send only the rest. */
struct cutter {
    struct sim_cluster *c;
    uint64_t bytes; /* bytes of delta chunks that arrived */
    bool cut;
};

static int cut_in_mid_transfer(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct cutter *k = ctx;
    (void)client;
    if (moment != SIM_NET_ARRIVED || to_client || m->type != MSG_CHUNK) return 1;
    k->bytes += m->chunk.size;
    if (!k->cut && m->chunk.offset > 0) {
        k->cut = true;
        sim_net_partition(k->c->net, 0, true);
    }
    return 1;
}

static bool was_cut(struct sim_cluster *c, void *ctx)
{
    (void)c;
    return ((struct cutter *)ctx)->cut;
}

TEST(test_upload_resumes_after_cut)
{
    const char *config[] = {"train.max_steps=2", "train.sync_every=1", "train.batch_size=1", "train.eval_every=0",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 15, .n_workers = 1, .config = config, .n_tensors = 3, .scale = 20000};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    struct cutter cutter = {.c = c};
    sim_net_link(c->net, 0)->rate = 400000;
    sim_net_link(c->net, 0)->queue_us = 1500000;
    sim_check_script(c->check, cut_in_mid_transfer, &cutter);
    sim_rig_start(c, 1);
    assert_true(sim_rig_until(c, 1000, was_cut, &cutter));
    uint64_t start = sim_net_now(c->net);
    while (sim_net_step(c->net, start + 30000000)) continue;
    sim_net_partition(c->net, 0, false);
    assert_true(sim_rig_ends(c, 1000));
    uint64_t whole = 2 * 36 * 20000 * sizeof(float);
    assert_in_range(cutter.bytes, whole, whole + (2 << 20));
    sim_rig_done(c);
}

/* Counts the snapshot bytes that reach worker-1, and kills the coordinator at `kill_at` bytes. */
struct snapshot_count {
    struct sim_cluster *c;
    uint64_t bytes, kill_at;
};

static int count_snapshot(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct snapshot_count *k = ctx;
    if (moment != SIM_NET_ARRIVED || client != 1 || !to_client || m->type != MSG_CHUNK) return 1;
    if (m->chunk.kind == OBJECT_SNAPSHOT) k->bytes += m->chunk.size;
    if (k->bytes < k->kill_at) return 1;
    k->kill_at = UINT64_MAX;
    sim_cluster_kill_at(k->c, sim_net_now(k->c->net), SIM_NET_LISTENER, false);
    sim_cluster_start_at(k->c, sim_net_now(k->c->net) + 400000, SIM_NET_LISTENER);
    return 1;
}

static bool first_checkpoint(struct sim_cluster *c, void *ctx)
{
    (void)ctx;
    return sim_check_counts(c->check).updates > 0;
}

/* A worker that joins late loads its snapshot over several sessions and receives each byte once. */
TEST(test_snapshot_download_resumes_after_restart)
{
    const char *config[] = {"train.max_steps=3",
                            "train.sync_every=1",
                            "train.batch_size=1",
                            "train.eval_every=0",
                            "checkpoint.every=1",
                            "train.fragments=2",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 22, .n_workers = 2, .config = config, .n_tensors = 4, .scale = 20000};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    struct snapshot_count count = {.c = c, .kill_at = 2000000};
    sim_net_link(c->net, 1)->rate = 400000;
    sim_check_script(c->check, count_snapshot, &count);
    sim_rig_start(c, 1);
    assert_true(sim_rig_until(c, 100, first_checkpoint, NULL));
    c->workers[0].step_us = 60000000; /* no other snapshot is written meanwhile */
    sim_worker_start(&c->workers[1]);
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(count.kill_at, UINT64_MAX);
    uint64_t whole = (5 + 12 + 19 + 5) * 20000 * sizeof(float);
    assert_in_range(count.bytes, whole, whole + (512 << 10));
    sim_rig_done(c);
}

TEST(test_nan_delta_is_never_merged)
{
    static const char *const methods[] = {"train.method=diloco", "train.method=async", "train.method=ddp"};
    for (int i = 0; i < 3; i++) {
        const char *config[] = {methods[i], "coordinator.min_workers=2", "train.max_steps=20", NULL};
        struct sim_cluster_setup setup = {.seed = 16, .n_workers = 2, .config = config};
        struct sim_cluster *c = sim_rig_cluster(&setup);
        c->workers[1].nan_round = 2;
        sim_rig_start(c, 2);
        assert_true(sim_rig_ends(c, 1000));
        assert_int_equal(c->workers[1].nan_round, UINT64_MAX); /* the NaN was injected */
        assert_int_equal(c->workers[1].last_want, OUTER_DONE);
        sim_rig_done(c);
    }
}

TEST(test_worker_that_cannot_save_continues)
{
    const char *config[] = {"coordinator.min_workers=2", NULL};
    struct sim_cluster_setup setup = {.seed = 17, .n_workers = 2, .config = config};
    uint64_t theta = sim_rig_calm_theta(&setup);
    struct sim_cluster *c = sim_rig_cluster(&setup);
    c->workers[0].disk.full = true;
    sim_rig_start(c, 2);
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->result.theta_hash, theta);
    sim_rig_done(c);
}

/* The newest saved state is damaged. The worker must load the previous state or a snapshot, and never the damaged
 * one. */
TEST(test_damaged_worker_state_is_never_loaded)
{
    const char *config[] = {"coordinator.min_workers=2", "codec.up=int8:16", "train.max_steps=40", NULL};
    struct sim_cluster_setup setup = {.seed = 19, .n_workers = 2, .config = config};
    for (int both = 0; both < 2; both++) {
        struct sim_cluster *c = sim_rig_cluster(&setup);
        sim_rig_start(c, 2);
        while (sim_net_now(c->net) < 3000000 && sim_net_step(c->net, 3000000)) continue;
        sim_worker_kill(&c->workers[1]);
        for (int age = 0; age <= both; age++) {
            assert_non_null(c->workers[1].disk.files[age].data);
            c->workers[1].disk.files[age].data[c->workers[1].disk.files[age].size / 2] ^= 0x40;
        }
        sim_worker_start(&c->workers[1]);
        assert_true(sim_rig_ends(c, 1000));
        assert_int_equal(c->workers[1].last_want, OUTER_DONE);
        sim_rig_done(c);
    }
}

/* The coordinator's disk fills up. The operator frees space and starts the coordinator again. */
TEST(test_coordinator_resumes_after_full_disk)
{
    const char *config[] = {"coordinator.min_workers=2", "train.max_steps=40", "train.fragments=2", NULL};
    struct sim_cluster_setup setup = {.seed = 20, .n_workers = 2, .config = config};
    uint64_t theta = sim_rig_calm_theta(&setup);
    for (uint64_t room = 3000; room < 12000; room += 500) {
        struct sim_cluster *c = sim_rig_cluster(&setup);
        c->may_give_up = true;
        store_mem_set_room(c->store, room);
        sim_rig_start(c, 2);
        while (!c->gave_up && !c->finished && sim_net_step(c->net, 100000000)) continue;
        assert_int_equal(c->gave_up, 1);
        store_mem_set_room(c->store, UINT64_MAX);
        sim_cluster_start_at(c, sim_net_now(c->net) + 5000000, SIM_NET_LISTENER);
        assert_true(sim_rig_ends(c, 1000));
        assert_int_equal(c->result.theta_hash, theta);
        sim_rig_done(c);
    }
}

TEST_MAIN(NULL, NULL)
