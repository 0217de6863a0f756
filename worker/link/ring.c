#include "worker/link/ring.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

/* Head before each record, 16 bytes. skip: the rest of the buffer is unused. */
struct ring_head {
    uint32_t tag, skip;
    uint64_t size;
};

enum { HEAD = sizeof(struct ring_head) };

static size_t record_bytes(size_t size)
{
    return (HEAD + size + HEAD - 1) & ~(size_t)(HEAD - 1);
}

enum status ring_init(struct ring *r, size_t cap)
{
    memset(r, 0, sizeof *r);
    r->cap = cap & ~(size_t)(HEAD - 1);
    r->data = mem_alloc_untouched(r->cap);
    return r->data ? STATUS_OK : STATUS_NOMEM;
}

void ring_finish(struct ring *r)
{
    mem_free(r->data);
    memset(r, 0, sizeof *r);
}

static struct ring_head *head_at(const struct ring *r, size_t at)
{
    assert(at % HEAD == 0 && at + HEAD <= r->cap);
    return (struct ring_head *)(void *)(r->data + at);
}

uint8_t *ring_reserve(struct ring *r, size_t size)
{
    size_t need = record_bytes(size), tail = (r->head + r->used) % r->cap;
    assert(r->head < r->cap && r->used <= r->cap);
    if (need > r->cap) return NULL;
    if (r->used == 0) r->head = tail = 0;
    size_t free_bytes = r->cap - r->used, to_end = r->cap - tail;
    bool wraps = tail >= r->head && to_end < need;
    if (free_bytes < need + (wraps ? to_end : 0)) return NULL;
    if (wraps) {
        *head_at(r, tail) = (struct ring_head){.skip = 1};
        r->used += to_end;
        tail = 0;
    }
    assert(tail + need <= r->cap && r->used + need <= r->cap);
    r->reserved = tail;
    return r->data + tail + HEAD;
}

void ring_commit(struct ring *r, uint32_t tag, size_t size)
{
    *head_at(r, r->reserved) = (struct ring_head){.tag = tag, .size = size};
    r->used += record_bytes(size);
    assert(r->reserved + record_bytes(size) <= r->cap && r->used <= r->cap);
}

static size_t first_record(const struct ring *r)
{
    return head_at(r, r->head)->skip ? 0 : r->head;
}

const uint8_t *ring_peek(const struct ring *r, uint32_t *tag_p, size_t *size_p)
{
    if (ring_empty(r)) return NULL;
    const struct ring_head *h = head_at(r, first_record(r));
    assert(!h->skip && first_record(r) + record_bytes(h->size) <= r->cap);
    *tag_p = h->tag;
    *size_p = h->size;
    return r->data + first_record(r) + HEAD;
}

void ring_drop(struct ring *r)
{
    if (ring_empty(r)) return;
    if (head_at(r, r->head)->skip) {
        assert(r->used > r->cap - r->head);
        r->used -= r->cap - r->head;
        r->head = 0;
    }
    size_t size = record_bytes(head_at(r, r->head)->size);
    assert(size <= r->used && r->head + size <= r->cap);
    r->head = (r->head + size) % r->cap;
    r->used -= size;
}

bool ring_empty(const struct ring *r)
{
    return r->used == 0 || (head_at(r, r->head)->skip && r->used == r->cap - r->head);
}
