#include <assert.h>
#include <string.h>

#include "compress/relay.h"
#include "coordinator/engine/engine_impl.h"

/* --- outgoing objects --------------------------------------------------------------------------------------------- */

uint64_t engine_object_size(const struct engine *e, uint8_t kind, uint32_t fragment, uint64_t version)
{
    const struct ledger *l = &e->ledger;
    if (kind == OBJECT_UPDATE) {
        const struct update_entry *entry = update_log_find(&l->log, fragment, version);
        return entry ? entry->size : 0;
    }
    if (!engine_snapshot_find(e, fragment, version)) return 0;
    return SNAPSHOT_HEAD_BYTES + l->layout.fragments[fragment].count * sizeof(float);
}

/* Skips the bytes of the worker's own delta in an update: the worker still has them. */
static void leave_out_own(struct session *s, uint32_t fragment, uint64_t version)
{
    const struct session_own *own = &s->own[fragment];
    if (own->version == version) download_leave_out(&s->download, fragment, version, own->from, own->to);
}

/* Notes for each session where its delta lies in the update that relays it. The ledger still has the sizes. */
static void note_own(struct engine *e, const struct round_close *close)
{
    const struct ledger *l = &e->ledger;
    uint64_t at = l->down_relay + relay_head_size(close->n);
    for (uint32_t i = 0; i < close->n; i++) {
        uint64_t end = at + l->outer.deltas[i].size;
        struct session *s = session_by_member(&e->sessions, close->ids[i]);
        struct session_own *own = s ? &s->own[close->fragment] : NULL;
        if (own && own->round == l->named[i].round + 1) {
            own->version = l->round.versions[close->fragment];
            own->from = at;
            own->to = end;
        }
        at = end;
    }
    assert(at + sizeof(uint32_t) == l->down_bytes); /* the checksum follows the last delta */
}

void engine_on_get(struct engine *e, struct session *s, const struct msg_get *m)
{
    bool update = m->kind == OBJECT_UPDATE;
    if (m->fragment >= e->ledger.layout.n_fragments || (!update && m->kind != OBJECT_SNAPSHOT)) {
        engine_refuse(e, s->control, s->name, REFUSE_MALFORMED, "a request for an unknown kind of object or fragment");
        return;
    }
    uint64_t size = engine_object_size(e, m->kind, m->fragment, m->version);
    bool later = update && m->version > e->ledger.round.versions[m->fragment];
    if (!size && !later) {
        engine_refuse(e, s->control, s->name, REFUSE_GONE, "%s %llu of fragment %u was removed: join again",
                      update ? "update" : "snapshot", (unsigned long long)m->version, m->fragment);
        return;
    }
    if (update && m->version && engine_member(e, s)) /* it asks for the next update when it has the one before */
        round_note_have(&e->ledger.round, s->member, m->fragment, m->version - 1);
    if (update && !later && engine_snapshot_renews(e, s)) return;
    download_add(&s->download, m, size);
    session_serve(&e->sessions, s, true);
    if (update) leave_out_own(s, m->fragment, m->version);
}

void engine_wake_gets(struct engine *e, const struct round_close *close)
{
    uint64_t version = e->ledger.round.versions[close->fragment];
    uint64_t size = engine_object_size(e, OBJECT_UPDATE, close->fragment, version);
    if (e->ledger.down_relay) note_own(e, close);
    for_each_session(e, s) {
        if (download_wake(&s->download, close->fragment, version, size)) session_serve(&e->sessions, s, true);
        if (!s->down_from_us) s->down_from_us = e->now_us;
        leave_out_own(s, close->fragment, version);
    }
}

/* Reads snapshot bytes: a head, then floats. The range may begin and end inside a float. */
static enum status read_snapshot(struct engine *e, const struct msg_chunk *chunk, uint8_t *dst, struct err *err)
{
    const struct fragment *frag = &e->ledger.layout.fragments[chunk->fragment];
    const struct checkpoint_info *info = engine_snapshot_find(e, chunk->fragment, chunk->key);
    uint64_t at = chunk->offset, size = chunk->size;
    assert(info && at + size <= chunk->total);
    if (at < SNAPSHOT_HEAD_BYTES) {
        uint8_t head[SNAPSHOT_HEAD_BYTES];
        struct snapshot_head h = {chunk->fragment, chunk->key, info->hashes[chunk->fragment], frag->count};
        uint64_t n = SNAPSHOT_HEAD_BYTES - at < size ? SNAPSHOT_HEAD_BYTES - at : size;
        snapshot_head_encode(&h, head);
        memcpy(dst, head + at, n);
        dst += n;
        at += n;
        size -= n;
    }
    if (!size) return STATUS_OK;
    assert(at >= SNAPSHOT_HEAD_BYTES);
    at -= SNAPSHOT_HEAD_BYTES;
    uint64_t first = at / sizeof(float), skip = at % sizeof(float),
             end = (at + size + sizeof(float) - 1) / sizeof(float);
    assert(end <= frag->count && (end - first) * sizeof(float) <= DOWNLOAD_CHUNK + 2 * sizeof(float));
    TRY(engine_snapshot_theta(e, info, frag->offset + first, e->floats, end - first, err));
    memcpy(dst, (const uint8_t *)e->floats + skip, size);
    return STATUS_OK;
}

enum status engine_object_read(struct engine *e, const struct msg_chunk *chunk, uint8_t *dst, struct err *err)
{
    enum status status;
    assert(chunk->size > 0 && chunk->size <= DOWNLOAD_CHUNK);
    if (chunk->kind == OBJECT_SNAPSHOT) {
        status = read_snapshot(e, chunk, dst, err);
    } else {
        const struct update_entry *entry = update_log_find(&e->ledger.log, chunk->fragment, chunk->key);
        assert(entry && chunk->offset + chunk->size <= entry->size);
        status = e->store->ops->segment_read(e->store, entry->at.segment, entry->at.offset + chunk->offset, dst,
                                             chunk->size, err);
    }
    if (status != STATUS_CORRUPT) return status;
    if (err) err->code = STATUS_IO; /* not permanent: the next start puts aside what the disk cannot read */
    return STATUS_IO;
}

/* The encoded chunk: kept, or read and encoded now. */
static enum status chunk_of(struct engine *e, const struct download_item *item, uint64_t size,
                            const struct chunk_entry **entry_p, struct err *err)
{
    const struct msg_chunk chunk = {.kind = item->kind,
                                    .fragment = item->fragment,
                                    .key = item->version,
                                    .offset = item->at,
                                    .total = item->total,
                                    .size = size};
    *entry_p = chunk_cache_find(&e->chunks, &chunk);
    if (*entry_p) return STATUS_OK;
    struct chunk_entry *entry = chunk_cache_replace(&e->chunks, &chunk);
    if (!entry) return err_set(err, STATUS_NOMEM, "no memory for a chunk of %llu bytes", (unsigned long long)size);
    TRY(engine_object_read(e, &chunk, chunk_entry_data(entry), err));
    *entry_p = entry;
    enum status status = chunk_entry_seal(entry, &chunk);
    return status == STATUS_OK ? status : err_set(err, status, "internal: a chunk has no valid form");
}

static enum status send_chunk(struct engine *e, const struct session *s, const struct chunk_entry *entry)
{
    struct msg m = {.type = MSG_CHUNK, .chunk = entry->chunk};
    if (!e->io.send_block) return engine_send(e, s->bulk, WIRE_BULK, &m);
    return e->io.send_block(e->io.ctx, s->bulk, WIRE_BULK, MSG_CHUNK, entry->block);
}

/* Sends requested objects until the worker's lane is full. Otherwise there is no more to send until the next GET, BIND
 * or update. */
static enum status send_downloads(struct engine *e, struct session *s, struct err *err)
{
    struct download_item item;
    uint64_t size;
    if (s->download.again_us > e->now_us) return STATUS_OK;
    session_serve(&e->sessions, s, false);
    while (s->bulk != SESSION_NO_PEER && download_next(&s->download, &item, &size)) {
        /* The object may have been removed since the request. */
        if (engine_object_size(e, item.kind, item.fragment, item.version) != item.total) {
            download_sent(&s->download, &item, 0);
            engine_refuse(e, s->control, s->name, REFUSE_GONE, "version %llu of fragment %u was removed: join again",
                          (unsigned long long)item.version, item.fragment);
            continue;
        }
        const struct chunk_entry *entry;
        TRY(chunk_of(e, &item, size, &entry, err));
        enum status status = send_chunk(e, s, entry);
        if (status == STATUS_AGAIN) {
            download_full(&s->download, e->now_us);
            session_serve(&e->sessions, s, true);
            return STATUS_OK;
        }
        if (status != STATUS_OK) {
            session_bind(&e->sessions, s, SESSION_NO_PEER); /* the worker sends BIND and its request again */
            return STATUS_OK;
        }
        download_sent(&s->download, &item, size);
    }
    return STATUS_OK;
}

enum status engine_serve(struct engine *e, struct err *err)
{
    e->retry_us = UINT64_MAX;
    for (struct session *s = NULL; (s = session_next_to_serve(&e->sessions, s));) {
        TRY(send_downloads(e, s, err));
        if (s->download.again_us > e->now_us && s->download.again_us < e->retry_us) e->retry_us = s->download.again_us;
    }
    return STATUS_OK;
}
