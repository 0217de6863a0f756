#include "tests/cuda/emulate.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "gpu/cuda_kernel.h"

enum { THREADS_MAX = 1024, LANES = 32, STACK_BYTES = 256 << 10 };

enum state { FRESH, READY, AT_BLOCK, AT_WARP, DONE };

/* makecontext begins a fiber; from then on _setjmp and _longjmp switch, which unlike swapcontext make no system call.
 * AddressSanitizer only follows the latter. */
struct context {
    ucontext_t whole;
    jmp_buf jump;
    bool started;
};

/* One emulated thread: a fiber from its first barrier on. */
struct thread {
    enum state state;
    int line;      /* of the barrier it waits at */
    int fiber;     /* index; valid unless FRESH or DONE */
    unsigned vote; /* what it brought to the barrier */
    double value;
};

static struct {
    pthread_mutex_t lock; /* shared memory is static: one kernel at a time in the process */
    const char *name;
    void (*body)(const void *args);
    const void *args;
    unsigned n, current, seed, order[THREADS_MAX];
    unsigned next, end; /* places in the order: of the warp's first FRESH thread, after the warp */
    struct thread threads[THREADS_MAX];
    struct context scheduler, contexts[THREADS_MAX];
    char *stacks[THREADS_MAX];
    int idle[THREADS_MAX], n_idle, n_fibers;
} emu = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Thread_local struct emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* The linker's names for the ends of the section that __shared__ puts its arrays in; it is never empty. */
extern char shared_begin[] __asm__("__start_cuda_shared");
extern char shared_end[] __asm__("__stop_cuda_shared");
static char shared_none[16] __attribute__((section("cuda_shared"), used));

static _Noreturn void broken(const char *what, int line)
{
    fprintf(stderr, "%s, line %d: block %u,%u thread %u: %s\n", emu.name, line, blockIdx.x, blockIdx.y, threadIdx.x,
            what);
    abort();
}

void emulate_order(unsigned seed)
{
    emu.seed = seed;
}

static void switch_to(struct context *from, struct context *to)
{
#if !defined(__SANITIZE_ADDRESS__)
    from->started = true;
    if (to->started) {
        if (!_setjmp(from->jump)) _longjmp(to->jump, 1);
        return;
    }
    if (_setjmp(from->jump)) return;
#endif
    swapcontext(&from->whole, &to->whole);
}

/* values[0 .. n-1] = 0 .. n-1 in the order of the seed */
static void arrange(unsigned *values, unsigned n, unsigned mix)
{
    for (unsigned i = 0; i < n; i++) values[i] = emu.seed == 1 ? n - 1 - i : i;
    for (unsigned i = n; emu.seed > 1 && i > 1; i--) {
        mix = mix * 1664525u + 1013904223u;
        unsigned j = (mix >> 8) % i, other = values[j];
        values[j] = values[i - 1];
        values[i - 1] = other;
    }
}

/* Warp by warp, because a warp may run far ahead of the others. */
static void make_order(unsigned block)
{
    unsigned warps[THREADS_MAX / LANES], lanes[LANES], mix = emu.seed * 2654435761u + block;
    arrange(warps, emu.n / LANES, mix);
    for (unsigned w = 0; w < emu.n / LANES; w++) {
        arrange(lanes, LANES, mix + w + 1);
        for (unsigned i = 0; i < LANES; i++) emu.order[w * LANES + i] = warps[w] * LANES + lanes[i];
    }
}

static void enter(unsigned thread)
{
    emu.current = thread;
    threadIdx.x = thread;
}

/* A fiber takes fresh threads one after another; only a thread that waits keeps it. */
static void fiber_main(void)
{
    for (;;) {
        int fiber = emu.threads[emu.current].fiber;
        for (;;) {
            emu.body(emu.args);
            emu.threads[emu.current].state = DONE;
            if (emu.next >= emu.end) break;
            unsigned thread = emu.order[emu.next++];
            emu.threads[thread].fiber = fiber;
            emu.threads[thread].state = READY;
            enter(thread);
        }
        emu.idle[emu.n_idle++] = fiber;
        switch_to(&emu.contexts[fiber], &emu.scheduler);
    }
}

static int fiber_take(void)
{
    if (emu.n_idle) return emu.idle[--emu.n_idle];
    int fiber = emu.n_fibers++;
    emu.stacks[fiber] = malloc(STACK_BYTES);
    if (!emu.stacks[fiber]) broken("no memory for its stack", 0);
    ucontext_t *whole = &emu.contexts[fiber].whole;
    getcontext(whole);
    whole->uc_stack.ss_sp = emu.stacks[fiber];
    whole->uc_stack.ss_size = STACK_BYTES;
    makecontext(whole, fiber_main, 0);
    return fiber;
}

/* Wait; the scheduler goes on with this thread when all it waits for are there. */
static struct thread *park(enum state state, int line)
{
    unsigned me = emu.current;
    struct thread *t = &emu.threads[me];
    t->state = state;
    t->line = line;
    switch_to(&emu.contexts[t->fiber], &emu.scheduler);
    enter(me);
    return t;
}

/* Release threads first .. last if all of them wait as `state` says; some that wait while others ended never will. */
static bool release(unsigned first, unsigned last, enum state state)
{
    unsigned waiting = 0, done = 0;
    int line = 0;
    for (unsigned i = first; i < last; i++) {
        waiting += emu.threads[i].state == state;
        done += emu.threads[i].state == DONE;
        if (emu.threads[i].state == state) line = emu.threads[i].line;
    }
    if (!waiting) return false;
    if (done) broken("some threads have ended, others wait for them", line);
    if (waiting < last - first) return false;
    for (unsigned i = first; i < last; i++) {
        if (emu.threads[i].line != line) broken("threads wait at different barriers", line);
        emu.threads[i].state = READY;
    }
    return true;
}

/* Run those of a warp that can, `at` its place in the order; false: none could. */
static bool run_warp(unsigned at)
{
    bool any = false;
    emu.end = at + LANES;
    for (unsigned i = at; i < emu.end; i++) {
        struct thread *t = &emu.threads[emu.order[i]];
        if (t->state == FRESH) {
            emu.next = i + 1;
            t->fiber = fiber_take();
            t->state = READY;
        } else if (t->state != READY) {
            continue;
        }
        any = true;
        enter(emu.order[i]);
        switch_to(&emu.scheduler, &emu.contexts[t->fiber]);
    }
    return any;
}

/* Every warp as far as it can before the next one moves, so that a missing barrier has the worst of consequences. */
static void run_block(unsigned index)
{
    make_order(index);
    for (unsigned i = 0; i < emu.n; i++) emu.threads[i] = (struct thread){.state = FRESH};
    memset(shared_begin, 0xff, (size_t)(shared_end - shared_begin));
    for (;;) {
        unsigned done = 0;
        for (unsigned at = 0; at < emu.n; at += LANES) {
            unsigned warp = emu.order[at] / LANES * LANES;
            while (run_warp(at) && release(warp, warp + LANES, AT_WARP)) continue;
        }
        for (unsigned i = 0; i < emu.n; i++) done += emu.threads[i].state == DONE;
        if (done == emu.n) return;
        if (!release(0, emu.n, AT_BLOCK)) broken("threads wait for each other", emu.threads[0].line);
    }
}

void cuda_emulate(const char *name, void (*thread)(const void *args), const void *args, unsigned x, unsigned y,
                  unsigned threads)
{
    pthread_mutex_lock(&emu.lock);
    emu.name = name;
    emu.body = thread;
    emu.args = args;
    emu.n = threads;
    gridDim = (struct emulated_index){x, y, 1};
    blockDim = (struct emulated_index){threads, 1, 1};
    if (!x || !y || threads > THREADS_MAX || threads % LANES) broken("not a grid that a GPU would take", 0);
    emulate_memory_open();
    for (unsigned block = 0; block < x * y; block++) {
        blockIdx = (struct emulated_index){block % x, block / x, 0};
        run_block(block);
    }
    emulate_memory_close();
    pthread_mutex_unlock(&emu.lock);
}

/* --- what kernels call -------------------------------------------------------------------------------------------- */

void cuda_emulated_barrier(int line)
{
    park(AT_BLOCK, line);
}

/* Values stay until all have read them, hence the second wait. */
int cuda_emulated_any(int vote, int line)
{
    int any = 0;
    emu.threads[emu.current].vote = vote != 0;
    park(AT_BLOCK, line);
    for (unsigned i = 0; i < emu.n; i++) any |= (int)emu.threads[i].vote;
    park(AT_BLOCK, line);
    return any;
}

void cuda_emulated_warp_barrier(int line)
{
    park(AT_WARP, line);
}

unsigned cuda_emulated_ballot(int vote, int line)
{
    unsigned first = emu.current / LANES * LANES, votes = 0;
    emu.threads[emu.current].vote = vote != 0;
    park(AT_WARP, line);
    for (unsigned i = 0; i < LANES; i++) votes |= emu.threads[first + i].vote << i;
    park(AT_WARP, line);
    return votes;
}

double cuda_emulated_xor_f64(double value, unsigned lanes, int line)
{
    emu.threads[emu.current].value = value;
    park(AT_WARP, line);
    double other = emu.threads[emu.current ^ lanes].value;
    park(AT_WARP, line);
    return other;
}

float cuda_emulated_xor_f32(float value, unsigned lanes, int line)
{
    return (float)cuda_emulated_xor_f64(value, lanes, line); /* a float survives the way through a double */
}

/* 32 bits survive it, too. */
unsigned cuda_emulated_xor_u32(unsigned value, unsigned lanes, int line)
{
    return (unsigned)cuda_emulated_xor_f64(value, lanes, line);
}

/* The value of the lane so many below; its own where there is none. */
unsigned cuda_emulated_up_u32(unsigned value, unsigned lanes, int line)
{
    unsigned me = emu.current, lane = me % LANES;
    emu.threads[me].vote = value;
    park(AT_WARP, line);
    unsigned other = emu.threads[lane < lanes ? me : me - lanes].vote;
    park(AT_WARP, line);
    return other;
}

/* Of the values of the warp: their sum, or the largest. */
static unsigned fold(unsigned value, bool sum, int line)
{
    unsigned first = emu.current / LANES * LANES, all = 0;
    emu.threads[emu.current].vote = value;
    park(AT_WARP, line);
    for (unsigned i = first; i < first + LANES; i++) {
        unsigned other = emu.threads[i].vote;
        all = sum ? all + other : other > all ? other : all;
    }
    park(AT_WARP, line);
    return all;
}

unsigned cuda_emulated_add_u32(unsigned value, int line)
{
    return fold(value, true, line);
}

unsigned cuda_emulated_max_u32(unsigned value, int line)
{
    return fold(value, false, line);
}
