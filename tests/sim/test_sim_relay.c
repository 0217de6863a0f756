/* Relayed updates on their way to workers. A worker downloads the other workers' deltas and keeps its own; if that is
 * damaged or missing, it downloads it, too. Crashes are in test_sim_faults and test_sim_random.
 * SIM_TRACE=1 prints every event. ctest: timeout=180 */

#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/test.h"
#include "worker/outer/outer_loop_impl.h"

enum { WORKERS = 3 };

static const char *const relay[] = {"train.method=local-sgd",
                                    "train.max_steps=18",
                                    "train.sync_every=3",
                                    "train.fragments=2",
                                    "codec.up=int8:16",
                                    "codec.down=relay",
                                    "train.eval_every=0",
                                    "checkpoint.every=2",
                                    "coordinator.min_workers=3",
                                    "coordinator.evict_after_s=1000",
                                    NULL};

/* The action of a scenario on one message; `left` counts down to it. */
struct event {
    struct sim_cluster *c;
    enum msg_type type;
    int client;
    bool to_client;
    bool (*picks)(const struct msg *m);
    int left, happened;
    int (*act)(struct event *e, const struct msg *m); /* returns the number of times that the message arrives */
    uint64_t own_bytes;                               /* own-delta bytes sent before the event */
};

static int on_message(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct event *e = ctx;
    if (moment != SIM_NET_SENT || m->type != e->type || client != e->client || to_client != e->to_client) return 1;
    if ((e->picks && !e->picks(m)) || e->left == 0 || --e->left > 0) return 1;
    e->happened++;
    e->own_bytes = sim_check_counts(e->c->check).own_bytes;
    return e->act(e, m);
}

/* Runs with the event; returns the checker's counts. */
static struct sim_check_counts run(struct sim_cluster_setup *setup, struct event *e, uint64_t *theta_p)
{
    struct sim_cluster *c = sim_rig_cluster(setup);
    if (e) {
        e->c = c;
        sim_check_script(c->check, on_message, e);
    }
    sim_rig_start(c, setup->n_workers);
    assert_true(sim_rig_ends(c, 1000));
    struct sim_check_counts counts = sim_check_counts(c->check);
    assert_true(counts.relayed >= 12);
    *theta_p = c->result.theta_hash;
    sim_rig_done(c);
    return counts;
}

/* Runs with the event and requires the theta of the run without it. Returns the own-delta bytes sent since the
 * event. */
static uint64_t run_with_event(uint64_t seed, struct event *e)
{
    struct sim_cluster_setup setup = {.seed = seed, .n_workers = WORKERS, .config = relay, .scale = 30};
    uint64_t theta, calm = sim_rig_calm_theta(&setup);
    struct sim_check_counts counts = run(&setup, e, &theta);
    assert_int_equal(e->happened, 1);
    assert_int_equal(theta, calm);
    assert_int_equal(e->own_bytes, 0);
    return counts.own_bytes;
}

/* ---- the worker's payload is lost or damaged --------------------------------------------------------------------- */

static bool first_piece(const struct msg *m)
{
    return m->chunk.kind == OBJECT_UPDATE && m->chunk.key == 3 && m->chunk.fragment == 1 && m->chunk.offset == 0;
}

static int spoil_payload(struct event *e, const struct msg *m)
{
    struct outer_loop *loop = e->c->workers[e->client].loop;
    assert_true(loop->f[m->chunk.fragment].pending);
    loop->f[m->chunk.fragment].payload[5] ^= 1;
    return 1;
}

/* The payload in memory is damaged. The checksum of the whole object detects it, and the worker downloads the bytes. */
TEST(test_damaged_payload_is_downloaded)
{
    struct event e = {
        .type = MSG_CHUNK, .client = 2, .to_client = true, .picks = first_piece, .left = 1, .act = spoil_payload};
    assert_true(run_with_event(33, &e) > 0);
}

static int forget_payload(struct event *e, const struct msg *m)
{
    e->c->workers[e->client].loop->relays = false; /* behaves like a worker without relay support */
    (void)m;
    return 1;
}

static int forget_and_remember(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct event *e = ctx;
    if (e->happened && moment == SIM_NET_SENT && client == e->client && m->type == MSG_GET && m->get.version == 3 &&
        m->get.fragment == 1 && m->get.offset > 0)
        e->c->workers[client].loop->relays = true; /* the worker has requested the bytes */
    return on_message(ctx, moment, client, to_client, m);
}

TEST(test_missing_payload_is_downloaded)
{
    struct sim_cluster_setup setup = {.seed = 34, .n_workers = WORKERS, .config = relay, .scale = 30};
    uint64_t calm = sim_rig_calm_theta(&setup);
    struct event e = {
        .type = MSG_CHUNK, .client = 0, .to_client = true, .picks = first_piece, .left = 1, .act = forget_payload};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    e.c = c;
    sim_check_script(c->check, forget_and_remember, &e);
    sim_rig_start(c, WORKERS);
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(e.happened, 1);
    assert_int_equal(c->result.theta_hash, calm);
    assert_true(sim_check_counts(c->check).own_bytes > 0);
    sim_rig_done(c);
}

/* ---- chunks get lost --------------------------------------------------------------------------------------------- */

static bool update_piece(const struct msg *m)
{
    return m->chunk.kind == OBJECT_UPDATE && m->chunk.key == 3 && m->chunk.fragment == 0;
}

static int lose(struct event *e, const struct msg *m)
{
    (void)e, (void)m;
    return 0;
}

/* Loses any piece of an update. The retry must not send the own-delta bytes either. */
TEST(test_lost_piece_is_sent_again_without_own_delta)
{
    for (int client = 0; client < WORKERS; client++)
        for (int piece = 1; piece <= 2; piece++) {
            struct event e = {.type = MSG_CHUNK,
                              .client = client,
                              .to_client = true,
                              .picks = update_piece,
                              .left = piece,
                              .act = lose};
            assert_int_equal(run_with_event(37, &e), 0);
        }
}

TEST_MAIN(NULL, NULL)
