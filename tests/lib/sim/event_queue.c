#include "tests/lib/sim/event_queue.h"

#include <assert.h>

#include "common/base/mem.h"

struct scheduled {
    uint64_t at_us, seq, arg;
    event_fn fn;
    void *ctx;
};

void event_queue_finish(struct event_queue *events)
{
    mem_free(events->heap);
    *events = (struct event_queue){0};
}

static bool before(const struct scheduled *a, const struct scheduled *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

void event_queue_at(struct event_queue *events, uint64_t at_us, event_fn fn, void *ctx, uint64_t arg)
{
    if (events->n == events->cap) {
        size_t cap = events->cap ? 2 * events->cap : 256;
        events->heap = mem_resize(events->heap, events->cap * sizeof(*events->heap), cap * sizeof(*events->heap));
        assert(events->heap);
        events->cap = cap;
    }
    struct scheduled e = {at_us > events->now_us ? at_us : events->now_us, events->seq++, arg, fn, ctx};
    struct scheduled *heap = events->heap;
    size_t i = events->n++;
    for (; i > 0 && before(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}

static struct scheduled take(struct event_queue *events)
{
    struct scheduled *heap = events->heap, first = heap[0], last = heap[--events->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= events->n) break;
        if (child + 1 < events->n && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

bool event_queue_step(struct event_queue *events, uint64_t until_us)
{
    if (events->n == 0 || events->heap[0].at_us > until_us) {
        if (events->now_us < until_us) events->now_us = until_us;
        return false;
    }
    struct scheduled e = take(events);
    events->now_us = e.at_us;
    e.fn(e.ctx, e.arg);
    return true;
}
