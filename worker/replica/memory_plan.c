#include "worker/replica/memory_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/config/gpu_share.h"
#include "common/os/environment.h"
#include "common/os/host_memory.h"
#include "worker/model/decoder.h"

/* GPU libraries load code and take workspace when they are used first. */
enum { RESERVE_BYTES = 256 << 20, RESERVE_SHARE = 50 };
/* What each process that shares a GPU takes of it beside its plan: the driver's, more the more multiprocessors there
 * are (107 MiB of an RTX 4060 Ti, 426 of an RTX 6000 Ada, 555 of an RTX PRO 6000: pull requests 23604 of
 * ggml-org/llama.cpp and 1053 of unslothai/unsloth-zoo), and workspaces of ours. Who plans first does not see it. */
enum { PROCESS_BYTES = 640 << 20, PROCESS_SHARE = 40 };

static const char *const class_names[MEMORY_CLASSES] = {
    [MEMORY_PARAMS] = "parameters",   [MEMORY_IMAGE] = "their bf16 image",  [MEMORY_GRADIENT] = "gradient",
    [MEMORY_MOMENTS] = "moments",     [MEMORY_ANCHOR] = "anchor",           [MEMORY_RESIDUAL] = "residual",
    [MEMORY_MESSAGES] = "messages",   [MEMORY_ACTIVATIONS] = "activations", [MEMORY_LOGITS] = "logits",
    [MEMORY_WORKSPACE] = "workspace", [MEMORY_PINNED] = "pinned buffers",
};

const char *memory_level_name(enum recompute level)
{
    assert(level <= RECOMPUTE_AUTO);
    static const char *const names[] = {"none", "act", "norm", "block", "auto"};
    return names[level];
}

/* An equal part of what `others` leave; at least a byte: 0 is "not known". */
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

enum status memory_ask_share(struct memory_ask *ask, bool of_host, uint32_t sharers, struct err *err)
{
    struct gpu_share here;
    TRY(gpu_share_from_env(&here, err));
    uint32_t workers = of_host ? here.workers : sharers;
    uint64_t host, coordinator; /* 0: nobody said */
    TRY(host_memory_check_env(err));
    TRY(environment_number(MEMORY_HOST_ENV, "bytes", 0, UINT64_MAX, &host, err));
    TRY(environment_number(MEMORY_COORDINATOR_ENV, "bytes", 0, UINT64_MAX, &coordinator, err));
    if (!of_host || !workers) coordinator = 0;
    if (!ask->free_bytes || (workers < 2 && !coordinator)) return STATUS_OK;
    ask->workers = workers;
    ask->coordinator = coordinator;
    uint64_t others = of_host ? coordinator : workers * process_bytes(ask->total_bytes);
    ask->total_bytes = part_of(ask->total_bytes, others, workers);
    if (ask->free_bytes > ask->total_bytes) ask->free_bytes = ask->total_bytes;
    if (!host || !of_host) return STATUS_OK;
    /* What is free now is less the later a worker starts; its part is not: one that is started again finds its own, and
     * no more, whatever was freed meanwhile. */
    uint64_t part = part_of(host, coordinator, workers);
    if (ask->free_bytes > part) ask->free_bytes = part;
    if (ask->total_bytes > part) ask->total_bytes = part;
    return STATUS_OK;
}

static uint64_t sum_of(const uint64_t bytes[MEMORY_CLASSES])
{
    uint64_t sum = 0;
    for (int i = 0; i < MEMORY_CLASSES; i++) sum += bytes[i];
    return sum;
}

/* All classes at a batch and a level; their sum. */
static uint64_t count(const struct memory_ask *ask, uint32_t batch_size, enum model_recompute level, bool outer,
                      uint64_t bytes[MEMORY_CLASSES])
{
    assert(batch_size > 0 && batch_size % ask->batch_unit == 0 && level <= MODEL_RECOMPUTE_BLOCK);
    size_t rows = batch_size / ask->batch_unit;
    unsigned uses = ask->uses & MODEL_TRAIN ? model_uses(ask->uses, level) : ask->uses;
    const struct device_ops *ops = ask->dev->ops;
    struct attn_shape attn;
    struct head_shape head;
    decoder_shapes(ask->model, rows, ask->seq, uses, &attn, &head);
    for (int i = 0; i < MEMORY_CLASSES; i++) bytes[i] = ask->fixed[i];
    if (outer) {
        bytes[MEMORY_ANCHOR] += ask->outer.anchor;
        bytes[MEMORY_RESIDUAL] += ask->outer.residual;
        bytes[MEMORY_MESSAGES] += ask->outer.messages;
    }
    bytes[MEMORY_ACTIVATIONS] +=
        (uint64_t)ask->ranks * decoder_memory(ask->family, ask->model, ask->dev->act_bytes, rows, ask->seq, uses);
    bytes[MEMORY_LOGITS] += (uint64_t)ask->ranks * ops->head_bytes(ask->dev, &head);
    bytes[MEMORY_WORKSPACE] += (uint64_t)ask->ranks * (ops->attn_bytes(ask->dev, &attn) + rows * ask->row_bytes);
    return sum_of(bytes);
}

static bool fits(const struct memory_plan *plan, uint64_t total)
{
    return !plan->free_bytes || total + plan->reserve <= plan->free_bytes;
}

/* The levels to be tried: one, or all. */
static void levels_of(const struct memory_ask *ask, enum recompute want, int *first, int *last)
{
    bool any = want == RECOMPUTE_AUTO && ask->uses & MODEL_TRAIN;
    *first = any ? MODEL_KEEP_ALL : want == RECOMPUTE_AUTO ? MODEL_KEEP_ALL : (int)want;
    *last = any ? MODEL_RECOMPUTE_BLOCK : *first;
    assert(*first <= *last && *last <= MODEL_RECOMPUTE_BLOCK);
}

static bool choose(struct memory_plan *plan, const struct memory_ask *ask, int first, int last, bool outer)
{
    for (int level = first; level <= last; level++) {
        plan->level = (enum model_recompute)level;
        plan->outer_left_out = !outer;
        plan->total = count(ask, ask->batch_size, plan->level, outer, plan->bytes);
        if (fits(plan, plan->total)) return true;
    }
    return false;
}

/* In units; 0: not even one. Totals grow with the batch. */
static uint32_t largest_batch(const struct memory_plan *plan, const struct memory_ask *ask, enum model_recompute level)
{
    uint64_t bytes[MEMORY_CLASSES];
    uint32_t low = 0, high = ask->batch_size / ask->batch_unit;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (fits(plan, count(ask, middle * ask->batch_unit, level, !ask->outer.optional, bytes)))
            low = middle;
        else
            high = middle;
    }
    return low * ask->batch_unit;
}

/* The level that keeps least takes all of the batch, or more than `batch` of it. */
static bool least_helps(const struct memory_plan *plan, const struct memory_ask *ask, uint32_t batch)
{
    uint64_t bytes[MEMORY_CLASSES];
    return fits(plan, count(ask, ask->batch_size, MODEL_RECOMPUTE_BLOCK, !ask->outer.optional, bytes)) ||
           largest_batch(plan, ask, MODEL_RECOMPUTE_BLOCK) > batch;
}

/* "2.00 GiB are free for each of 4 workers beside 1.00 GiB of the coordinator" */
static const char *free_text(const struct memory_ask *ask, char *out, size_t cap)
{
    char others[48] = "", beside[64] = "", size[MEMORY_TEXT_MAX];
    if (ask->coordinator)
        snprintf(beside, sizeof beside, " beside %s of the coordinator", memory_text(ask->coordinator, size));
    if (ask->workers > 1) snprintf(others, sizeof others, " for each of %" PRIu32 " workers", ask->workers);
    bool any = ask->free_bytes > 1; /* no byte at all would be "not known" */
    snprintf(out, cap, "%s %s free%s%s", any ? memory_text(ask->free_bytes, size) : "nothing", any ? "are" : "is",
             others, beside);
    return out;
}

static enum status refuse(struct memory_plan *plan, const struct memory_ask *ask, enum recompute want, int last,
                          struct err *err)
{
    char advice[160], room[160], size[MEMORY_TEXT_MAX];
    uint32_t batch = largest_batch(plan, ask, (enum model_recompute)last);
    uint64_t bytes[MEMORY_CLASSES];
    plan->total = count(ask, ask->batch_size, (enum model_recompute)last, !ask->outer.optional, bytes);
    const char *less = want != RECOMPUTE_AUTO && ask->uses & MODEL_TRAIN && least_helps(plan, ask, batch)
                           ? ", or train.recompute=auto"
                           : "";
    if (batch)
        snprintf(advice, sizeof advice,
                 "the largest train.batch_size that fits is %" PRIu32 " (train.grad_accum makes "
                 "up for it)%s",
                 batch, less);
    else
        snprintf(advice, sizeof advice, "not even train.batch_size=%" PRIu32 " fits: take a smaller model%s",
                 ask->batch_unit, less);
    bool never = plan->total + plan->reserve > plan->total_bytes;
    return err_set(err, never ? STATUS_UNSUPPORTED : STATUS_NOMEM,
                   "train.batch_size=%" PRIu32 " needs %s on %s "
                   "at train.recompute=%s, and %s: %s",
                   ask->batch_size, memory_text(plan->total + plan->reserve, size), ask->dev->name,
                   memory_level_name((enum recompute)last), free_text(ask, room, sizeof room), advice);
}

/* The line for what does not fit beside a GPU: the figures, and what would help. */
static enum status refuse_host(const struct memory_plan *plan, const struct memory_ask *ask, struct err *err)
{
    char advice[160], room[160], what[256], size[MEMORY_TEXT_MAX];
    assert(plan->total > 0 && !fits(plan, plan->total));
    uint64_t fit = plan->free_bytes * (ask->workers > 1 ? ask->workers : 1) / plan->total;
    uint64_t moments = plan->bytes[MEMORY_MOMENTS];
    if (fit)
        snprintf(advice, sizeof advice,
                 "start %" PRIu64 " worker%s on this machine (train.ranks gives one several "
                 "GPUs)",
                 fit, fit > 1 ? "s" : "");
    else if (plan->total - moments <= plan->free_bytes)
        snprintf(advice, sizeof advice, "checkpoint.worker_every=0 takes %s less: nothing is saved of a worker",
                 memory_text(moments, size));
    else
        snprintf(advice, sizeof advice,
                 "take a smaller model, or a machine with more memory (ATOLL_HOST_MEMORY: bytes "
                 "that it has, if it shows less)");
    bool never = plan->total > plan->total_bytes;
    return err_set(err, never ? STATUS_UNSUPPORTED : STATUS_NOMEM,
                   "beside %s a worker needs %s of the host's "
                   "memory, and %s: %s (%s)",
                   ask->dev->name, memory_text(plan->total, size), free_text(ask, room, sizeof room), advice,
                   memory_plan_text(plan, what, sizeof what));
}

enum status memory_plan_host(struct memory_plan *plan, const struct memory_ask *ask, struct err *err)
{
    *plan = (struct memory_plan){.free_bytes = ask->free_bytes, .total_bytes = ask->total_bytes};
    for (int i = 0; i < MEMORY_CLASSES; i++) plan->bytes[i] = ask->fixed[i];
    plan->total = sum_of(plan->bytes);
    return fits(plan, plan->total) ? STATUS_OK : refuse_host(plan, ask, err);
}

enum status memory_plan_make(struct memory_plan *plan, const struct memory_ask *ask, enum recompute want,
                             struct err *err)
{
    int first, last;
    uint64_t bytes[MEMORY_CLASSES];
    *plan = (struct memory_plan){.free_bytes = ask->free_bytes, .total_bytes = ask->total_bytes};
    if (ask->free_bytes && !ask->dev->host_memory) {
        uint64_t share = ask->total_bytes / RESERVE_SHARE;
        plan->reserve = share < RESERVE_BYTES ? share : RESERVE_BYTES;
    }
    levels_of(ask, want, &first, &last);
    for (int level = 0; level <= MODEL_RECOMPUTE_BLOCK; level++)
        plan->levels[level] = count(ask, ask->batch_size, (enum model_recompute)level, true, bytes);
    if (choose(plan, ask, first, last, true)) {
        assert(plan->total == plan->levels[plan->level] && plan->total == sum_of(plan->bytes));
        return STATUS_OK;
    }
    if (ask->outer.optional && choose(plan, ask, first, last, false)) return STATUS_OK;
    return refuse(plan, ask, want, last, err);
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
