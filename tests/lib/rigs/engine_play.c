/* Plays a whole run with the rig of tests/lib/rigs/engine_rig.h. */

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

enum { WORKERS = 2, FRAGMENTS = 2, TURNS_MAX = 200 };

void rig_values(const struct rig *r, uint32_t fragment, float level, float *out)
{
    for (uint64_t i = 0; i < r->layout.fragments[fragment].count; i++)
        out[i] = level * (0.01f + 0.001f * (float)(r->layout.fragments[fragment].offset + i));
}

static bool merged(const struct rig *r, int worker)
{
    if (r->config.train.method == METHOD_ASYNC) return true;
    for (uint32_t f = 0; f < FRAGMENTS; f++)
        if (engine_version(r->engine, f) <= r->workers[worker].task.round) return false;
    return true;
}

/* A worker keeps its delta until it is merged, and offers it again in every turn. */
static void play_turn(struct rig *r, int i, void (*each)(void))
{
    struct msg m;
    if (rig_take(r, i, MSG_EVAL, &m)) {
        struct msg result;
        rig_eval_result(r, i, &m, 2.5, &result);
        rig_say(r, r->workers[i].control, &result); /* no `each`: a restart loses shares */
    }
    while (rig_take(r, i, MSG_ASSIGN, &m)) {
        r->workers[i].task = m.assign;
        r->at_work[i] = true;
    }
    for (uint32_t f = 0; f < FRAGMENTS && r->at_work[i]; f++) {
        uint8_t answer = rig_deliver(r, i, f, (float)(1 + i) + 0.25f * (float)r->workers[i].task.round).type;
        if (answer == MSG_REJECT) r->at_work[i] = false; /* a power cut took the assignment */
        if (each) each();
    }
}

void rig_play(struct rig *r, void (*each)(void))
{
    r->at_work[0] = r->at_work[1] = false;
    for (int turns = 0; turns < TURNS_MAX; turns++) {
        struct engine_summary sum;
        engine_summary(r->engine, &sum);
        if (sum.done) return;
        for (int i = 0; i < WORKERS; i++) play_turn(r, i, each);
        for (int i = 0; i < WORKERS; i++) {
            if (r->at_work[i] && !merged(r, i)) {
                rig_beat(r, i, WORKER_SENDING);
                continue;
            }
            r->at_work[i] = false;
            rig_catch_up(r, i);
        }
        if (each) each();
    }
    char text[WIRE_TEXT_MAX];
    fail_msg("the run does not end; it waits for %s", engine_waiting(r->engine, text, sizeof text));
}
