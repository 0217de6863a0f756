/* How often a worker saves its state, and whether a save runs beside the training.
 *
 * checkpoint.worker_every 1: the last byte of each delta waits for the save, and a killed worker continues with the
 * same bits. A larger number: it comes back with an older inner optimizer anyway, so nothing waits for a save that has
 * a copy of the state.
 *
 * auto begins with 1. If SAVES_IN_A_ROW saves each hold up rounds by more than SAVE_SHARE of the time, it chooses the
 * smallest number with which they do not, and goes back to 1 after as many that would not hold up rounds either. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/os/host_memory.h"
#include "worker/outer/outer_loop_impl.h"

enum {
    SAVES_IN_A_ROW = 3,
    EVERY_MAX = 1000,      /* auto: rounds between saves */
    MEMORY_LEFT_SHARE = 8, /* this part of the free memory is not taken for copies */
};
#define SAVE_SHARE 0.005 /* share of the time that saves may take from rounds */
#define SAVE_SLOW_S 1.0  /* shorter delays are not logged */

static bool is_auto(const struct outer_loop *loop)
{
    const struct config *config = loop->model.config;
    return config_saves_auto(config) && config->train.method != METHOD_DDP;
}

uint64_t outer_loop_save_every(const struct outer_loop *loop, uint64_t *worst_p)
{
    const struct outer_pace *pace = &loop->save.pace;
    uint64_t every = loop->configured ? config_save_every(loop->model.config) : 0;
    if (every && is_auto(loop) && pace->every) every = pace->every;
    uint64_t during = every > 1 && pace->round_us ? (pace->save_us + pace->round_us - 1) / pace->round_us : 0;
    *worst_p = every > 1 ? every + during : 0; /* killed before the next save is durable */
    return every;
}

/* --- beside the training ------------------------------------------------------------------------------------------ */

static bool has_room(const struct outer_loop *loop, uint64_t bytes, uint64_t more)
{
    uint64_t available, total;
    uint64_t needed = more + (bytes > loop->save.copy_cap ? bytes : 0);
    if (!needed) return true;
    host_memory(&available, &total);
    return needed <= available - available / MEMORY_LEFT_SHARE;
}

bool outer_save_goes_beside(const struct outer_loop *loop, uint64_t bytes, uint64_t more)
{
    uint64_t worst;
    if (loop->live) return true;
    return outer_loop_save_every(loop, &worst) > 1 && has_room(loop, bytes, more);
}

/* Bytes of the next save, without the program's. */
static uint64_t bytes_of_save(const struct outer_loop *loop)
{
    uint64_t arrays = 1 + loop->feedback + (loop->live ? 1 + (loop->base != loop->theta) : 0);
    uint64_t bytes = arrays * loop->n_params * sizeof(float);
    for (uint32_t i = 0; i < loop->n_fragments; i++) bytes += loop->f[i].payload_cap;
    return bytes;
}

enum outer_next_save outer_loop_next_save(struct outer_loop *loop, uint64_t bytes)
{
    struct outer_pace *pace = &loop->save.pace;
    const struct sync *s = &loop->sync;
    bool last;
    pace->asked = false;
    if (!loop->configured || !sync_sends_next(s, &last)) return OUTER_SAVE_NONE;
    outer_save_finish(loop);
    bool first = loop->save.saved_round == SYNC_NO_ROUND && !loop->async; /* as in send_deltas */
    uint64_t round = s->computing ? s->round : s->task.round;
    if (!(last || first) || !outer_save_due(loop, round)) return OUTER_SAVE_NONE;
    pace->asked = true;
    pace->beside = outer_save_goes_beside(loop, bytes_of_save(loop), bytes);
    return pace->beside ? OUTER_SAVE_BESIDE : OUTER_SAVE_HELD;
}

/* --- how often ---------------------------------------------------------------------------------------------------- */

/* Logs once if saves delay rounds by at least SAVE_SLOW_S and SAVE_SHARE of the time, with a larger worker_every. */
static void log_slow_save(struct outer_loop *loop)
{
    uint64_t every = config_worker_every(loop->model.config);
    double rounds_s = (double)every * (double)loop->saved.compute_us * 1e-6;
    double held_up_s = (double)loop->save.held_up_us * 1e-6;
    if (loop->save.slow || rounds_s == 0 || loop->model.config->train.method == METHOD_DDP) return;
    if (held_up_s < SAVE_SLOW_S || held_up_s < SAVE_SHARE * rounds_s) return;
    log_info("waited %s for the save of this worker's state (%s), %s of the time between two saves: "
             "set checkpoint.worker_every to auto, or to %.0f, to bring it below %s",
             units_duration(held_up_s).text, units_bytes((double)loop->save.bytes).text,
             units_percent(held_up_s / (rounds_s + held_up_s)).text,
             ceil(held_up_s * (double)every / (SAVE_SHARE * rounds_s)), units_percent(SAVE_SHARE).text);
    loop->save.slow = true;
}

static uint64_t rounds_for(double seconds, double round_s, double share)
{
    double n = ceil(seconds / (share * round_s));
    return n > EVERY_MAX ? EVERY_MAX : n < 1 ? 1 : (uint64_t)n;
}

/* The smallest number of rounds with which saves do not hold up rounds. */
static uint64_t rounds_wanted(const struct outer_loop *loop, double held_up_s)
{
    const struct outer_pace *pace = &loop->save.pace;
    double round_s = (double)pace->round_us * 1e-6;
    bool beside = loop->live || loop->save.beside || (pace->every <= 1 && has_room(loop, loop->save.bytes, 0));
    if (!beside) return rounds_for(held_up_s, round_s, SAVE_SHARE);
    uint64_t to_end = rounds_for((double)pace->save_us * 1e-6, round_s, 1);
    uint64_t to_copy = rounds_for((double)pace->copy_us * 1e-6, round_s, SAVE_SHARE);
    uint64_t n = to_end > to_copy ? to_end : to_copy;
    return n < 2 ? 2 : n;
}

/* Seconds by which this save would hold up its round, if each round had one. */
static double would_hold_up_s(const struct outer_loop *loop, uint64_t now_us)
{
    const struct outer_save *save = &loop->save;
    if (save->held_back) return (double)save->held_up_us * 1e-6;
    uint64_t delivered = loop->delivered_us; /* 0: the upload takes longer than the save */
    bool later = delivered && delivered >= save->begun_us && now_us > delivered;
    return (double)(save->held_up_us + (later ? now_us - delivered : 0)) * 1e-6;
}

static void choose(struct outer_loop *loop, uint64_t every, double held_up_s)
{
    struct outer_pace *pace = &loop->save.pace;
    double round_s = (double)pace->round_us * 1e-6;
    uint64_t worst, before = pace->every ? pace->every : 1;
    pace->slow = pace->quick = 0;
    if (every == before) return;
    pace->every = every;
    (void)outer_loop_save_every(loop, &worst);
    if (every == 1)
        log_info("checkpoint.worker_every auto: saves this worker's state each round again, which holds up no round: "
                 "a kill costs nothing");
    else
        log_info("checkpoint.worker_every auto: saves of this worker's state (%s) held up rounds by %s (%s of their "
                 "time), so it saves every %" PRIu64 " rounds: a kill costs at most %" PRIu64 " rounds of this "
                 "worker's optimizer state",
                 units_bytes((double)loop->save.bytes).text, units_duration(held_up_s).text,
                 units_percent(round_s > 0 ? held_up_s / round_s : 0).text, every, worst);
    loop->save.tell = true;
}

void outer_save_measured(struct outer_loop *loop, uint64_t now_us)
{
    struct outer_save *save = &loop->save;
    struct outer_pace *pace = &save->pace;
    uint64_t before = pace->begun_us, rounds = save->round - pace->round, held_us = pace->held_up_us;
    bool follows = before && save->round > pace->round && save->begun_us > before;
    pace->save_us = now_us - save->begun_us;
    pace->begun_us = save->begun_us;
    pace->held_up_us = save->held_up_us;
    pace->round = save->round;
    save->tell = true;
    if (!is_auto(loop)) {
        log_slow_save(loop);
        return;
    }
    if (!save->told)
        log_info("checkpoint.worker_every auto: saves this worker's state each round as long as that holds up none: "
                 "a kill costs nothing");
    save->told = true;
    if (!follows) return;
    if (save->begun_us - before <= held_us) return;
    pace->round_us = (save->begun_us - before - held_us) / rounds;
    if (!pace->round_us) return;
    uint64_t every = pace->every ? pace->every : 1;
    double round_s = (double)pace->round_us * 1e-6, held_up_s = (double)save->held_up_us * 1e-6;
    bool slow = held_up_s > SAVE_SHARE * round_s * (double)every;
    bool ended_late = save->beside && pace->save_us > every * pace->round_us;
    bool quick = every > 1 && would_hold_up_s(loop, now_us) <= SAVE_SHARE * round_s;
    pace->slow = slow || ended_late ? pace->slow + 1 : 0;
    pace->quick = quick ? pace->quick + 1 : 0;
    if (pace->quick >= SAVES_IN_A_ROW)
        choose(loop, 1, held_up_s);
    else if (pace->slow >= SAVES_IN_A_ROW)
        choose(loop, rounds_wanted(loop, held_up_s), held_up_s);
    assert(pace->every <= EVERY_MAX);
}

void outer_save_tell(struct outer_loop *loop)
{
    uint64_t worst, every = outer_loop_save_every(loop, &worst), session = outer_loop_session(loop);
    if (!loop->save.tell || !session || !loop->setup.save_begin) return;
    bool wanted = every > 1 || (every == 1 && is_auto(loop)); /* otherwise the coordinator knows */
    if (wanted) {
        loop->out.type = MSG_SAVES;
        loop->out.saves = (struct msg_saves){.session = session,
                                             .every = every < UINT32_MAX ? (uint32_t)every : UINT32_MAX,
                                             .worst = worst < UINT32_MAX ? (uint32_t)worst : UINT32_MAX,
                                             .round = loop->save.saved_round};
        if (outer_send(loop, WIRE_CONTROL) != STATUS_OK) return;
    }
    loop->save.tell = false;
}
