/* Exact happens-before check between queues: for every four bytes, the clocks of the last write and of each queue's
 * last read. An access that is not ordered after them (no event between) is reported. Vector clocks as in
 * Flanagan and Freund, "FastTrack", PLDI 2009. */
#include <stdio.h>

#include "tests/cuda/emulator/emulate_impl.h"

enum { PAGE = 4096 };

static const char *const queue_names[CUDA_QUEUES] = {"MAIN", "COMM", "COPY"};

void emulate_clock_join(struct emulated_clock *to, const struct emulated_clock *other)
{
    for (int q = 0; q < CUDA_QUEUES; q++)
        if (other->at[q] > to->at[q]) to->at[q] = other->at[q];
}

static void report(struct cuda_rt *rt, const struct emulated_block *b, size_t from, size_t to, bool write,
                   enum cuda_queue other, bool other_wrote)
{
    char what[400], memory[80];
    if (b->name)
        snprintf(memory, sizeof memory, "%s", b->name);
    else
        snprintf(memory, sizeof memory, "memory %u (%zu bytes)", b->number, b->bytes);
    snprintf(what, sizeof what, "%s on %s %s %s+%zu..%zu, which %s %s, without an event between", rt->running_name,
             queue_names[rt->running], write ? "writes" : "reads", memory, from, to, queue_names[other],
             other_wrote ? "writes" : "reads");
    cuda_rt_fail(rt, STATUS_CORRUPT, what);
}

/* Returns a queue whose last access to these four bytes is not ordered before the running operation, or CUDA_QUEUES. */
static enum cuda_queue clash(const struct cuda_rt *rt, const struct emulated_mark *m, bool write, bool *wrote)
{
    *wrote = true;
    if (m->write > rt->running_clock.at[m->writer]) return (enum cuda_queue)m->writer;
    *wrote = false;
    for (int q = 0; q < CUDA_QUEUES && write; q++)
        if (m->read[q] > rt->running_clock.at[q]) return (enum cuda_queue)q;
    return CUDA_QUEUES;
}

static void mark(struct cuda_rt *rt, struct emulated_mark *m, bool write)
{
    uint32_t now = rt->running_clock.at[rt->running];
    if (write)
        *m = (struct emulated_mark){.write = now, .writer = rt->running};
    else
        m->read[rt->running] = now;
}

void emulate_touch(struct cuda_rt *rt, const void *p, size_t bytes, bool write)
{
    if (!rt->recording || !bytes) return;
    struct emulated_block *b = emulate_memory_find(rt, p);
    const unsigned char *begin = p;
    if (!b || !b->marks || begin < b->p || begin + bytes > b->p + b->bytes) return;
    size_t first = (size_t)(begin - b->p) / 4, last = ((size_t)(begin - b->p) + bytes + 3) / 4, from = last, to = 0;
    enum cuda_queue other = CUDA_QUEUES;
    bool wrote = false;
    if (b->born > rt->running_clock.at[CUDA_MAIN]) {
        from = first;
        to = last;
        other = CUDA_MAIN;
        wrote = true;
    }
    /* Write first: reading a fresh page maps the system's page of zeros, and the later write maps it again. */
    for (size_t i = first; i < last; i += PAGE / sizeof *b->marks)
        (void)__atomic_fetch_or(&b->marks[i].write, 0, __ATOMIC_RELAXED);
    for (size_t i = first; i < last; i++) {
        bool w;
        enum cuda_queue q = clash(rt, &b->marks[i], write, &w);
        if (q != CUDA_QUEUES) {
            if (from > i) from = i;
            to = i + 1;
            other = q;
            wrote = w;
        }
        mark(rt, &b->marks[i], write);
    }
    if (other != CUDA_QUEUES) report(rt, b, from * 4, to * 4, write, other, wrote);
}
