#include "tests/cuda/emulator/emulate.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "gpu/cuda/kernels/cuda_kernel.h"
#include "tests/cuda/emulator/emulate_impl.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

enum { THREADS_MAX = 1024, LANES = 32, STACK_BYTES = 256 << 10 };

enum state { FRESH, READY, AT_BLOCK, AT_WARP, DONE };

/* makecontext starts a fiber. Later switches are jumps, because swapcontext makes a system call: the compiler's builtin
 * jumps are a few instructions. AddressSanitizer is notified of a switch and needs `fake`; ThreadSanitizer only follows
 * the jumps of the C library. */
#if defined(__SANITIZE_THREAD__)
struct jump {
    jmp_buf to;
};
#define JUMP_SET(jump) _setjmp((jump).to)
#define JUMP(jump) _longjmp((jump).to, 1)
#define JUMPS
#else
struct jump {
    void *to[5];
};
#define JUMP_SET(jump) __builtin_setjmp((jump).to)
#define JUMP(jump) __builtin_longjmp((jump).to, 1)
#define JUMPS __attribute__((noinline, no_sanitize_address))
#endif

struct context {
    ucontext_t whole;
    struct jump jump;
    bool started;
    const void *stack;
    size_t stack_bytes;
    void *fake;
};

/* Value that a lane gives to the other lanes of its warp. */
struct lane_value {
    unsigned word;
    double value;
};

static struct {
    pthread_mutex_t lock; /* shared memory is static, so the process runs one kernel at a time */
    const char *name;
    void (*body)(const void *args);
    const void *args;
    unsigned n, current, seed, order[THREADS_MAX];
    unsigned last_x, last_y; /* emulate_last_blocks */
    unsigned next, end;      /* positions in `order`: next thread of the warp, end of the warp */
    /* per thread; a thread keeps a fiber from its first barrier on */
    uint8_t state[THREADS_MAX];
    int fiber[THREADS_MAX];   /* index of the fiber; invalid for FRESH and DONE */
    int line[THREADS_MAX];    /* line of the barrier where it waits */
    bool orders[THREADS_MAX]; /* that barrier also orders memory */
    /* Two slots in turn: a lane that writes its next value must not overwrite one that another lane still reads. */
    struct lane_value lane_value[2][THREADS_MAX];
    uint8_t turn[THREADS_MAX];
    struct context scheduler, contexts[THREADS_MAX], *left;
    char *stacks[THREADS_MAX];
    int idle[THREADS_MAX], n_idle, n_fibers;
} emu = {.lock = PTHREAD_MUTEX_INITIALIZER};

const struct emulate_watch *emulate_watch;

/* Not thread-local: one kernel runs at a time, and its fibers may have been created by another thread. */
struct emulated_index threadIdx, blockIdx, blockDim, gridDim;

/* The linker's symbols for the section of __shared__ arrays. shared_none keeps the section from being empty. */
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

void emulate_last_blocks(unsigned x, unsigned y)
{
    emu.last_x = x;
    emu.last_y = y;
}

/* Index of the first block that runs, out of n. */
static unsigned first_of(unsigned n, unsigned last)
{
    return last && last < n ? n - last : 0;
}

/* Notify AddressSanitizer before (leave) and after (arrive) a stack switch. arrive learns the scheduler's stack. */
static void leave(struct context *from, const struct context *to)
{
    emu.left = from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack_bytes);
#else
    (void)to;
#endif
}

static void arrive(struct context *at)
{
#if defined(__SANITIZE_ADDRESS__)
    struct context other;
    __sanitizer_finish_switch_fiber(at->fake, &other.stack, &other.stack_bytes);
    if (emu.left != &emu.scheduler) return;
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

/* values[n] = 0 .. n-1 in the order of the seed */
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

/* Order whole warps, because on a GPU a warp may run far ahead of the others. */
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
    if (emulate_watch) emulate_watch->run(emu.stacks[emu.fiber[thread]], STACK_BYTES);
}

static void stop(void)
{
    if (emulate_watch) emulate_watch->run(NULL, 0);
}

static void fiber_main(void);

static int fiber_take(void)
{
    if (emu.n_idle) return emu.idle[--emu.n_idle];
    int fiber = emu.n_fibers++;
    emu.stacks[fiber] = malloc(STACK_BYTES);
    if (!emu.stacks[fiber]) broken("no memory for its stack", 0);
    struct context *context = &emu.contexts[fiber];
    getcontext(&context->whole);
    context->stack = context->whole.uc_stack.ss_sp = emu.stacks[fiber];
    context->stack_bytes = context->whole.uc_stack.ss_size = STACK_BYTES;
    makecontext(&context->whole, fiber_main, 0);
    return fiber;
}

/* Select the warp's next runnable thread and return the context to switch to; without one, that of the scheduler. */
static struct context *next_of_warp(void)
{
    while (emu.next < emu.end) {
        unsigned thread = emu.order[emu.next++];
        if (emu.state[thread] == FRESH) {
            emu.fiber[thread] = fiber_take();
            emu.state[thread] = READY;
        } else if (emu.state[thread] != READY) {
            continue;
        }
        enter(thread);
        return &emu.contexts[emu.fiber[thread]];
    }
    return &emu.scheduler;
}

/* A fiber runs fresh threads one after another; a thread that waits keeps its fiber. */
static void fiber_main(void)
{
    arrive(&emu.contexts[emu.fiber[emu.current]]);
    for (;;) {
        int fiber = emu.fiber[emu.current];
        emu.body(emu.args);
        stop();
        emu.state[emu.current] = DONE;
        emu.idle[emu.n_idle++] = fiber; /* the next fresh thread uses it at once */
        struct context *next = next_of_warp();
        if (next != &emu.contexts[fiber]) switch_to(&emu.contexts[fiber], next);
    }
}

/* Wait at a barrier until all threads of the block or warp arrived. */
static void park(enum state state, bool orders, int line)
{
    unsigned me = emu.current;
    stop();
    emu.state[me] = (uint8_t)state;
    emu.orders[me] = orders;
    emu.line[me] = line;
    switch_to(&emu.contexts[emu.fiber[me]], next_of_warp());
}

static unsigned count(unsigned first, unsigned last, enum state state)
{
    unsigned n = 0;
    for (unsigned i = first; i < last; i++) n += emu.state[i] == state;
    return n;
}

/* Release threads first .. last if all of them wait in `state`. It is an error if some wait while others ended. */
static bool release(unsigned first, unsigned last, enum state state)
{
    unsigned waiting = count(first, last, state), at = first;
    if (!waiting) return false;
    while (emu.state[at] != state) at++;
    if (count(first, last, DONE)) broken("some threads ended, others wait for them at a barrier", emu.line[at]);
    if (waiting < last - first) return false;
    for (unsigned i = first; i < last; i++)
        if (emu.line[i] != emu.line[first]) broken("threads wait at different barriers", emu.line[i]);
    memset(emu.state + first, READY, last - first);
    if (emulate_watch && emu.orders[first]) emulate_watch->met(first, last);
    return true;
}

/* Run all runnable threads of the warp at position `at` in the order; false: no thread was runnable. */
static bool run_warp(unsigned at)
{
    emu.next = at;
    emu.end = at + LANES;
    struct context *first = next_of_warp();
    if (first == &emu.scheduler) return false;
    switch_to(&emu.scheduler, first);
    return true;
}

/* Each warp runs as far as it can before the next one starts, so that a missing barrier changes the result. */
static void run_block(unsigned index)
{
    make_order(index);
    memset(emu.state, FRESH, emu.n);
    memset(emu.turn, 0, emu.n);
    memset(shared_begin, 0xff, (size_t)(shared_end - shared_begin));
    if (emulate_watch) emulate_watch->block();
    for (;;) {
        for (unsigned at = 0; at < emu.n; at += LANES) {
            unsigned warp = emu.order[at] / LANES * LANES;
            while (run_warp(at) && release(warp, warp + LANES, AT_WARP)) continue;
        }
        if (count(0, emu.n, DONE) == emu.n) break;
        if (!release(0, emu.n, AT_BLOCK)) broken("threads wait for each other", emu.line[0]);
    }
}

void cuda_emulate(const char *name, void (*thread)(const void *args), const void *args, size_t args_bytes, unsigned x,
                  unsigned y, unsigned threads)
{
    pthread_mutex_lock(&emu.lock);
    emu.name = name;
    emu.body = thread;
    emu.args = args;
    emu.n = threads;
    gridDim = (struct emulated_index){x, y, 1};
    blockDim = (struct emulated_index){threads, 1, 1};
    if (!x || !y || threads > THREADS_MAX || threads % LANES) broken("a GPU would refuse this grid", 0);
    if (emulate_watch) emulate_watch->launch(name, args, args_bytes);
    for (unsigned row = first_of(y, emu.last_y); row < y; row++)
        for (unsigned column = first_of(x, emu.last_x); column < x; column++) {
            blockIdx = (struct emulated_index){column, row, 0};
            run_block(row * x + column);
        }
    if (emulate_watch) emulate_watch->end();
    pthread_mutex_unlock(&emu.lock);
}

/* --- functions called by kernels
 * -------------------------------------------------------------------------------------------- */

void cuda_emulated_barrier(int line)
{
    park(AT_BLOCK, true, line);
}

void cuda_emulated_warp_barrier(int line)
{
    park(AT_WARP, true, line);
}

/* Slot of the thread for its warp's next exchange. */
static struct lane_value *bring(void)
{
    unsigned me = emu.current;
    emu.turn[me] ^= 1;
    return &emu.lane_value[emu.turn[me]][me];
}

/* Wait until all lanes of the warp wrote their slot; returns the slots by thread. */
static const struct lane_value *met(int line)
{
    park(AT_WARP, false, line);
    return emu.lane_value[emu.turn[emu.current]];
}

unsigned cuda_emulated_ballot(int vote, int line)
{
    unsigned votes = 0;
    bring()->word = vote != 0;
    const struct lane_value *all = met(line);
    for (unsigned i = 0; i < LANES; i++) votes |= all[emu.current / LANES * LANES + i].word << i;
    return votes;
}

void cuda_emulated_wide(const void *p)
{
    if ((uintptr_t)p % 16 != 0) broken("a 16-byte access that is not aligned", 0);
}

double cuda_emulated_xor_f64(double value, unsigned lanes, int line)
{
    bring()->value = value;
    const struct lane_value *all = met(line);
    return all[emu.current ^ lanes].value;
}

float cuda_emulated_xor_f32(float value, unsigned lanes, int line)
{
    return (float)cuda_emulated_xor_f64(value, lanes, line); /* exact: every float is a double */
}

unsigned cuda_emulated_xor_u32(unsigned value, unsigned lanes, int line)
{
    bring()->word = value;
    const struct lane_value *all = met(line);
    return all[emu.current ^ lanes].word;
}

/* The value of the lane `delta` below; the lane's own if there is none. */
unsigned cuda_emulated_up_u32(unsigned value, unsigned lanes, int line)
{
    bring()->word = value;
    const struct lane_value *all = met(line);
    return all[emu.current % LANES < lanes ? emu.current : emu.current - lanes].word;
}

/* Sum or maximum of the warp's values. */
static unsigned fold(unsigned value, bool sum, int line)
{
    unsigned result = 0;
    bring()->word = value;
    const struct lane_value *all = met(line);
    for (unsigned i = 0; i < LANES; i++) {
        unsigned other = all[emu.current / LANES * LANES + i].word;
        result = sum ? result + other : other > result ? other : result;
    }
    return result;
}

unsigned cuda_emulated_add_u32(unsigned value, int line)
{
    return fold(value, true, line);
}

unsigned cuda_emulated_max_u32(unsigned value, int line)
{
    return fold(value, false, line);
}
