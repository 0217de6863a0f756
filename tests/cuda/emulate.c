#include "tests/cuda/emulate.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "gpu/cuda_kernel.h"
#include "tests/cuda/emulate_impl.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

enum { THREADS_MAX = 1024, LANES = 32, STACK_BYTES = 256 << 10 };

enum state { FRESH, READY, AT_BLOCK, AT_WARP, DONE };

/* makecontext begins a fiber; from then on jumps switch, which unlike swapcontext make no system call. AddressSanitizer
 * is told of them and keeps `fake`; its own _longjmp would make system calls and forget about the stack's arrays. */
#if defined(__SANITIZE_ADDRESS__)
struct jump {
    void *to[5];
};
#define JUMP_SET(jump) __builtin_setjmp((jump).to)
#define JUMP(jump) __builtin_longjmp((jump).to, 1)
#define JUMPS __attribute__((noinline, no_sanitize_address))
#else
struct jump {
    jmp_buf to;
};
#define JUMP_SET(jump) _setjmp((jump).to)
#define JUMP(jump) _longjmp((jump).to, 1)
#define JUMPS
#endif

struct context {
    ucontext_t whole;
    struct jump jump;
    bool started;
    const void *stack;
    size_t stack_bytes;
    void *fake;
};

/* One emulated thread: a fiber from its first barrier on. */
struct thread {
    enum state state;
    int line;      /* of the barrier it waits at */
    bool orders;   /* that barrier orders memory, too */
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

const struct emulate_watch *emulate_watch;

/* Not of a thread: one kernel at a time runs, and its fibers may come from another thread. */
struct emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* The linker's names for the ends of the section that __shared__ puts its arrays in; it is never empty. */
extern char shared_begin[] __asm__("__start_cuda_shared");
extern char shared_end[] __asm__("__stop_cuda_shared");
static char shared_none[16] __attribute__((section("cuda_shared"), used));

_Noreturn void emulate_broken(const char *what, int line)
{
    fprintf(stderr, "%s, line %d: block %u,%u thread %u: %s\n", emu.name, line, blockIdx.x, blockIdx.y, threadIdx.x,
            what);
    abort();
}

void emulate_order(unsigned seed)
{
    emu.seed = seed;
}

/* Of AddressSanitizer: the stack changes, has changed. Fibers switch to the scheduler and back only. */
static void leave(struct context *from, const struct context *to)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack_bytes);
#else
    (void)from;
    (void)to;
#endif
}

static void arrive(struct context *at)
{
#if defined(__SANITIZE_ADDRESS__)
    struct context other;
    __sanitizer_finish_switch_fiber(at->fake, &other.stack, &other.stack_bytes);
    if (at == &emu.scheduler) return;
    emu.scheduler.stack = other.stack;
    emu.scheduler.stack_bytes = other.stack_bytes;
#else
    (void)at;
#endif
}

JUMPS static void switch_to(struct context *from, struct context *to)
{
    from->started = true;
    leave(from, to);
    if (!JUMP_SET(from->jump)) {
        if (to->started) JUMP(to->jump);
        swapcontext(&from->whole, &to->whole);
    }
    arrive(from);
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
    if (emulate_watch) emulate_watch->run(emu.stacks[emu.threads[thread].fiber], STACK_BYTES);
}

static void stop(void)
{
    if (emulate_watch) emulate_watch->run(NULL, 0);
}

/* A fiber takes fresh threads one after another; only a thread that waits keeps it. */
static void fiber_main(void)
{
    arrive(&emu.contexts[emu.threads[emu.current].fiber]);
    for (;;) {
        int fiber = emu.threads[emu.current].fiber;
        for (;;) {
            emu.body(emu.args);
            stop();
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
    if (!emu.stacks[fiber]) emulate_broken("no memory for its stack", 0);
    struct context *context = &emu.contexts[fiber];
    ucontext_t *whole = &context->whole;
    context->stack = emu.stacks[fiber];
    context->stack_bytes = STACK_BYTES;
    getcontext(whole);
    whole->uc_stack.ss_sp = emu.stacks[fiber];
    whole->uc_stack.ss_size = STACK_BYTES;
    makecontext(whole, fiber_main, 0);
    return fiber;
}

/* Wait; the scheduler goes on with this thread when all it waits for are there. */
static struct thread *park(enum state state, bool orders, int line)
{
    unsigned me = emu.current;
    struct thread *t = &emu.threads[me];
    stop();
    t->state = state;
    t->orders = orders;
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
    if (done) emulate_broken("some threads have ended, others wait for them", line);
    if (waiting < last - first) return false;
    for (unsigned i = first; i < last; i++) {
        if (emu.threads[i].line != line) emulate_broken("threads wait at different barriers", line);
        emu.threads[i].state = READY;
    }
    if (emulate_watch && emu.threads[first].orders) emulate_watch->met(first, last);
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
    if (emulate_watch) emulate_watch->block();
    for (;;) {
        unsigned done = 0;
        for (unsigned at = 0; at < emu.n; at += LANES) {
            unsigned warp = emu.order[at] / LANES * LANES;
            while (run_warp(at) && release(warp, warp + LANES, AT_WARP)) continue;
        }
        for (unsigned i = 0; i < emu.n; i++) done += emu.threads[i].state == DONE;
        if (done == emu.n) break;
        if (!release(0, emu.n, AT_BLOCK)) emulate_broken("threads wait for each other", emu.threads[0].line);
    }
    emulate_copies_end(emu.n);
}

void cuda_emulate(const char *name, void (*thread)(const void *args), const void *args, size_t args_bytes,
                  unsigned x, unsigned y, unsigned threads)
{
    pthread_mutex_lock(&emu.lock);
    emu.name = name;
    emu.body = thread;
    emu.args = args;
    emu.n = threads;
    gridDim = (struct emulated_index){x, y, 1};
    blockDim = (struct emulated_index){threads, 1, 1};
    if (!x || !y || threads > THREADS_MAX || threads % LANES) emulate_broken("not a grid that a GPU would take", 0);
    if (emulate_watch) emulate_watch->launch(name, args, args_bytes);
    for (unsigned block = 0; block < x * y; block++) {
        blockIdx = (struct emulated_index){block % x, block / x, 0};
        run_block(block);
    }
    if (emulate_watch) emulate_watch->end();
    pthread_mutex_unlock(&emu.lock);
}

/* --- what kernels call -------------------------------------------------------------------------------------------- */

static bool is_left_out(const char *file, int line)
{
    return emulate_watch && !emulate_watch->wait(file, line);
}

void cuda_emulated_barrier(const char *file, int line)
{
    if (!is_left_out(file, line)) park(AT_BLOCK, true, line);
}

void cuda_emulated_warp_barrier(const char *file, int line)
{
    if (!is_left_out(file, line)) park(AT_WARP, true, line);
}

unsigned emulate_thread(void)
{
    return emu.current;
}

void emulate_meet(int line)
{
    park(AT_WARP, false, line);
}

/* Values stay until all have read them, hence the second wait. */
unsigned cuda_emulated_ballot(int vote, int line)
{
    unsigned first = emu.current / LANES * LANES, votes = 0;
    emu.threads[emu.current].vote = vote != 0;
    park(AT_WARP, false, line);
    for (unsigned i = 0; i < LANES; i++) votes |= emu.threads[first + i].vote << i;
    park(AT_WARP, false, line);
    return votes;
}

void cuda_emulated_wide(const void *p)
{
    if ((uintptr_t)p % 16 != 0) emulate_broken("16 bytes at a place that is not aligned to them", 0);
}

double cuda_emulated_xor_f64(double value, unsigned lanes, int line)
{
    emu.threads[emu.current].value = value;
    park(AT_WARP, false, line);
    double other = emu.threads[emu.current ^ lanes].value;
    park(AT_WARP, false, line);
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
    park(AT_WARP, false, line);
    unsigned other = emu.threads[lane < lanes ? me : me - lanes].vote;
    park(AT_WARP, false, line);
    return other;
}

/* Of the values of the warp: their sum, or the largest. */
static unsigned fold(unsigned value, bool sum, int line)
{
    unsigned first = emu.current / LANES * LANES, all = 0;
    emu.threads[emu.current].vote = value;
    park(AT_WARP, false, line);
    for (unsigned i = first; i < first + LANES; i++) {
        unsigned other = emu.threads[i].vote;
        all = sum ? all + other : other > all ? other : all;
    }
    park(AT_WARP, false, line);
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
