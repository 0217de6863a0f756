/* Internals of the emulated runtime: emulate_rt.c (open, close, copies), emulate_gemm.c (matrix products),
 * emulate_memory.c, emulate_queue.c (submission and execution), emulate_clock.c (order between queues), emulate_comm.c
 * (collectives).
 *
 * - Operations are queued and run when the host waits, in an order that the seed selects among those that the events
 *   allow.
 * - One thread at a time uses a device. The host's thread also runs the device.
 * - If a host's wait ends early (cuda_rt_watch), a GPU would go on working; here the operation stays in its queue for
 *   the next wait. Blocking calls do not check for this. */
#ifndef TESTS_CUDA_EMULATE_IMPL_H
#define TESTS_CUDA_EMULATE_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/rt/cuda_rt.h"
#include "gpu/device.h"

/* Per queue, the number of operations that are done, or known to be done. */
struct emulated_clock {
    uint32_t at[CUDA_QUEUES];
};

/* Last accesses to four bytes of memory. */
struct emulated_mark {
    uint32_t write, read[CUDA_QUEUES]; /* clocks of the queues; 0: never */
    uint32_t writer;                   /* queue of the last write */
};

struct emulated_block {
    struct emulated_block *next;
    const char *name; /* emulate_name, or NULL */
    unsigned number;  /* number of the allocation, for messages */
    unsigned char *base, *p;
    size_t bytes, pages;         /* pages: accessible bytes; a guard page follows */
    uint32_t born;               /* clock of CUDA_MAIN: the memory is cleared there */
    struct emulated_mark *marks; /* one per four bytes; NULL: not recorded yet */
};

struct emulated_op {
    struct emulated_op *next;
    const char *name;
    void (*run)(struct cuda_rt *rt, const void *args); /* NULL: record of or wait for an event */
    struct cuda_event *record, *wait;
    uint64_t place;              /* number of the record of the event */
    struct emulated_clock clock; /* number of this operation in its queue, and the operations ordered before it */
    max_align_t args[];
};

struct emulated_queue {
    struct emulated_op *first, **last;
    enum cuda_queue id;
    struct cuda_rt *rt;
    struct emulated_clock clock;
};

struct cuda_event {
    _Atomic uint64_t recorded, done; /* numbers of records submitted and run */
    struct emulated_clock clock;
};

enum { EMULATED_PAGES = 256 };

struct emulated_page {
    uintptr_t page;               /* 0: none yet */
    struct emulated_block *block; /* NULL: host memory */
};

struct cuda_rt {
    int index;
    char name[64];
    struct err error;
    struct emulated_block *blocks;
    struct emulated_page pages[EMULATED_PAGES]; /* cache: owners of recent pages */
    unsigned n_blocks;
    int opened;
    struct emulated_queue queues[CUDA_QUEUES];
    struct cuda_event marks[DEVICE_MARKS];
    struct emulated_clock host; /* operations that the host waited for */
    bool recording;             /* set at the first event: more than one queue is in use */
    enum cuda_queue running;    /* queue, name, clock of the running operation */
    const char *running_name;
    struct emulated_clock running_clock;
    uint64_t random, n_run;
    uint64_t fail_at, hang_at;  /* numbers, from 1, of the operations that fail or hang; 0: none */
    unsigned hangs_ended;       /* number of emulate_hangs_end calls before the device was opened */
    size_t queue_max, n_queued; /* operations; queue_max 0: no limit */
    bool pageable_blocks;
    struct emulated_pinned {
        struct emulated_pinned *next;
        char *p;
        size_t bytes;
    } * pinned;
    struct cuda_progress progress;
    const struct err *(*stopped)(void *ctx);
    void *stopped_ctx;
    bool looks, left; /* looks: this wait calls `stopped`; left: the wait ended early */
};

/* Allow and forbid access to device memory; calls nest. */
void emulate_memory_open(struct cuda_rt *rt);
void emulate_memory_close(struct cuda_rt *rt);
void *emulate_memory_alloc(struct cuda_rt *rt, size_t bytes);
void emulate_memory_release(struct cuda_rt *rt, void *p);
void emulate_memory_release_all(struct cuda_rt *rt);
/* Fail the runtime if a kernel wrote past the end of an allocation. */
void emulate_memory_check_ends(struct cuda_rt *rt);
/* Returns the allocation that contains p, or NULL. */
struct emulated_block *emulate_memory_find(struct cuda_rt *rt, const void *p);

void emulate_queues_init(struct cuda_rt *rt);
void emulate_queues_finish(struct cuda_rt *rt);
/* Queue run(rt, copy of args). `name` must stay valid. */
void emulate_submit(struct cuda_rt *rt, enum cuda_queue queue, const char *name,
                    void (*run)(struct cuda_rt *rt, const void *args), const void *args, size_t bytes);
/* Run all operations. drain may end early (cuda_rt_watch), block may not. */
void emulate_drain(struct cuda_rt *rt);
void emulate_block(struct cuda_rt *rt);
/* For operations that wait: true if the host's wait ended early and the operation must return. */
bool emulate_leave(struct cuda_rt *rt);
/* Hang until the first emulate_hangs_end after the open of the device or, with `leave`, until the host's wait ends. */
void emulate_hang(struct cuda_rt *rt, bool leave);

/* Record that the running operation reads or writes bytes of device memory; host memory is ignored. A clash with
 * another queue fails the runtime with a message that names the operation and the other queue. */
void emulate_touch(struct cuda_rt *rt, const void *p, size_t bytes, bool write);
void emulate_clock_join(struct emulated_clock *to, const struct emulated_clock *other);

#endif
