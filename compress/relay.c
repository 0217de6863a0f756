#include "compress/relay.h"

#include "common/base/bytes.h"

#include <assert.h>

size_t relay_head_size(uint32_t n)
{
    return sizeof(uint64_t) * (size_t)n;
}

void relay_head_write(const struct merge_delta *deltas, uint32_t n, uint8_t *dst)
{
    struct writer w = writer_of(dst, relay_head_size(n));
    for (uint32_t i = 0; i < n; i++) put_u64(&w, deltas[i].size);
    assert(n && !w.bad && w.pos == relay_head_size(n));
}

enum status relay_split(struct merge_delta *deltas, uint32_t n, const uint8_t *src, size_t size)
{
    if (!n || size < relay_head_size(n)) return STATUS_CORRUPT;
    struct reader r = reader_of(src, relay_head_size(n));
    size_t at = relay_head_size(n);
    assert(at <= size);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = get_u64(&r);
        if (bytes > size - at) return STATUS_CORRUPT;
        deltas[i] = (struct merge_delta){.payload = src + at, .size = (size_t)bytes};
        at += (size_t)bytes;
    }
    return at == size ? STATUS_OK : STATUS_CORRUPT;
}

enum status relay_range(const uint8_t *src, size_t size, uint32_t n, uint32_t index, uint64_t *from_p, uint64_t *to_p)
{
    if (index >= n) return STATUS_CORRUPT;
    if (size < relay_head_size(n)) return STATUS_AGAIN;
    struct reader r = reader_of(src, relay_head_size(n));
    uint64_t from = relay_head_size(n), to = from;
    for (uint32_t i = 0; i <= index; i++) {
        from = to;
        if (__builtin_add_overflow(from, get_u64(&r), &to)) return STATUS_CORRUPT;
    }
    assert(from <= to);
    *from_p = from;
    *to_p = to;
    return STATUS_OK;
}

enum status relay_merge(struct merge *merge, struct merge_delta *deltas)
{
    assert(merge->n && !merge->added && !merge->measured);
    bool at_once = merge_needs_all(merge->m, merge->codec);
    for (uint32_t i = 0; i < merge->n; i++) deltas[i].room = NULL;
    for (uint32_t i = 0; (at_once || merge_needs_norms(merge)) && i < merge->n; i++) {
        TRY(merge_open(merge->codec, &deltas[i]));
        if (!at_once) merge_compute_norms(merge, &deltas[i], 1);
    }
    if (at_once) {
        if (merge_needs_norms(merge)) merge_compute_norms(merge, deltas, merge->n);
        merge_add(merge, deltas, merge->n);
        return STATUS_OK;
    }
    for (uint32_t i = 0; i < merge->n; i++) {
        TRY(merge_open(merge->codec, &deltas[i]));
        merge_add(merge, &deltas[i], 1);
    }
    return STATUS_OK;
}
