/* Inside of the emulated runtime: emulate_rt.c (life, copies), emulate_gemm.c (matrix products), emulate_memory.c,
 * emulate_queue.c (what was submitted and when it runs), emulate_clock.c (who may touch what), emulate_comm.c
 * (collectives).
 *
 * What is submitted is kept, and runs when the host waits for it: then, in an order that the seed chooses among all
 * that the events permit. One thread at a time uses one device.
 *
 * The host's thread is also the one that runs the device. Where a GPU would be left at work while the host's wait ends
 * (cuda_rt_watch), the operation stays in its queue, to be waited for again; calls that block look at nothing. */
#ifndef TESTS_CUDA_EMULATE_IMPL_H
#define TESTS_CUDA_EMULATE_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/rt/cuda_rt.h"
#include "gpu/device.h"

/* Operations of each queue that are done, or known to be. */
struct emulated_clock {
    uint32_t at[CUDA_QUEUES];
};

/* Who touched four bytes of memory last. */
struct emulated_mark {
    uint32_t write, read[CUDA_QUEUES]; /* clocks of the queues; 0: never */
    uint32_t writer;                   /* queue */
};

struct emulated_block {
    struct emulated_block *next;
    const char *name; /* emulate_name, or NULL */
    unsigned number;  /* in the order of allocation, for messages */
    unsigned char *base, *p;
    size_t bytes, pages;         /* pages: bytes that can be opened, a guard page follows */
    uint32_t born;               /* clock of CUDA_MAIN: the memory is cleared there */
    struct emulated_mark *marks; /* one for four bytes; NULL: not recorded yet */
};

struct emulated_op {
    struct emulated_op *next;
    const char *name;
    void (*run)(struct cuda_rt *rt, const void *args); /* NULL: an event is recorded or waited for */
    struct cuda_event *record, *wait;
    uint64_t place;              /* how often the event was recorded then */
    struct emulated_clock clock; /* this operation among its queue's, and what is known to be done before it */
    max_align_t args[];
};

struct emulated_queue {
    struct emulated_op *first, **last;
    enum cuda_queue id;
    struct cuda_rt *rt;
    struct emulated_clock clock;
    const char **names; /* [n_names], by clock: of the operations so far, for messages */
    size_t n_names;
};

struct cuda_event {
    _Atomic uint64_t recorded, done; /* how often, submitted and run */
    struct emulated_clock clock;
};

enum { EMULATED_PAGES = 256 };

struct emulated_page {
    uintptr_t page;               /* 0: none yet */
    struct emulated_block *block; /* NULL: of the host */
};

struct cuda_rt {
    int index;
    char name[64];
    struct err error;
    struct emulated_block *blocks;
    struct emulated_page pages[EMULATED_PAGES]; /* that were asked for last: whose they are */
    unsigned n_blocks;
    int opened;
    struct emulated_queue queues[CUDA_QUEUES];
    struct cuda_event marks[DEVICE_MARKS];
    struct emulated_clock host; /* what the host has waited for */
    bool recording;             /* from the first event on: there is more than one queue */
    enum cuda_queue running;    /* the operation that runs: its queue, name, clock */
    const char *running_name;
    struct emulated_clock running_clock;
    uint64_t random, n_run;
    uint64_t fail_at, hang_at;  /* the operation that fails, hangs, counted from 1; 0: none */
    unsigned hangs_ended;       /* how often, when it was opened */
    size_t queue_max, n_queued; /* operations; queue_max 0: any number */
    bool pageable_blocks;
    struct emulated_pinned {
        struct emulated_pinned *next;
        char *p;
        size_t bytes;
    } * pinned;
    struct cuda_progress progress;
    const struct err *(*stopped)(void *ctx);
    void *stopped_ctx;
    bool looks, left; /* this wait asks `stopped`; it was left before it was over */
};

/* The device whose kernel this thread runs, or NULL. */
extern _Thread_local struct cuda_rt *emulate_running;

/* Memory of the device may be touched between these; they nest. */
void emulate_memory_open(struct cuda_rt *rt);
void emulate_memory_close(struct cuda_rt *rt);
void *emulate_memory_alloc(struct cuda_rt *rt, size_t bytes);
void emulate_memory_release(struct cuda_rt *rt, void *p);
void emulate_memory_release_all(struct cuda_rt *rt);
/* Something wrote behind the end of an allocation: the runtime fails. */
void emulate_memory_check_ends(struct cuda_rt *rt);
/* The allocation that p lies in, or NULL. */
struct emulated_block *emulate_memory_find(struct cuda_rt *rt, const void *p);

void emulate_queues_init(struct cuda_rt *rt);
void emulate_queues_finish(struct cuda_rt *rt);
/* run(rt, copy of args) later. `name` is kept. */
void emulate_submit(struct cuda_rt *rt, enum cuda_queue queue, const char *name,
                    void (*run)(struct cuda_rt *rt, const void *args), const void *args, size_t bytes);
/* Everything runs: a wait that may be left, and one that looks at nothing. */
void emulate_drain(struct cuda_rt *rt);
void emulate_block(struct cuda_rt *rt);
/* In an operation that waits: true, leave it, the host's wait is over (noted). */
bool emulate_leave(struct cuda_rt *rt);
/* Hang until the first emulate_hangs_end after the device was opened or, with `leave`, the host's wait is left. */
void emulate_hang(struct cuda_rt *rt, bool leave);

/* The operation that runs reads or writes so many bytes of device memory (memory of the host is left out). A clash
 * with another queue fails the runtime, with a message that names both. */
void emulate_touch(struct cuda_rt *rt, const void *p, size_t bytes, bool write);
void emulate_clock_join(struct emulated_clock *to, const struct emulated_clock *other);

/* --- emulate.c, for emulate_mma.c --------------------------------------------------------------------------------- */

/* The thread of the block that runs. */
unsigned emulate_thread(void);
/* Wait for the other lanes; orders no memory. */
void emulate_meet(int line);
/* The kernel is wrong: end the process with a message. */
_Noreturn void emulate_broken(const char *what, int line);
/* In emulate_mma.c: a block of so many threads has ended. */
void emulate_copies_end(unsigned threads);

#endif
