/* Encoded CHUNKs of updates and snapshots: all workers download the same ones at about the same time. Each is read,
 * checksummed and encoded once, and the connections share its bytes. A chunk that is used again stays longer. */
#ifndef COORDINATOR_CHUNK_CACHE_H
#define COORDINATOR_CHUNK_CACHE_H

#include "common/base/status.h"
#include "wire/block.h"
#include "wire/msg.h"

struct chunk_entry {
    struct msg_chunk chunk;   /* size 0: none; data in the block */
    struct wire_block *block; /* the whole message; NULL: none yet */
    uint64_t used;            /* time of its last use, in uses */
};

struct chunk_cache {
    struct chunk_entry *entries; /* [n] */
    uint32_t n;
    uint64_t uses;
};

/* For `bytes` of chunks with `chunk` bytes each, at least one. */
enum status chunk_cache_init(struct chunk_cache *c, uint64_t bytes, size_t chunk) MUST_CHECK;
void chunk_cache_finish(struct chunk_cache *c);
/* The entry with this kind, fragment, key, offset and size; NULL: none. */
const struct chunk_entry *chunk_cache_find(struct chunk_cache *c, const struct msg_chunk *chunk);
/* Replaces the entry that was not used for the longest time. The caller writes chunk->size bytes to what
 * chunk_entry_data returns, then calls chunk_entry_seal. NULL: no memory. */
struct chunk_entry *chunk_cache_replace(struct chunk_cache *c, const struct msg_chunk *chunk);
uint8_t *chunk_entry_data(const struct chunk_entry *entry);
/* Encodes the message. INVALID: a field is over its limit. */
enum status chunk_entry_seal(struct chunk_entry *entry, const struct msg_chunk *chunk) MUST_CHECK;

#endif
