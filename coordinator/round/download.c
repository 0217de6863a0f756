#include "coordinator/round/download.h"

#include <assert.h>
#include <stddef.h>

#include "common/base/backoff.h"
#include "common/base/minmax.h"

static struct download_item *find(struct download *s, uint8_t kind, uint32_t fragment, uint64_t version)
{
    for (int i = 0; i < DOWNLOAD_MAX; i++) {
        struct download_item *item = &s->items[i];
        if (item->used && item->kind == kind && item->fragment == fragment && item->version == version) return item;
    }
    return NULL;
}

static struct download_item *unused(struct download *s)
{
    for (int i = 0; i < DOWNLOAD_MAX; i++)
        if (!s->items[i].used) return &s->items[i];
    return NULL;
}

/* False: nothing is left to send. */
static bool set_total(struct download_item *item, uint64_t total)
{
    item->total = total;
    item->parked = total == 0;
    if (total && item->end > total) item->end = total;
    item->used = item->parked || item->at < item->end;
    assert(!item->used || item->parked || item->end <= item->total);
    return item->used;
}

bool download_add(struct download *s, const struct msg_get *get, uint64_t total)
{
    uint64_t end = get->length > UINT64_MAX - get->offset ? UINT64_MAX : get->offset + get->length;
    struct download_item *item = find(s, get->kind, get->fragment, get->version);
    /* The worker requests the next window early. It already has the bytes between the two windows. */
    if (item && !item->parked && get->length && get->offset >= item->end) {
        item->end = end;
        return set_total(item, total);
    }
    if (!item) item = unused(s);
    if (!item || !get->length) return false;
    *item = (struct download_item){.used = true,
                                   .kind = get->kind,
                                   .fragment = get->fragment,
                                   .version = get->version,
                                   .at = get->offset,
                                   .end = end,
                                   .order = s->orders++};
    return set_total(item, total);
}

bool download_wake(struct download *s, uint32_t fragment, uint64_t version, uint64_t total)
{
    struct download_item *item = find(s, OBJECT_UPDATE, fragment, version);
    return item && item->parked && set_total(item, total);
}

void download_leave_out(struct download *s, uint32_t fragment, uint64_t version, uint64_t from, uint64_t to)
{
    struct download_item *item = find(s, OBJECT_UPDATE, fragment, version);
    if (!item || item->parked || item->at >= from || from >= to) return;
    item->hole_from = from;
    item->hole_to = to;
    if (item->end > from && item->end < to) item->end = from;
    assert(item->at < item->end);
}

bool download_next(const struct download *s, struct download_item *item, uint64_t *size_p)
{
    const struct download_item *best = NULL;
    for (int i = 0; i < DOWNLOAD_MAX; i++) {
        const struct download_item *it = &s->items[i];
        if (it->used && !it->parked && (!best || it->order < best->order)) best = it;
    }
    if (!best) return false;
    assert(best->at < best->end && best->end <= best->total);
    *item = *best;
    uint64_t end = best->at < best->hole_from && best->hole_from < best->end ? best->hole_from : best->end;
    /* Workers whose windows end elsewhere share the chunks behind them. */
    *size_p = min_u64(end - best->at, DOWNLOAD_CHUNK - best->at % DOWNLOAD_CHUNK);
    assert(*size_p > 0);
    return true;
}

void download_sent(struct download *s, const struct download_item *sent, uint64_t size)
{
    struct download_item *item = find(s, sent->kind, sent->fragment, sent->version);
    s->wait_us /= 2;
    if (!item) return;
    assert(size <= item->end - item->at);
    item->at += size;
    if (item->hole_to && item->at == item->hole_from) item->at = item->hole_to;
    if (!size || item->at >= item->end) item->used = false;
}

void download_full(struct download *s, uint64_t now_us)
{
    s->wait_us = max_u64(DOWNLOAD_WAIT_US, backoff_us(s->wait_us, 1, DOWNLOAD_WAIT_MAX_US));
    assert(s->wait_us >= DOWNLOAD_WAIT_US && s->wait_us <= DOWNLOAD_WAIT_MAX_US);
    s->again_us = now_us + s->wait_us;
}

void download_resume(struct download *s)
{
    s->wait_us = s->again_us = 0;
}
