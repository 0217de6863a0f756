#include "coordinator/round/upload.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/minmax.h"

uint64_t upload_credit(const struct upload_pool *pool)
{
    uint64_t free_bytes = pool->granted < UPLOAD_CREDIT ? UPLOAD_CREDIT - pool->granted : 0;
    return max_u64(free_bytes / 4, UPLOAD_LEAST);
}

/* Raises `upto`, which never falls: the worker may have sent these bytes. */
static void grant(struct upload *u, struct upload_pool *pool)
{
    assert(u->have <= u->upto && u->upto <= u->offer.bytes);
    uint64_t end = u->have + min_u64(upload_credit(pool), u->offer.bytes - u->have), upto = max_u64(u->upto, end);
    pool->granted += upto - u->upto;
    u->upto = upto;
    u->told = u->have;
}

bool upload_continues(const struct upload *u, const struct msg_offer *offer)
{
    return u->active && u->offer.round == offer->round && u->offer.bytes == offer->bytes &&
           u->offer.crc == offer->crc && u->offer.base_version == offer->base_version;
}

void upload_start(struct upload *u, struct upload_pool *pool, const struct msg_offer *offer, uint32_t slot)
{
    if (!upload_continues(u, offer)) {
        upload_drop(u, pool);
        *u = (struct upload){.active = true, .slot = slot};
    }
    u->offer = *offer;
    grant(u, pool);
    assert(u->active && u->have <= u->upto && u->upto <= offer->bytes);
}

enum status upload_chunk(struct upload *u, struct upload_pool *pool, const struct msg_chunk *chunk)
{
    if (!u->active || chunk->key != u->offer.round || chunk->offset != u->have) return STATUS_AGAIN;
    if (chunk->total != u->offer.bytes || chunk->size > u->offer.bytes - u->have) return STATUS_CORRUPT;
    u->crc = crc32c_join(u->crc, chunk->crc, chunk->size);
    pool->granted -= min_u64(chunk->size, u->upto - u->have);
    u->have += chunk->size;
    u->upto = max_u64(u->upto, u->have);
    assert(u->have <= u->offer.bytes);
    return STATUS_OK;
}

bool upload_extend(struct upload *u, struct upload_pool *pool)
{
    uint64_t new = u->have - u->told, half = (u->upto - u->told) / 2;
    assert(u->active && u->told <= u->have);
    if (new < UPLOAD_STEP && (new < half || u->upto == u->offer.bytes)) return false;
    grant(u, pool);
    return true;
}

bool upload_complete(const struct upload *u)
{
    return u->active && u->have == u->offer.bytes;
}

bool upload_intact(const struct upload *u)
{
    return upload_complete(u) && u->crc == u->offer.crc;
}

void upload_drop(struct upload *u, struct upload_pool *pool)
{
    assert(pool->granted >= u->upto - u->have);
    pool->granted -= u->upto - u->have;
    memset(u, 0, sizeof *u);
}
