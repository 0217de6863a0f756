#include "tests/cuda/races/races.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/cuda/kernels/cuda_kernel.h"
#include "tests/cuda/emulator/emulate.h"

enum { LANES = 32, WARPS_MAX = 32, CACHE = 256 };

/* Accesses of a byte. Two reads since the last write suffice: if any of several unordered reads conflicts with a later
 * write, one of these two does (keep_read selects them). */
enum { WRITE, READ, OTHER_READ, ACCESSES };

/* moment: time of the clock, 0: never. code: offset in the program. Most accesses have four bytes: the first cell
 * stands for all four until a shorter access sets `apart`. */
struct cell {
    uint32_t moment[ACCESSES], code[ACCESSES];
    uint16_t thread[ACCESSES];
    bool apart;
};

struct region {
    struct region *next;
    const char *p;
    size_t bytes;
    struct cell *cells; /* one per byte, rounded up to a multiple of four; pages are allocated at first use */
    bool shared;
};

/* The clock advances at every barrier, block and launch. An access before the last barrier of its warp or block is
 * ordered before accesses of other threads after that barrier. */
static struct {
    pthread_mutex_t lock; /* other threads may allocate regions while a kernel runs */
    struct region *regions, *cache[CACHE], shared;
    const char *kernel;
    uintptr_t args, indices, stack;
    size_t args_bytes, indices_bytes, stack_bytes; /* stack_bytes 0: no kernel is running */
    unsigned thread, warp;
    uint32_t clock, launch, block, barrier, warps[WARPS_MAX];
    uint32_t *blocks; /* start of each block of this launch */
    size_t n_blocks, room;
} races = {.lock = PTHREAD_MUTEX_INITIALIZER};

extern char shared_begin[] __asm__("__start_cuda_shared");
extern char shared_end[] __asm__("__stop_cuda_shared");
extern char program_begin[] __asm__("__executable_start");

/* --- messages ----------------------------------------------------------------------------------------------------- */

static uint32_t code_of(const void *code)
{
    return (uint32_t)((uintptr_t)code - 1 - (uintptr_t)program_begin); /* -1: an address within the call */
}

static void say_access(size_t bytes, bool write, const void *code)
{
    fprintf(stderr, "%s, code 0x%x: block %u,%u thread %u %s %zu bytes", races.kernel, code_of(code), blockIdx.x,
            blockIdx.y, races.thread, write ? "writes" : "reads", bytes);
}

static void say_place(const struct region *r, uintptr_t p)
{
    if (r->shared) {
        fprintf(stderr, " at byte %zu of shared memory", (size_t)(p - (uintptr_t)r->p));
        return;
    }
    fprintf(stderr, " at byte %td of %zu bytes of device memory", (ptrdiff_t)(p - (uintptr_t)r->p), r->bytes);
}

static _Noreturn void finish(void)
{
    fprintf(stderr, "\n  (addr2line -e PROGRAM CODE prints the source line)\n");
    abort();
}

static _Noreturn void outside(uintptr_t p, size_t bytes, bool write, const void *code)
{
    say_access(bytes, write, code);
    fprintf(stderr, " at %p, which is neither the thread's stack, shared memory nor device memory", (void *)p);
    finish();
}

static _Noreturn void conflict(const struct region *r, const struct cell *c, uintptr_t p, int with, size_t bytes,
                               bool write, const void *code)
{
    size_t block = races.n_blocks - 1;
    while (races.blocks[block] > c->moment[with]) block--;
    say_access(bytes, write, code);
    say_place(r, p);
    fprintf(stderr, ", which block %zu,%zu thread %u %s (code 0x%x): %s", block % gridDim.x, block / gridDim.x,
            c->thread[with], with == WRITE ? "wrote" : "read", c->code[with],
            block + 1 < races.n_blocks ? "nothing orders blocks" : "no barrier is between them");
    finish();
}

/* --- order -------------------------------------------------------------------------------------------------------- */

static inline bool is_ordered(const struct region *r, uint32_t moment, unsigned thread)
{
    if (moment < (r->shared ? races.block : races.launch)) return true;
    if (moment < races.block) return false;
    if (moment < races.barrier || thread == races.thread) return true;
    return thread / LANES == races.warp && moment < races.warps[races.warp];
}

static inline void note(struct cell *c, int as, uint32_t code)
{
    c->moment[as] = races.warps[races.warp];
    c->thread[as] = (uint16_t)races.thread;
    c->code[as] = code;
}

/* Record a read and keep at most two.
 * - A read ordered before this one is dropped: a write after this one is also after that one.
 * - Two reads of different blocks or warps conflict with every write until a launch or a block barrier follows both.
 * - Two reads of one warp conflict only until the warp's next barrier, so a read of another warp replaces one of them.
 */
static void keep_read(const struct region *r, struct cell *c, uint32_t code)
{
    bool first = is_ordered(r, c->moment[READ], c->thread[READ]);
    bool second = is_ordered(r, c->moment[OTHER_READ], c->thread[OTHER_READ]);
    if (first && second) {
        note(c, READ, code);
        c->moment[OTHER_READ] = 0;
    } else if (first) {
        note(c, READ, code);
    } else if (second || (c->moment[READ] >= races.block && c->moment[OTHER_READ] >= races.block &&
                          c->thread[READ] / LANES == c->thread[OTHER_READ] / LANES)) {
        note(c, OTHER_READ, code);
    }
}

/* c: cell of the byte at p, or of the four bytes from p on. */
static inline void read_cell(const struct region *r, struct cell *c, uintptr_t p, size_t bytes, const void *code)
{
    if (r->shared && c->moment[WRITE] < races.block) {
        say_access(bytes, false, code);
        say_place(r, p);
        fprintf(stderr, " that its block has not written");
        finish();
    }
    if (!is_ordered(r, c->moment[WRITE], c->thread[WRITE])) conflict(r, c, p, WRITE, bytes, false, code);
    if (c->moment[READ] != races.warps[races.warp] || c->thread[READ] != races.thread) keep_read(r, c, code_of(code));
}

static inline void write_cell(const struct region *r, struct cell *c, uintptr_t p, size_t bytes, const void *code)
{
    for (int with = 0; with < ACCESSES; with++)
        if (!is_ordered(r, c->moment[with], c->thread[with])) conflict(r, c, p, with, bytes, true, code);
    note(c, WRITE, code_of(code));
    c->moment[READ] = c->moment[OTHER_READ] = 0;
}

/* --- accesses ----------------------------------------------------------------------------------------------------- */

static inline bool is_in(const struct region *r, uintptr_t p)
{
    return p - (uintptr_t)r->p < r->bytes;
}

static const struct region *region_at(uintptr_t p)
{
    if (is_in(&races.shared, p)) return &races.shared;
    struct region **at = &races.cache[p / 4096 % CACHE];
    if (*at && is_in(*at, p)) return *at;
    for (struct region *r = races.regions; r; r = r->next)
        if (is_in(r, p)) return *at = r;
    return NULL;
}

static void part(struct cell *four)
{
    for (int i = 1; i < 4; i++) four[i] = four[0];
    four->apart = true;
}

/* After a write of the last of four bytes: join the four cells if the same code wrote the others just before. */
static void join(struct cell *four)
{
    for (int i = 0; i < 3; i++)
        if (four[i].moment[WRITE] != four[3].moment[WRITE] || four[i].thread[WRITE] != four[3].thread[WRITE] ||
            four[i].code[WRITE] != four[3].code[WRITE] || four[i].moment[READ] || four[i].moment[OTHER_READ])
            return;
    four->apart = false;
}

void races_access(const void *address, size_t bytes, bool write, const void *code)
{
    uintptr_t p = (uintptr_t)address;
    if (p - races.stack < races.stack_bytes || !races.stack_bytes) return;
    if (!write && (p - races.indices < races.indices_bytes || p - races.args < races.args_bytes)) return;
    const struct region *r = region_at(p);
    if (!bytes) return;
    if (!r || bytes > r->bytes - (size_t)(p - (uintptr_t)r->p)) outside(p, bytes, write, code);
    size_t i = p - (uintptr_t)r->p, end = i + bytes;
    while (i < end) {
        struct cell *four = &r->cells[i / 4 * 4], *c = &r->cells[i];
        if ((i % 4 || end - i < 4) && !four->apart) part(four);
        if (write)
            write_cell(r, c, (uintptr_t)r->p + i, bytes, code);
        else
            read_cell(r, c, (uintptr_t)r->p + i, bytes, code);
        i += four->apart ? 1 : 4;
        if (write && i % 4 == 0 && four->apart) join(four);
    }
}

/* --- callbacks of the emulator ------------------------------------------------------------------------------------ */

static size_t cells_bytes(size_t bytes)
{
    return (bytes + 3) / 4 * 4 * sizeof(struct cell);
}

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) return p;
    fprintf(stderr, "races: out of memory\n");
    abort();
}

static void on_allocated(const void *p, size_t bytes)
{
    pthread_mutex_lock(&races.lock);
    struct region *r = malloc(sizeof *r);
    if (!r) abort();
    *r = (struct region){.next = races.regions, .p = p, .bytes = bytes, .cells = map(cells_bytes(bytes))};
    races.regions = r;
    pthread_mutex_unlock(&races.lock);
}

static void on_released(const void *p)
{
    pthread_mutex_lock(&races.lock);
    for (struct region **at = &races.regions; *at; at = &(*at)->next) {
        struct region *r = *at;
        if (r->p != p) continue;
        *at = r->next;
        memset(races.cache, 0, sizeof races.cache);
        (void)munmap(r->cells, cells_bytes(r->bytes) + 1);
        free(r);
        break;
    }
    pthread_mutex_unlock(&races.lock);
}

static void on_launch(const char *name, const void *args, size_t args_bytes)
{
    const uintptr_t at[] = {(uintptr_t)&threadIdx, (uintptr_t)&blockIdx, (uintptr_t)&blockDim, (uintptr_t)&gridDim};
    uintptr_t low = at[0], high = at[0];
    for (int i = 1; i < 4; i++) {
        low = at[i] < low ? at[i] : low;
        high = at[i] > high ? at[i] : high;
    }
    pthread_mutex_lock(&races.lock); /* until on_end */
    races.kernel = name;
    races.args = (uintptr_t)args;
    races.args_bytes = args_bytes;
    races.indices = low;
    races.indices_bytes = high + sizeof threadIdx - low;
    races.launch = ++races.clock;
    races.n_blocks = 0;
    size_t n = (size_t)gridDim.x * gridDim.y;
    if (n <= races.room) return;
    races.room = n;
    races.blocks = realloc(races.blocks, n * sizeof *races.blocks);
    if (!races.blocks) abort();
}

static void pass(unsigned first, unsigned last)
{
    races.clock++;
    if (races.clock > UINT32_MAX - 2) abort(); /* unreachable in days */
    for (unsigned warp = first / LANES; warp < last / LANES; warp++) races.warps[warp] = races.clock;
}

static void on_block(void)
{
    pass(0, blockDim.x);
    races.block = races.barrier = races.clock;
    races.blocks[races.n_blocks++] = races.clock;
}

static void on_end(void)
{
    pthread_mutex_unlock(&races.lock);
}

static void on_run(const char *stack, size_t bytes)
{
    races.stack = (uintptr_t)stack;
    races.stack_bytes = bytes;
    races.thread = threadIdx.x;
    races.warp = threadIdx.x / LANES;
}

static void on_met(unsigned first, unsigned last)
{
    pass(first, last);
    if (first == 0 && last == blockDim.x) races.barrier = races.clock;
}

void races_begin(void)
{
    static const struct emulate_watch watch = {.allocated = on_allocated,
                                               .released = on_released,
                                               .launch = on_launch,
                                               .block = on_block,
                                               .end = on_end,
                                               .run = on_run,
                                               .met = on_met};
    if (emulate_watch) return;
    size_t bytes = (size_t)(shared_end - shared_begin);
    races.shared = (struct region){.p = shared_begin, .bytes = bytes, .shared = true, .cells = map(cells_bytes(bytes))};
    emulate_watch = &watch;
}
