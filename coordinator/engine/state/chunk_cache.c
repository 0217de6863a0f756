#include "coordinator/engine/state/chunk_cache.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

enum status chunk_cache_init(struct chunk_cache *c, uint64_t bytes, size_t chunk)
{
    uint64_t n = bytes / (chunk + MSG_CHUNK_HEAD);
    *c = (struct chunk_cache){.n = n > 1 ? (uint32_t)n : 1};
    c->entries = mem_alloc(c->n, sizeof *c->entries);
    return c->entries ? STATUS_OK : STATUS_NOMEM;
}

void chunk_cache_finish(struct chunk_cache *c)
{
    for (uint32_t i = 0; c->entries && i < c->n; i++) wire_block_drop(c->entries[i].block);
    mem_free(c->entries);
    memset(c, 0, sizeof *c);
}

const struct chunk_entry *chunk_cache_find(struct chunk_cache *c, const struct msg_chunk *chunk)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct chunk_entry *e = &c->entries[i];
        const struct msg_chunk *has = &e->chunk;
        if (has->size != chunk->size || has->offset != chunk->offset || has->key != chunk->key ||
            has->fragment != chunk->fragment || has->kind != chunk->kind)
            continue;
        e->used = ++c->uses;
        return e;
    }
    return NULL;
}

struct chunk_entry *chunk_cache_replace(struct chunk_cache *c, const struct msg_chunk *chunk)
{
    struct chunk_entry *oldest = c->entries;
    for (uint32_t i = 1; i < c->n; i++)
        if (c->entries[i].used < oldest->used) oldest = &c->entries[i];
    oldest->chunk = (struct msg_chunk){0};
    size_t need = MSG_CHUNK_HEAD + chunk->size;
    bool fits = oldest->block && oldest->block->cap >= need && wire_block_is_own(oldest->block);
    if (!fits) {
        wire_block_drop(oldest->block);
        oldest->block = wire_block_new(need);
    }
    oldest->used = ++c->uses;
    return oldest->block ? oldest : NULL;
}

uint8_t *chunk_entry_data(const struct chunk_entry *entry)
{
    assert(entry->block);
    return entry->block->data + MSG_CHUNK_HEAD;
}

enum status chunk_entry_seal(struct chunk_entry *entry, const struct msg_chunk *chunk)
{
    struct msg_chunk sealed = *chunk;
    assert(MSG_CHUNK_HEAD + chunk->size <= entry->block->cap && wire_block_is_own(entry->block));
    TRY(msg_encode_chunk(&sealed, entry->block->data, &entry->block->size));
    entry->chunk = sealed;
    return STATUS_OK;
}
