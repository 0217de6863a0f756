#include "coordinator/ledger/update_compute.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/config/codec_choice.h"
#include "common/tensor/sum_squares.h"
#include "compress/relay.h"
#include "coordinator/ledger/delta_read.h"
#include "coordinator/round/round_form.h"

/* ddp: computes the norm of the merged gradient over all fragments, before the first fragment takes its step. The
 * accumulator then holds the last fragment. */
static enum status gradient_norm(struct ledger *l, struct err *err)
{
    struct outer_state *o = &l->outer;
    if (o->norm_round == l->round.round + 1) return STATUS_OK;
    double sum = 0;
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        struct round_close close = {.fragment = f};
        for_each_member(&l->round.members, m) {
            bool delivered = member_has(m, f, PART_HELD) || member_has(m, f, PART_MERGED);
            if (delivered && close.n < WIRE_NAMED_MAX) close.ids[close.n++] = m->id;
        }
        if (!close.n) continue;
        TRY(delta_read_merge(l, &close, 0, false, err));
        sum += sum_squares(o->pool, o->acc, l->layout.fragments[f].count);
    }
    assert(!(sum < 0));
    o->norm = sqrt(sum);
    o->norm_round = l->round.round + 1;
    return STATUS_OK;
}

/* Adds the norms of the deltas to the sums of the step, whose fragment holds trained tensors. */
static void add_norms(struct ledger *l, const struct round_close *close)
{
    if (l->config->train.method == METHOD_ASYNC || layout_is_mean(&l->layout, close->fragment)) return;
    for (uint32_t i = 0; i < close->n; i++) {
        const struct part *part = round_close_part(&l->round, close, i);
        outer_sums_add(&l->outer.sums, (double)part->norm, part->tokens);
    }
    outer_sums_end(&l->outer.sums);
}

/* Merges the deltas. *head_p: offset of the payload in l->outer.payload; relayed deltas are already there. */
static enum status merge_deltas(struct ledger *l, const struct round_close *close, struct update *u, size_t *head_p,
                                bool *relay_p, struct err *err)
{
    struct outer_state *o = &l->outer;
    enum config_down down = config_down(l->config);
    bool can_relay = config_may_relay(l->config) && !layout_is_mean(&l->layout, close->fragment);
    struct outer_ways ways = {.fragment = close->fragment,
                              .named = close->n,
                              .head = update_encoded_size(u),
                              .members = member_count_active(&l->round.members)};
    memcpy(u->codec, "relay", sizeof "relay");
    size_t head = update_encoded_size(u) - sizeof(uint32_t), table = relay_head_size(close->n);
    TRY(delta_read_merge(l, close, head + table, can_relay, err));
    size_t bytes = table;
    for (uint32_t i = 0; i < close->n; i++) bytes += round_close_part(&l->round, close, i)->bytes;
    ways.deltas = bytes - table;
    *relay_p = can_relay && (down == CONFIG_DOWN_RELAY || outer_state_relays(o, &ways));
    l->down_ways[0] = ways.relay_bytes;
    l->down_ways[1] = ways.union_bytes;
    if (*relay_p) {
        assert(head + bytes <= o->payload_cap);
        relay_head_write(o->deltas, close->n, o->payload + head);
        u->payload_size = bytes;
        *head_p = head;
        return STATUS_OK;
    }
    snprintf(u->codec, sizeof u->codec, "%s", codec_spec(o->fragments[close->fragment].down));
    *head_p = update_encoded_size(u) - sizeof(uint32_t);
    return STATUS_OK;
}

enum status update_compute(struct ledger *l, const struct round_close *close, struct update *u, struct err *err)
{
    const struct member *m = member_by_id(&l->round.members, close->ids[0]);
    bool async = l->config->train.method == METHOD_ASYNC;
    struct outer_step step = {
        .fragment = close->fragment,
        .version = l->round.versions[close->fragment] + 1,
        .round = async ? m->work.round : l->round.round,
        .members = member_count_active(&l->round.members),
    };
    for (uint32_t i = 0; i < close->n; i++) {
        const struct part *part = round_close_part(&l->round, close, i);
        uint64_t staleness = round_staleness(&l->round, close->fragment, part->base_version);
        step.steps += member_by_id(&l->round.members, close->ids[i])->work.steps;
        step.fresh += pow(1 + (double)staleness, -0.5);
    }
    if (l->config->train.method == METHOD_DDP) {
        TRY(gradient_norm(l, err));
        step.norm = l->outer.norm;
    }
    *u = (struct update){.fragment = close->fragment,
                         .version = step.version,
                         .round = step.round,
                         .form = round_update_form(l->config, layout_is_mean(&l->layout, close->fragment)),
                         .n_named = close->n,
                         .named = l->named};
    for (uint32_t i = 0; i < close->n; i++) {
        const struct member *who = member_by_id(&l->round.members, close->ids[i]);
        l->named[i] = (struct update_named){who->id, who->work.round, round_close_part(&l->round, close, i)->tokens};
    }
    /* Encode the payload at its final place, after the object head: this saves a copy. */
    size_t head;
    TRY(merge_deltas(l, close, u, &head, &step.relay, err));
    enum status status = outer_state_step(&l->outer, &step, head, &u->payload_size);
    if (status == STATUS_NONFINITE)
        return err_set(err, status,
                       "the outer step of round %llu would make parameters NaN or infinite: %s, in a "
                       "new run from a checkpoint (model.init_from)",
                       (unsigned long long)step.round + 1, config_divergence_advice(l->config));
    if (status != STATUS_OK) return err_set(err, status, "cannot encode the update of fragment %u", close->fragment);
    assert(head + u->payload_size <= l->outer.payload_cap);
    add_norms(l, close);
    u->payload = l->outer.payload + head;
    u->rate = l->outer.lr;
    u->theta_hash = l->outer.fragments[close->fragment].hash;
    return STATUS_OK;
}
