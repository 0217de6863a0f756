#include "tests/lib/rigs/round_rig.h"
#include "tests/lib/test.h"

#include "common/base/mem.h"

struct round_grant round_rig_grants[ROUNDRIG_WORKERS + 1];

void round_rig_open(struct round *r, const char *const *settings, uint32_t n_fragments)
{
    static const char *const base[] = {"train.max_steps=10", "train.sync_every=4",
                                       "train.batch_size=2", "train.grad_accum=3",
                                       "model.block_size=8", "coordinator.min_workers=3",
                                       "codec.up=fp32",      "inner.warmup_steps=1",
                                       "merge.clip=off",     NULL};
    static struct config config;
    struct config_sources sources;
    struct err err = {0};
    config_defaults(&config, &sources);
    for (int pass = 0; pass < 2; pass++)
        for (const char *const *s = pass ? settings : base; s && *s; s++)
            if (config_set(&config, &sources, *s, CONFIG_FLAG, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    round_init(r, &config, n_fragments);
    for (uint32_t i = 0; i < 3; i++) {
        uint8_t uuid[WIRE_UUID] = {(uint8_t)(i + 1)};
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        assert_int_equal(round_fold_join(r, i, uuid, name), STATUS_OK);
    }
}

void round_rig_close(struct round *r)
{
    assert_int_equal(lease_check(&r->leases), STATUS_OK);
    assert_true(round_counts_hold(r));
    round_finish(r);
    assert_int_equal(mem_live_bytes(), 0);
}

void round_rig_ready(struct round *r, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i <= last; i++) r->members.members[i]->ready = true;
}

uint32_t round_rig_plan(struct round *r, uint64_t now, struct round_open *open)
{
    open->grants = round_rig_grants;
    assert_int_equal(round_plan(r, now, open), STATUS_OK);
    return open->n;
}

void round_rig_begin(struct round *r, uint64_t now, uint32_t expect)
{
    struct round_open open;
    assert_int_equal(round_rig_plan(r, now, &open), expect);
    assert_int_equal(round_fold_open(r, &open), STATUS_OK);
    round_note_open(r, now);
    for (uint32_t i = 0; i < expect; i++) r->members.members[open.grants[i].id]->ready = false;
}

/* Starts a round of two fragments with three workers. */
void round_rig_at_work(struct round *r)
{
    round_rig_open(r, NULL, 2);
    round_rig_ready(r, 0, 2);
    round_rig_begin(r, 0, 3);
}

struct round_offer round_rig_offer(const struct round *r, uint32_t id, uint32_t fragment)
{
    const struct assignment *work = &r->members.members[id]->work;
    return (struct round_offer){.round = work->round,
                                .base_version = work->versions[fragment],
                                .bytes = 100,
                                .tokens = work->steps * r->p.step_samples * r->p.sample_tokens,
                                .fragment = fragment,
                                .steps = work->steps,
                                .form = r->p.form};
}

enum round_verdict round_rig_judge(const struct round *r, uint32_t id, const struct round_offer *offer, uint16_t *code)
{
    const char *reason;
    *code = 0;
    return round_judge(r, r->members.members[id], offer, code, &reason);
}

void round_rig_speed(struct round *r, uint32_t id, double step_s, uint32_t steps)
{
    const struct member_times times = {.step_s = step_s};
    member_speed_add(&r->members.members[id]->speed, &times, steps);
}

void round_rig_deliver(struct round *r, uint32_t id, uint32_t fragment, uint64_t now)
{
    struct round_offer offer = round_rig_offer(r, id, fragment);
    struct part part = {.base_version = offer.base_version, .tokens = offer.tokens, .steps = offer.steps};
    uint16_t code;
    assert_int_equal(round_rig_judge(r, id, &offer, &code), ROUND_ACCEPT);
    assert_int_equal(round_fold_delta(r, id, offer.round, fragment, &part), STATUS_OK);
    assert_int_equal(round_rig_judge(r, id, &offer, &code), ROUND_HAVE);
    assert_int_equal(round_fold_delta(r, id, offer.round, fragment, &part), STATUS_STATE); /* only once */
    round_note_delivery(r, r->members.members[id], fragment, now);
}

/* Merges all complete fragments; returns the number of closed fragments. */
int round_rig_merge(struct round *r, uint64_t now, struct round_close *last)
{
    struct round_close close;
    int n = 0;
    while (round_next_close(r, now, &close)) {
        struct round_named named[ROUNDRIG_WORKERS];
        for (uint32_t i = 0; i < close.n; i++)
            named[i] = (struct round_named){close.ids[i], r->members.members[close.ids[i]]->work.round};
        assert_int_equal(round_fold_update(r, close.fragment, r->versions[close.fragment] + 1, named, close.n),
                         STATUS_OK);
        assert_int_equal(lease_check(&r->leases), STATUS_OK);
        round_note_update(r, close.fragment, now);
        assert_true(round_counts_hold(r));
        *last = close;
        n++;
    }
    return n;
}
