#include "wire/block.h"

#include <assert.h>

#include "common/base/mem.h"

struct wire_block *wire_block_new(size_t cap)
{
    struct wire_block *block = mem_alloc_untouched(sizeof *block + cap);
    if (!block) return NULL;
    atomic_init(&block->references, 1);
    block->size = 0;
    block->cap = cap;
    return block;
}

struct wire_block *wire_block_keep(struct wire_block *block)
{
    unsigned before = atomic_fetch_add_explicit(&block->references, 1, memory_order_relaxed);
    assert(before > 0);
    return block;
}

void wire_block_drop(struct wire_block *block)
{
    if (!block) return;
    unsigned before = atomic_fetch_sub_explicit(&block->references, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) mem_free(block);
}

bool wire_block_is_own(struct wire_block *block)
{
    return atomic_load_explicit(&block->references, memory_order_acquire) == 1;
}
