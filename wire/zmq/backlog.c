#include "wire/zmq/backlog.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/mem.h"

struct block {
    struct backlog *backlog;
    size_t size;
    unsigned slot;
    uint8_t data[];
};

static bool admits(const struct backlog *b, unsigned slot, size_t size)
{
    size_t queued = atomic_load(&b->queued[slot]), total = atomic_load(&b->total);
    size_t room = total < BACKLOG_BYTES ? (BACKLOG_BYTES - total) / 4 : 0;
    return !queued || queued + size <= room;
}

/* ZeroMQ calls this from any of its threads. */
static void release(void *data, void *hint)
{
    struct block *block = hint;
    (void)data;
    size_t queued = atomic_fetch_sub(&block->backlog->queued[block->slot], block->size);
    size_t total = atomic_fetch_sub(&block->backlog->total, block->size);
    assert(queued >= block->size && total >= block->size);
    mem_free(block);
}

enum status backlog_message(struct backlog *b, unsigned slot, const uint8_t *data, size_t size, zmq_msg_t *msg)
{
    assert(slot < PEERS_MAX);
    if (!admits(b, slot, size)) return STATUS_AGAIN;
    struct block *block = mem_alloc(1, sizeof *block + size);
    if (!block) return STATUS_NOMEM;
    block->backlog = b;
    block->slot = slot;
    block->size = size;
    memcpy(block->data, data, size);
    if (zmq_msg_init_data(msg, block->data, size, release, block)) {
        mem_free(block);
        return STATUS_NOMEM;
    }
    atomic_fetch_add(&b->queued[slot], size);
    atomic_fetch_add(&b->total, size);
    return STATUS_OK;
}
