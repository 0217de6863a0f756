#include "worker/replica/memory_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/config/gpu_share.h"
#include "common/os/environment.h"
#include "common/os/host_memory.h"
#include "worker/model/decoder.h"

/* GPU libraries load code and allocate workspace at their first use. */
enum { RESERVE_BYTES = 256 << 20, RESERVE_SHARE = 50 };
/* GPU memory per process beside its plan, for processes that share a GPU: the driver's context, which grows with the
 * number of multiprocessors, and our workspaces. Measured: 107 MiB on an RTX 4060 Ti, 426 on an RTX 6000 Ada, 555 on an
 * RTX PRO 6000 (pull requests 23604 of ggml-org/llama.cpp and 1053 of unslothai/unsloth-zoo). The process that plans
 * first does not see the contexts of the others. */
enum { PROCESS_BYTES = 640 << 20, PROCESS_SHARE = 40 };

static const char *const class_names[MEMORY_CLASSES] = {
    [MEMORY_PARAMS] = "parameters",     [MEMORY_BF16_WEIGHTS] = "bf16 weights",
    [MEMORY_GRADIENT] = "gradient",     [MEMORY_MOMENTS] = "moments",
    [MEMORY_ANCHOR] = "anchor",         [MEMORY_RESIDUAL] = "residual",
    [MEMORY_MESSAGES] = "messages",     [MEMORY_ACTIVATIONS] = "activations",
    [MEMORY_LOGITS] = "logits",         [MEMORY_WORKSPACE] = "workspace",
    [MEMORY_PINNED] = "pinned buffers",
};

const char *memory_level_name(enum recompute level)
{
    assert(level <= RECOMPUTE_AUTO);
    static const char *const names[] = {"none", "act", "norm", "block", "auto"};
    return names[level];
}

/* Returns an equal part of bytes - others; at least 1, because 0 means unknown. */
static uint64_t part_of(uint64_t bytes, uint64_t others, uint32_t workers)
{
    assert(workers > 0);
    uint64_t part = bytes > others ? (bytes - others) / workers : 0;
    return part ? part : 1;
}

static uint64_t process_bytes(uint64_t total)
{
    uint64_t share = total / PROCESS_SHARE;
    return share < PROCESS_BYTES ? share : PROCESS_BYTES;
}

enum status memory_request_share(struct memory_request *request, bool of_host, uint32_t sharers, struct err *err)
{
    struct gpu_share here;
    TRY(gpu_share_from_env(&here, err));
    uint32_t workers = of_host ? here.workers : sharers;
    uint64_t host, coordinator; /* 0: not announced */
    TRY(host_memory_check_env(err));
    TRY(environment_number(MEMORY_HOST_ENV, "bytes", 0, UINT64_MAX, &host, err));
    TRY(environment_number(MEMORY_COORDINATOR_ENV, "bytes", 0, UINT64_MAX, &coordinator, err));
    if (!of_host || !workers) coordinator = 0;
    if (!request->free_bytes || (workers < 2 && !coordinator)) return STATUS_OK;
    request->workers = workers;
    request->coordinator = coordinator;
    uint64_t others = of_host ? coordinator : workers * process_bytes(request->total_bytes);
    request->total_bytes = part_of(request->total_bytes, others, workers);
    if (request->free_bytes > request->total_bytes) request->free_bytes = request->total_bytes;
    if (!host || !of_host) return STATUS_OK;
    /* The free bytes shrink with every worker that starts, but each part stays the same. A restarted worker gets its
     * old part and no more, whatever has been freed since. */
    uint64_t part = part_of(host, coordinator, workers);
    if (request->free_bytes > part) request->free_bytes = part;
    if (request->total_bytes > part) request->total_bytes = part;
    return STATUS_OK;
}

static uint64_t sum_of(const uint64_t bytes[MEMORY_CLASSES])
{
    uint64_t sum = 0;
    for (int i = 0; i < MEMORY_CLASSES; i++) sum += bytes[i];
    return sum;
}

/* Counts all classes at a batch and a level; returns their sum. */
static uint64_t count(const struct memory_request *request, uint32_t batch_size, enum model_recompute level, bool outer,
                      uint64_t bytes[MEMORY_CLASSES])
{
    assert(batch_size > 0 && batch_size % request->batch_unit == 0 && level <= MODEL_RECOMPUTE_BLOCK);
    size_t rows = batch_size / request->batch_unit;
    unsigned uses = request->uses & MODEL_TRAIN ? model_uses(request->uses, level) : request->uses;
    const struct device_ops *ops = request->dev->ops;
    struct attn_shape attn;
    struct head_shape head;
    decoder_shapes(request->model, rows, request->seq, uses, &attn, &head);
    for (int i = 0; i < MEMORY_CLASSES; i++) bytes[i] = request->fixed[i];
    if (outer) {
        bytes[MEMORY_ANCHOR] += request->outer.anchor;
        bytes[MEMORY_RESIDUAL] += request->outer.residual;
        bytes[MEMORY_MESSAGES] += request->outer.messages;
    }
    bytes[MEMORY_ACTIVATIONS] +=
        (uint64_t)request->ranks *
        decoder_memory(request->family, request->model, request->dev->act_bytes, rows, request->seq, uses);
    bytes[MEMORY_LOGITS] += (uint64_t)request->ranks * ops->head_bytes(request->dev, &head);
    bytes[MEMORY_WORKSPACE] +=
        (uint64_t)request->ranks * (ops->attn_bytes(request->dev, &attn) + rows * request->row_bytes);
    return sum_of(bytes);
}

static bool fits(const struct memory_plan *plan, uint64_t total)
{
    return !plan->free_bytes || total + plan->reserve <= plan->free_bytes;
}

/* Sets the range of levels to try: one, or all. */
static void levels_of(const struct memory_request *request, enum recompute want, int *first, int *last)
{
    bool any = want == RECOMPUTE_AUTO && request->uses & MODEL_TRAIN;
    *first = any ? MODEL_KEEP_ALL : want == RECOMPUTE_AUTO ? MODEL_KEEP_ALL : (int)want;
    *last = any ? MODEL_RECOMPUTE_BLOCK : *first;
    assert(*first <= *last && *last <= MODEL_RECOMPUTE_BLOCK);
}

static bool choose(struct memory_plan *plan, const struct memory_request *request, int first, int last, bool outer)
{
    for (int level = first; level <= last; level++) {
        plan->level = (enum model_recompute)level;
        plan->outer_left_out = !outer;
        plan->total = count(request, request->batch_size, plan->level, outer, plan->bytes);
        if (fits(plan, plan->total)) return true;
    }
    return false;
}

/* Returns the largest batch that fits, a multiple of batch_unit; 0: none. Bisection works because totals grow with the
 * batch. */
static uint32_t largest_batch(const struct memory_plan *plan, const struct memory_request *request,
                              enum model_recompute level)
{
    uint64_t bytes[MEMORY_CLASSES];
    uint32_t low = 0, high = request->batch_size / request->batch_unit;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (fits(plan, count(request, middle * request->batch_unit, level, !request->outer.optional, bytes)))
            low = middle;
        else
            high = middle;
    }
    return low * request->batch_unit;
}

/* Returns true if full recompute fits the whole batch, or more of it than `batch`. */
static bool full_recompute_helps(const struct memory_plan *plan, const struct memory_request *request, uint32_t batch)
{
    uint64_t bytes[MEMORY_CLASSES];
    return fits(plan, count(request, request->batch_size, MODEL_RECOMPUTE_BLOCK, !request->outer.optional, bytes)) ||
           largest_batch(plan, request, MODEL_RECOMPUTE_BLOCK) > batch;
}

/* Writes "2.00 GiB are free for each of 4 workers beside 1.00 GiB of the coordinator". */
static const char *free_text(const struct memory_request *request, char *out, size_t cap)
{
    char others[48] = "", beside[64] = "", size[MEMORY_TEXT_MAX];
    if (request->coordinator)
        snprintf(beside, sizeof beside, " beside %s of the coordinator", memory_text(request->coordinator, size));
    if (request->workers > 1) snprintf(others, sizeof others, " for each of %" PRIu32 " workers", request->workers);
    bool any = request->free_bytes > 1; /* part_of returns 1 for no bytes */
    snprintf(out, cap, "%s %s free%s%s", any ? memory_text(request->free_bytes, size) : "nothing", any ? "are" : "is",
             others, beside);
    return out;
}

static enum status refuse(struct memory_plan *plan, const struct memory_request *request, enum recompute want, int last,
                          struct err *err)
{
    char advice[160], room[160], size[MEMORY_TEXT_MAX];
    uint32_t batch = largest_batch(plan, request, (enum model_recompute)last);
    uint64_t bytes[MEMORY_CLASSES];
    plan->total = count(request, request->batch_size, (enum model_recompute)last, !request->outer.optional, bytes);
    const char *less =
        want != RECOMPUTE_AUTO && request->uses & MODEL_TRAIN && full_recompute_helps(plan, request, batch)
            ? ", or train.recompute=auto"
            : "";
    if (batch)
        snprintf(advice, sizeof advice,
                 "the largest train.batch_size that fits is %" PRIu32
                 " (raise train.grad_accum to keep the step size)%s",
                 batch, less);
    else
        snprintf(advice, sizeof advice, "even train.batch_size=%" PRIu32 " does not fit: use a smaller model%s",
                 request->batch_unit, less);
    bool never = plan->total + plan->reserve > plan->total_bytes;
    return err_set(err, never ? STATUS_UNSUPPORTED : STATUS_NOMEM,
                   "train.batch_size=%" PRIu32 " needs %s on %s "
                   "at train.recompute=%s, and %s: %s",
                   request->batch_size, memory_text(plan->total + plan->reserve, size), request->dev->name,
                   memory_level_name((enum recompute)last), free_text(request, room, sizeof room), advice);
}

/* Sets the error for host memory that does not fit: the figures and a remedy. */
static enum status refuse_host(const struct memory_plan *plan, const struct memory_request *request, struct err *err)
{
    char advice[160], room[160], what[256], size[MEMORY_TEXT_MAX];
    assert(plan->total > 0 && !fits(plan, plan->total));
    uint64_t fit = plan->free_bytes * (request->workers > 1 ? request->workers : 1) / plan->total;
    uint64_t moments = plan->bytes[MEMORY_MOMENTS];
    if (fit)
        snprintf(advice, sizeof advice,
                 "start %" PRIu64 " worker%s on this machine (train.ranks gives one several "
                 "GPUs)",
                 fit, fit > 1 ? "s" : "");
    else if (plan->total - moments <= plan->free_bytes)
        snprintf(advice, sizeof advice, "checkpoint.worker_every=0 saves %s, and workers then save no state",
                 memory_text(moments, size));
    else
        snprintf(advice, sizeof advice,
                 "use a smaller model or a machine with more memory (set ATOLL_HOST_MEMORY to its bytes if it reports "
                 "less)");
    bool never = plan->total > plan->total_bytes;
    return err_set(err, never ? STATUS_UNSUPPORTED : STATUS_NOMEM,
                   "a worker on %s needs %s of the host's memory, and %s: %s (%s)", request->dev->name,
                   memory_text(plan->total, size), free_text(request, room, sizeof room), advice,
                   memory_plan_text(plan, what, sizeof what));
}

enum status memory_plan_host(struct memory_plan *plan, const struct memory_request *request, struct err *err)
{
    *plan = (struct memory_plan){.free_bytes = request->free_bytes, .total_bytes = request->total_bytes};
    for (int i = 0; i < MEMORY_CLASSES; i++) plan->bytes[i] = request->fixed[i];
    plan->total = sum_of(plan->bytes);
    return fits(plan, plan->total) ? STATUS_OK : refuse_host(plan, request, err);
}

enum status memory_plan_make(struct memory_plan *plan, const struct memory_request *request, enum recompute want,
                             struct err *err)
{
    int first, last;
    uint64_t bytes[MEMORY_CLASSES];
    *plan = (struct memory_plan){.free_bytes = request->free_bytes, .total_bytes = request->total_bytes};
    if (request->free_bytes && !request->dev->host_memory) {
        uint64_t share = request->total_bytes / RESERVE_SHARE;
        plan->reserve = share < RESERVE_BYTES ? share : RESERVE_BYTES;
    }
    levels_of(request, want, &first, &last);
    for (int level = 0; level <= MODEL_RECOMPUTE_BLOCK; level++)
        plan->levels[level] = count(request, request->batch_size, (enum model_recompute)level, true, bytes);
    if (choose(plan, request, first, last, true)) {
        assert(plan->total == plan->levels[plan->level] && plan->total == sum_of(plan->bytes));
        return STATUS_OK;
    }
    if (request->outer.optional && choose(plan, request, first, last, false)) return STATUS_OK;
    return refuse(plan, request, want, last, err);
}

const char *memory_plan_text(const struct memory_plan *plan, char *out, size_t cap)
{
    size_t at = 0;
    for (int i = 0; i < MEMORY_CLASSES; i++) {
        double mib = (double)plan->bytes[i] / (1 << 20);
        if (!plan->bytes[i] || at >= cap) continue;
        at += (size_t)snprintf(out + at, cap - at, "%s %.*f, ", class_names[i], mib < 9.95 ? 1 : 0, mib);
    }
    if (at < cap) at += (size_t)snprintf(out + at, cap - at, "total %.0f MiB", (double)plan->total / (1 << 20));
    if (at < cap && plan->free_bytes)
        snprintf(out + at, cap - at, " of %.0f free", (double)plan->free_bytes / (1 << 20));
    return out;
}
