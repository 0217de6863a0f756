/* Queues of an emulated device. Operations run when the host waits, in an order that the seed selects among those that
 * queues and events allow. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "gpu/cuda/kernels/cuda_kernel.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/cuda/emulator/emulate_impl.h"
#include "tests/cuda/emulator/emulate_launch.h"

static unsigned order_seed; /* for devices opened later */
static atomic_ulong idle_waits;
static atomic_uint hangs_ended;

unsigned long emulate_idle_waits(void)
{
    return atomic_load(&idle_waits);
}

/* Count a wait that had work and left the device idle. */
static void note_wait(struct cuda_rt *rt, bool had)
{
    for (int q = 0; q < CUDA_QUEUES; q++)
        if (rt->queues[q].first) return;
    if (had) atomic_fetch_add(&idle_waits, 1);
}

void emulate_queue_order(unsigned seed)
{
    order_seed = seed;
}

void emulate_queues_init(struct cuda_rt *rt)
{
    const char *seed = getenv("ATOLL_EMULATED_SEED");
    rt->hangs_ended = atomic_load(&hangs_ended);
    rt->random = seed && *seed ? strtoull(seed, NULL, 10) : order_seed;
    for (int q = 0; q < CUDA_QUEUES; q++) {
        rt->queues[q].id = (enum cuda_queue)q;
        rt->queues[q].rt = rt;
        rt->queues[q].last = &rt->queues[q].first;
    }
}

void emulate_queues_finish(struct cuda_rt *rt)
{
    for (int q = 0; q < CUDA_QUEUES; q++) {
        for (struct emulated_op *op = rt->queues[q].first, *next; op; op = next) {
            next = op->next;
            free(op);
        }
    }
}

static struct emulated_op *append(struct cuda_rt *rt, enum cuda_queue queue, const char *name, size_t bytes)
{
    struct emulated_queue *q = &rt->queues[queue];
    struct emulated_op *op = calloc(1, sizeof *op + bytes);
    if (!op) abort();
    emulate_clock_join(&q->clock, &rt->host);
    q->clock.at[queue]++;
    op->name = name;
    op->clock = q->clock;
    *q->last = op;
    q->last = &op->next;
    rt->n_queued++;
    atomic_fetch_add(&rt->progress.moves, 1);
    return op;
}

/* A GPU's queue has a limited length; the next call blocks until there is space. */
static void make_room(struct cuda_rt *rt);

void emulate_submit(struct cuda_rt *rt, enum cuda_queue queue, const char *name,
                    void (*run)(struct cuda_rt *rt, const void *args), const void *args, size_t bytes)
{
    struct emulated_op *op = append(rt, queue, name, bytes);
    op->run = run;
    memcpy(op->args, args, bytes);
    make_room(rt);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

enum status cuda_rt_event_create(struct cuda_rt *rt, struct cuda_event **out)
{
    struct cuda_event *e = mem_alloc(1, sizeof *e);
    if (!e) return STATUS_NOMEM;
    rt->recording = true;
    *out = e;
    return STATUS_OK;
}

void cuda_rt_event_free(struct cuda_rt *rt, struct cuda_event *e)
{
    if (e) emulate_drain(rt);
    mem_free(e);
}

void cuda_rt_event_record(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *e)
{
    struct emulated_op *op = append(rt, queue, "event", 0);
    op->record = e;
    op->place = ++e->recorded;
    e->clock = op->clock;
}

void cuda_rt_queue_wait(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *e)
{
    if (!e->recorded) return;
    struct emulated_op *op = append(rt, queue, "wait", 0);
    op->wait = e;
    op->place = e->recorded;
    emulate_clock_join(&rt->queues[queue].clock, &e->clock);
}

bool cuda_rt_event_done(struct cuda_rt *rt, const struct cuda_event *e)
{
    (void)rt;
    return atomic_load(&e->done) >= atomic_load(&e->recorded);
}

void cuda_rt_watch(struct cuda_rt *rt, const struct err *(*stopped)(void *ctx), void *ctx)
{
    rt->stopped = stopped;
    rt->stopped_ctx = ctx;
}

struct cuda_progress *cuda_rt_progress(struct cuda_rt *rt)
{
    return &rt->progress;
}

void emulate_hangs_end(void)
{
    atomic_fetch_add(&hangs_ended, 1);
}

static bool stopped(struct cuda_rt *rt)
{
    char what[sizeof rt->error.msg];
    const struct err *why = rt->stopped ? rt->stopped(rt->stopped_ctx) : NULL;
    if (!why) return false;
    snprintf(what, sizeof what, "stopped: %.400s", why->msg);
    cuda_rt_fail(rt, STATUS_CLOSED, what);
    return true;
}

bool emulate_leave(struct cuda_rt *rt)
{
    return rt->left = rt->looks && stopped(rt);
}

void emulate_hang(struct cuda_rt *rt, bool leave)
{
    while (atomic_load(&hangs_ended) == rt->hangs_ended && !(leave && emulate_leave(rt)))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static bool may_run(const struct emulated_op *op)
{
    return op && (!op->wait || op->wait->done >= op->place);
}

/* A failed device runs nothing more, like a GPU with a lost context. After an early end of a wait it goes on. */
static void run_op(struct cuda_rt *rt, const struct emulated_op *op, enum cuda_queue queue)
{
    if (op->record) op->record->done = op->place;
    if (!op->run || (rt->error.code != STATUS_OK && rt->error.code != STATUS_CLOSED)) return;
    if (++rt->n_run == rt->fail_at) {
        cuda_rt_fail(rt, STATUS_IO, "a kernel failed: as the test wanted");
        return;
    }
    if (rt->n_run == rt->hang_at) {
        emulate_hang(rt, true);
        rt->n_run -= rt->left; /* the operation runs again */
        return;
    }
    rt->running = queue;
    rt->running_name = op->name;
    rt->running_clock = op->clock;
    op->run(rt, op->args);
    rt->n_run -= rt->left;
}

static void run_first(struct cuda_rt *rt, enum cuda_queue queue)
{
    struct emulated_queue *q = &rt->queues[queue];
    struct emulated_op *op = q->first;
    run_op(rt, op, queue);
    if (rt->left) return;
    q->first = op->next;
    if (!q->first) q->last = &q->first;
    rt->n_queued--;
    free(op);
}

/* Select the next queue. Seed 0: MAIN first, 1: MAIN last, others: random. */
static enum cuda_queue choose(struct cuda_rt *rt)
{
    enum cuda_queue may[CUDA_QUEUES];
    unsigned n = 0;
    for (int q = 0; q < CUDA_QUEUES; q++)
        if (may_run(rt->queues[q].first)) may[n++] = (enum cuda_queue)q;
    if (!n) return CUDA_QUEUES;
    if (rt->random <= 1) return may[rt->random ? n - 1 : 0];
    rt->random = rt->random * 6364136223846793005u + 1442695040888963407u;
    rt->random |= 2;
    return may[(rt->random >> 33) % n];
}

/* Run operations until at most `most` are left. */
static void run_down(struct cuda_rt *rt, size_t most, bool looks)
{
    enum cuda_queue queue;
    rt->looks = looks;
    rt->left = false;
    if (rt->n_queued <= most) return; /* changing the protection of all memory is slow */
    emulate_memory_open(rt);
    while (!rt->left && rt->n_queued > most && (queue = choose(rt)) != CUDA_QUEUES) run_first(rt, queue);
    emulate_memory_close(rt);
}

static void make_room(struct cuda_rt *rt)
{
    if (rt->queue_max && rt->n_queued >= rt->queue_max) run_down(rt, rt->queue_max - 1, false);
}

void emulate_block(struct cuda_rt *rt)
{
    run_down(rt, 0, false);
}

static void wait_begins(struct cuda_rt *rt)
{
    atomic_fetch_add(&rt->progress.waits, 1);
}

/* After an abort the wait also ends, without pending operations. */
static void wait_ends(struct cuda_rt *rt)
{
    if (!rt->left) (void)stopped(rt);
    atomic_fetch_sub(&rt->progress.waits, 1);
    atomic_fetch_add(&rt->progress.moves, 1);
}

void emulate_drain(struct cuda_rt *rt)
{
    bool had = choose(rt) != CUDA_QUEUES;
    wait_begins(rt);
    run_down(rt, 0, true);
    wait_ends(rt);
    if (rt->left) return;
    for (int q = 0; q < CUDA_QUEUES; q++) {
        if (rt->queues[q].first) cuda_rt_fail(rt, STATUS_STATE, "queues wait for each other");
        emulate_clock_join(&rt->host, &rt->queues[q].clock);
    }
    note_wait(rt, had);
}

static bool holds(const struct emulated_queue *q, const struct cuda_event *e, uint64_t place)
{
    for (const struct emulated_op *op = q->first; op; op = op->next)
        if (op->record == e && op->place == place) return true;
    return false;
}

/* Run only the operations that are ordered before the event. */
static void run_until(struct cuda_rt *rt, const struct cuda_event *e, uint64_t place)
{
    while (e->done < place && !rt->left) {
        int q = 0;
        while (q < CUDA_QUEUES && !holds(&rt->queues[q], e, place)) q++;
        if (q == CUDA_QUEUES) return;
        struct emulated_op *op = rt->queues[q].first;
        if (op->wait && op->wait->done < op->place) run_until(rt, op->wait, op->place);
        if (!rt->left) run_first(rt, (enum cuda_queue)q);
    }
}

enum status cuda_rt_event_wait(struct cuda_rt *rt, struct cuda_event *e, struct err *err)
{
    bool had = e->done < e->recorded;
    rt->looks = true;
    rt->left = false;
    wait_begins(rt);
    if (had) {
        emulate_memory_open(rt);
        run_until(rt, e, e->recorded);
        emulate_memory_close(rt);
    }
    wait_ends(rt);
    note_wait(rt, had);
    if (!rt->left) emulate_clock_join(&rt->host, &e->clock);
    if (rt->error.code == STATUS_OK) return STATUS_OK;
    return err_set(err, rt->error.code, "%s", rt->error.msg);
}

void cuda_rt_mark(struct cuda_rt *rt, int slot)
{
    cuda_rt_event_record(rt, CUDA_MAIN, &rt->marks[slot]);
}

enum status cuda_rt_reached(struct cuda_rt *rt, int slot, struct err *err)
{
    return cuda_rt_event_wait(rt, &rt->marks[slot], err);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

static void run_kernel(struct cuda_rt *rt, const void *args)
{
    (void)rt;
    emulate_launch_run(args);
}

void cuda_emulated_launch(const struct cuda_grid *grid, const char *name, void (*thread)(const void *args),
                          const void *args, size_t bytes, unsigned threads)
{
    size_t size;
    struct emulated_queue *q = grid->stream;
    struct emulated_launch *l = emulate_launch_keep(grid, name, thread, args, bytes, threads, &size);
    emulate_submit(q->rt, q->id, name, run_kernel, l, size);
    free(l);
}
