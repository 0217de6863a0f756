#include "compress/topk/union_size.h"

#include <assert.h>
#include <string.h>

#include "compress/codec_simd.h"
#include "compress/codec_stage.h"
#include "compress/merge.h"
#include "compress/topk/golomb.h"

/* The parameters of topk:4095/4096+sign (docs/codecs.md). */
enum {
    CHUNK = 4096,
    GROUP = CODEC_PART / CHUNK, /* chunks */
    GROUP_HEAD = 2,
    OFFSET = 4,
    STEP_BITS = 3,  /* a scale after another one */
    FULL_BITS = 24, /* the first scale of a group, and a chunk without values */
    SIZES = 512,
};

struct group {
    const float *chunk[GROUP];
    uint32_t length[GROUP], n;
};

struct union_job {
    const struct layout *layout;
    const struct fragment *frag;
    const float *merged;
    uint64_t n_groups;
    uint64_t bytes[POOL_THREADS_MAX]; /* by thread */
};

static uint32_t count_carried(const float *x, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) count += !merge_unsent(x[i]);
    return count;
}

/* A full chunk does not send its smallest value. */
static uint32_t sent_count(uint32_t count)
{
    return count < CHUNK ? count : CHUNK - 1;
}

/* The parameter that the encoder of the group will choose. Gaps add up to the positions skipped. */
static struct golomb parameter(const struct group *g, const uint32_t *counts)
{
    uint64_t sum = 0, gaps = 0;
    for (uint32_t c = 0; c < g->n; c++) {
        uint32_t n = sent_count(counts[c]), end = g->length[c];
        bool whole = n == end || n == CHUNK - 1;
        if (!n) continue;
        while (whole && merge_unsent(g->chunk[c][end - 1])) end--; /* otherwise a final gap leads to the end */
        gaps += n + !whole;
        sum += end - n;
    }
    return golomb_of(golomb_parameter(sum, gaps));
}

/* flag[i] = 1 if x[i] is carried. */
CODEC_SIMD(mark, (const float *restrict x, uint32_t n, uint8_t *restrict flag), (x, n, flag))
{
    for (uint32_t i = 0; i < n; i++) flag[i] = !merge_unsent(x[i]);
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lowest byte of a word is its first flag");

/* Finds the positions of carried values, eight at a time: most are empty. Returns their number. */
static uint32_t find_positions(const float *x, uint32_t length, uint16_t position[CHUNK])
{
    uint8_t flag[CHUNK];
    uint32_t n = 0;
    assert(length <= CHUNK);
    mark(x, length, flag);
    if (length % 8) memset(flag + length, 0, 8 - length % 8); /* CHUNK is a multiple of 8 */
    for (uint32_t from = 0; from < length; from += 8) {
        uint64_t word;
        memcpy(&word, flag + from, sizeof word);
        for (; word; word &= word - 1) position[n++] = (uint16_t)(from + (uint32_t)__builtin_ctzll(word) / 8);
    }
    return n;
}

/* Bits of the gaps of a chunk. */
static uint64_t gap_bits(const float *x, uint32_t length, const struct golomb *golomb, const uint16_t *sizes)
{
    uint16_t position[CHUNK];
    uint32_t n = sent_count(find_positions(x, length, position)), next = 0;
    uint64_t bits = 0;
    bool whole = n == length || n == CHUNK - 1;
    for (uint32_t i = 0; i < n + !whole; i++) {
        uint32_t gap = (i < n ? position[i] : length) - next;
        bits += gap < SIZES ? sizes[gap] : golomb_size(golomb, gap);
        next = i < n ? position[i] + 1u : length;
    }
    return bits;
}

static uint64_t group_bytes(const struct group *g)
{
    uint32_t counts[GROUP];
    uint16_t sizes[SIZES];
    uint64_t bits = 0;
    bool any = false;
    assert(g->n && g->n <= GROUP);
    for (uint32_t c = 0; c < g->n; c++) counts[c] = count_carried(g->chunk[c], g->length[c]);
    struct golomb golomb = parameter(g, counts);
    for (uint32_t gap = 0; gap < SIZES; gap++) sizes[gap] = (uint16_t)golomb_size(&golomb, gap);
    for (uint32_t c = 0; c < g->n; c++) {
        bits += counts[c] && any ? STEP_BITS : FULL_BITS;
        if (!counts[c]) continue;
        any = true;
        bits += sent_count(counts[c]) + gap_bits(g->chunk[c], g->length[c], &golomb, sizes);
    }
    return GROUP_HEAD + (bits + 7) / 8;
}

/* Counts the groups of this thread; thread 0 also counts the 1-D tensors. */
static void count_thread(void *ctx, int thread, int threads)
{
    struct union_job *job = ctx;
    struct group g = {.n = 0};
    size_t from, to;
    uint64_t chunk = 0, bytes = 0;
    pool_share(job->n_groups, 1, thread, threads, &from, &to);
    for (uint32_t t = 0; t < job->frag->n_tensors; t++) {
        const struct tensor *tensor = &job->layout->tensors[job->frag->first_tensor + t];
        if (tensor->ndim <= 1) {
            bytes += thread ? 0 : 2 * tensor->count;
            continue;
        }
        for (uint64_t at = 0; at < tensor->count; at += CHUNK, chunk++) {
            if (chunk / GROUP < from || chunk / GROUP >= to) continue;
            g.chunk[g.n] = job->merged + (tensor->offset - job->frag->offset) + at;
            g.length[g.n++] = (uint32_t)(tensor->count - at < CHUNK ? tensor->count - at : CHUNK);
            if (g.n < GROUP) continue;
            bytes += group_bytes(&g);
            g.n = 0;
        }
    }
    if (g.n) bytes += group_bytes(&g);
    assert(thread < POOL_THREADS_MAX);
    job->bytes[thread] = bytes;
}

uint64_t union_bytes(const struct layout *layout, uint32_t fragment, const float *merged, struct pool *pool)
{
    struct union_job job = {.layout = layout, .frag = &layout->fragments[fragment], .merged = merged};
    uint64_t chunks = 0, bytes = 0;
    for (uint32_t t = 0; t < job.frag->n_tensors; t++) {
        const struct tensor *tensor = &layout->tensors[job.frag->first_tensor + t];
        if (tensor->ndim > 1) chunks += (tensor->count + CHUNK - 1) / CHUNK;
    }
    job.n_groups = (chunks + GROUP - 1) / GROUP;
    pool_run_if(pool, job.n_groups > 1, count_thread, &job);
    for (int i = 0; i < POOL_THREADS_MAX; i++) bytes += job.bytes[i];
    return bytes + (job.n_groups ? OFFSET * (job.n_groups - 1) : 0);
}
