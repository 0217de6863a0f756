/* A region as a worker of the run upstream: what the outer loop wants is done by the region's engine, which trains with
 * the region's own workers. Pure: without sockets, threads or clock; a thread and the simulation drive it.
 *
 * - An assignment is a grant for the region. The delta is made when the region has sealed the round.
 * - The outer loop adds its residual and encodes, as for any worker, and its saved state keeps the delta.
 * - A round that upstream assigns again, after it refused the delta: the residual holds the delta, so nothing is added.
 * - Parameters that the outer loop has loaded reach the region as a jump, at the end of a round of upstream.
 *
 * The engine may run in another thread: struct region_port. A port returns false when the region ends; the loop then
 * does nothing more. */
#ifndef CLI_REGION_LOOP_H
#define CLI_REGION_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/engine/engine.h"
#include "worker/outer/outer_loop.h"

struct region_port {
    void *ctx;
    /* engine_on_upstream. On return the engine has taken the event, durably. */
    bool (*event)(void *ctx, const struct engine_upstream *event);
    /* A jump; *known_p: engine_region_knows. */
    bool (*jump)(void *ctx, const struct engine_upstream *event, bool *known_p);
    /* engine_region_values of a sealed round; *sealed_p false: not yet. */
    bool (*values)(void *ctx, uint64_t round, float *values, struct delta_sum *sum, bool *sealed_p);
    /* engine_region_evaluated; *done_p false: not yet. */
    bool (*evaluated)(void *ctx, struct msg_eval_result *result, bool *done_p);
    uint32_t (*workers)(void *ctx); /* engine_region_workers */
};

struct region_loop {
    struct region_port port;
    struct outer_loop *loop;
    const struct config *config; /* of the run; borrowed */
    uint32_t n_fragments, sample_tokens;
    float *values;    /* [n_params], borrowed */
    uint64_t session; /* in which the region knows the loop's parameters; 0: none */
    bool training;    /* the assignment was granted */
    bool again;       /* its delta is in the residual */
    bool evaluating;  /* the region has the evaluation */
    bool ended;       /* the port returned false */
};

/* Call it after outer_loop_tick, and when the engine has changed. */
void region_loop_turn(struct region_loop *r, uint64_t now_us);
/* For outer_setup.on_update. */
bool region_loop_update(struct region_loop *r, const uint8_t *object, size_t size, bool taken, bool named);

#endif
