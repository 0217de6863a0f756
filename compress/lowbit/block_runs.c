#include "compress/lowbit/block_runs.h"

#include <assert.h>

size_t runs_size(const struct value_ctx *ctx)
{
    return sizeof(struct runs) + ctx->n_spans * sizeof(struct run) +
           (ctx->n / CODEC_PART + 1) * sizeof(struct codec_part);
}

static bool is_plain(const struct codec_span *span)
{
    return span->ndim < 2;
}

static void add_run(struct runs_total *total, bool plain, size_t count, size_t block, size_t bits)
{
    if (plain) {
        total->n_plain += count;
        return;
    }
    total->n_blocks += (count + block - 1) / block;
    total->code_bytes += (count * bits + 7) / 8;
}

struct runs_total runs_count(const struct value_ctx *ctx, size_t block, size_t bits)
{
    struct runs_total total = {0};
    for (size_t i = 0, next; i < ctx->n_spans; i = next) {
        size_t count = 0;
        bool plain = is_plain(&ctx->spans[i]);
        for (next = i; next < ctx->n_spans && is_plain(&ctx->spans[next]) == plain; next++)
            count += ctx->spans[next].count;
        add_run(&total, plain, count, block, bits);
    }
    return total;
}

static void fill_runs(struct runs *runs, const struct value_ctx *ctx, size_t block, size_t bits)
{
    for (size_t i = 0; i < ctx->n_spans; i++) {
        const struct codec_span *span = &ctx->spans[i];
        struct run *last = runs->run + runs->n_runs;
        bool plain = is_plain(span);
        if (runs->n_runs && last[-1].plain == plain) {
            last[-1].to += span->count;
            continue;
        }
        *last = (struct run){.from = span->offset, .to = span->offset + span->count, .plain = plain};
        runs->n_runs++;
    }
    for (size_t i = 0; i < runs->n_runs; i++) {
        struct run *run = &runs->run[i];
        run->at = run->plain ? runs->total.n_plain : runs->total.n_blocks;
        run->codes_at = runs->total.code_bytes;
        add_run(&runs->total, run->plain, run->to - run->from, block, bits);
    }
}

static void fill_parts(struct runs *runs, size_t n, size_t block)
{
    for (size_t from = 0, to; from < n; from = to) {
        to = n - from < CODEC_PART ? n : from + CODEC_PART;
        if (to < n) {
            const struct run *run = &runs->run[runs_find(runs, to)];
            size_t into = to - run->from;
            if (!run->plain) into = (into + block - 1) / block * block; /* up to the end of the block */
            to = run->to - run->from < into ? run->to : run->from + into;
        }
        assert(from < to && to <= n && runs->n_parts <= n / CODEC_PART);
        runs->part[runs->n_parts] = (struct codec_part){.index = runs->n_parts, .from = from, .to = to};
        runs->n_parts++;
    }
}

void runs_fill(struct runs *runs, const struct value_ctx *ctx, size_t block, size_t bits)
{
    assert(block && block * bits % 8 == 0);
    *runs = (struct runs){.run = (struct run *)(runs + 1)};
    runs->part = (struct codec_part *)(runs->run + ctx->n_spans);
    fill_runs(runs, ctx, block, bits);
    assert(runs->n_runs && runs->n_runs <= ctx->n_spans && runs->run[runs->n_runs - 1].to == ctx->n);
    fill_parts(runs, ctx->n, block);
}

size_t runs_find(const struct runs *runs, size_t i)
{
    assert(runs->n_runs && i < runs->run[runs->n_runs - 1].to);
    size_t low = 0, high = runs->n_runs; /* run[low].from <= i < run[high].from */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (runs->run[middle].from <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}
