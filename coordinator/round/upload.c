#include "coordinator/round/upload.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"

static uint64_t window_end(const struct upload *u)
{
    assert(u->have <= u->offer.bytes);
    uint64_t left = u->offer.bytes - u->have;
    return u->have + (left < UPLOAD_WINDOW ? left : UPLOAD_WINDOW);
}

void upload_start(struct upload *u, const struct msg_offer *offer, uint32_t slot)
{
    bool same = u->active && u->offer.round == offer->round && u->offer.bytes == offer->bytes &&
                u->offer.crc == offer->crc && u->offer.base_version == offer->base_version;
    if (!same) *u = (struct upload){.active = true, .slot = slot};
    u->offer = *offer;
    u->upto = window_end(u);
    assert(u->active && u->have <= u->upto && u->upto <= offer->bytes);
}

enum status upload_chunk(struct upload *u, const struct msg_chunk *chunk)
{
    if (!u->active || chunk->key != u->offer.round || chunk->offset != u->have) return STATUS_AGAIN;
    if (chunk->total != u->offer.bytes || chunk->size > u->offer.bytes - u->have ||
        crc32c(0, chunk->data, chunk->size) != chunk->crc)
        return STATUS_CORRUPT;
    u->have += chunk->size;
    assert(u->have <= u->offer.bytes);
    return STATUS_OK;
}

bool upload_extend(struct upload *u)
{
    uint64_t end = window_end(u);
    if (end <= u->upto) return false;
    assert(u->active && end <= u->offer.bytes);
    if (u->upto - u->have > UPLOAD_WINDOW / 2 && end < u->offer.bytes) return false;
    u->upto = end;
    return true;
}

bool upload_complete(const struct upload *u)
{
    return u->active && u->have == u->offer.bytes;
}

bool upload_intact(const struct upload *u, const uint8_t *data)
{
    return crc32c(0, data, u->offer.bytes) == u->offer.crc;
}

void upload_drop(struct upload *u)
{
    memset(u, 0, sizeof *u);
}
