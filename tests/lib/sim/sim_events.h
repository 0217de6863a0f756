/* A clock in virtual time: one queue of events ordered by (time, order of insertion). */
#ifndef TESTS_LIB_SIM_EVENTS_H
#define TESTS_LIB_SIM_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*sim_events_fn)(void *ctx, uint64_t arg);

/* Zero-initialized: time 0, no events. */
struct sim_events {
    uint64_t now_us, seq; /* seq: number of events scheduled so far */
    struct sim_event *heap;
    size_t n, cap;
};

void sim_events_finish(struct sim_events *events);
/* Run fn(ctx, arg) at `at_us`, or now if that has passed. Events of equal time run in the order of their scheduling. */
void sim_events_at(struct sim_events *events, uint64_t at_us, sim_events_fn fn, void *ctx, uint64_t arg);
/* Run the next event. False if there is none until `until_us`; the clock then stands at until_us. */
bool sim_events_step(struct sim_events *events, uint64_t until_us);

#endif
