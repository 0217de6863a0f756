/* A clock in virtual time: one queue of events ordered by (time, order of insertion). */
#ifndef TESTS_EVENT_QUEUE_H
#define TESTS_EVENT_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void (*event_fn)(void *ctx, uint64_t arg);

/* Zero-initialized: time 0, no events. */
struct event_queue {
    uint64_t now_us, seq; /* seq: number of events scheduled so far */
    struct scheduled *heap;
    size_t n, cap;
};

void event_queue_finish(struct event_queue *events);
/* Run fn(ctx, arg) at `at_us`, or now if that has passed. Events of equal time run in the order of their scheduling. */
void event_queue_at(struct event_queue *events, uint64_t at_us, event_fn fn, void *ctx, uint64_t arg);
/* Run the next event. False if there is none until `until_us`; the clock then stands at until_us. */
bool event_queue_step(struct event_queue *events, uint64_t until_us);

#endif
