#include "wire/zmq/backlog.h"

#include <assert.h>

#include "common/base/mem.h"

/* A block in the queue of one connection. */
struct queued {
    struct backlog *backlog;
    struct wire_block *block;
    size_t size;
    unsigned slot;
};

bool backlog_admits(const struct backlog *b, unsigned slot, size_t size)
{
    size_t queued = atomic_load(&b->queued[slot]), total = atomic_load(&b->total);
    size_t room = total < BACKLOG_BYTES ? (BACKLOG_BYTES - total) / 4 : 0;
    assert(slot < PEERS_MAX);
    return !queued || queued + size <= room;
}

/* ZeroMQ calls this from any of its threads. */
static void release(void *data, void *hint)
{
    struct queued *q = hint;
    (void)data;
    size_t queued = atomic_fetch_sub(&q->backlog->queued[q->slot], q->size);
    size_t total = atomic_fetch_sub(&q->backlog->total, q->size);
    assert(queued >= q->size && total >= q->size);
    wire_block_drop(q->block);
    mem_free(q);
}

enum status backlog_message(struct backlog *b, unsigned slot, struct wire_block *block, zmq_msg_t *msg)
{
    if (!backlog_admits(b, slot, block->size)) return STATUS_AGAIN;
    struct queued *q = mem_alloc(1, sizeof *q);
    if (!q) return STATUS_NOMEM;
    *q = (struct queued){b, wire_block_keep(block), block->size, slot};
    if (zmq_msg_init_data(msg, block->data, block->size, release, q)) {
        wire_block_drop(block);
        mem_free(q);
        return STATUS_NOMEM;
    }
    atomic_fetch_add(&b->queued[slot], q->size);
    atomic_fetch_add(&b->total, q->size);
    return STATUS_OK;
}
