/* Followers: programs that read the newest model without a place in the run (`atoll follow`). They get a description of
 * the model, snapshots and updates, by request and reply, without a session.
 *
 * - Workers come first. While anything of a worker is on its way, all followers together get a tenth of the bytes that
 *   workers move; the others are told to ask again. Otherwise they get what they ask for, all together at most
 *   RATE_BYTES a second: reading and encrypting takes the time of the main loop.
 * - A checkpoint that a follower reads stays, as for a late worker and within the same limits. So a slow follower
 *   finishes. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/base/text.h"
#include "common/tensor/frozen.h"
#include "common/tensor/hf_files.h"
#include "coordinator/engine/engine_impl.h"
#include "wire/model_object.h"

enum {
    SHARE = 10,              /* followers get one byte for so many of workers */
    CREDIT_MAX = 4 << 20,    /* more is not saved for later */
    RATE_BYTES = 128 << 20,  /* a second */
    RATE_SAVED = 16 << 20,   /* so many bytes of an idle time may come at once */
    LEAST = 16 << 10,        /* a smaller part takes as much time */
    LOOK_US = 100000,        /* between two looks at all sessions */
    WAIT_MS = 100,           /* a follower asks again after this */
    HERE_US = 3000000,       /* a follower that was heard so recently still reads */
    LAST_MAX_US = 300000000, /* longest wait for one after the end of the run */
};

_Static_assert((int)WIRE_FETCH_MAX <= (int)DOWNLOAD_CHUNK, "engine_object_read has room for this");

void engine_follow_finish(struct engine *e)
{
    mem_free(e->follow.object);
}

bool engine_follow_waits(const struct engine *e)
{
    const struct engine_follow *f = &e->follow;
    return f->heard_us && e->now_us - f->heard_us < HERE_US && e->now_us - e->done_us < LAST_MAX_US;
}

/* --- description of the model ------------------------------------------------------------------------------------- */

static void add_file(const struct engine *e, struct model_object *m, const char *name)
{
    uint64_t size;
    const struct store_ops *ops = e->store->ops;
    if (m->n_files == MODEL_FILES_MAX || !ops->file_size || ops->file_size(e->store, name, &size) != STATUS_OK) return;
    snprintf(m->files[m->n_files].name, WIRE_NAME_MAX, "%s", name);
    m->files[m->n_files++].size = size;
}

/* The files that each checkpoint gets, too. */
static void list_files(const struct engine *e, struct model_object *m)
{
    for (int i = 0; hf_files_name(i); i++) add_file(e, m, hf_files_name(i));
    add_file(e, m, FROZEN_FILE);
}

static enum status describe(struct engine *e)
{
    static struct model_object m; /* large */
    const struct layout *layout = &e->ledger.layout;
    struct engine_follow *f = &e->follow;
    if (f->object) return STATUS_OK;
    m = (struct model_object){
        .layout_size = layout_encoded_size(layout), .config_json = e->ledger.model_config, .settings = e->config_text};
    uint8_t *bytes = mem_alloc(1, m.layout_size);
    if (!bytes) return STATUS_NOMEM;
    struct writer w = writer_of(bytes, m.layout_size);
    layout_encode(layout, &w);
    m.layout = bytes;
    list_files(e, &m);
    f->size = model_object_size(&m);
    f->object = mem_alloc(1, f->size);
    enum status status = f->object ? model_object_encode(&m, f->object) : STATUS_NOMEM;
    if (status != STATUS_OK) {
        mem_free(f->object);
        f->object = NULL;
    }
    mem_free(bytes);
    return status;
}

void engine_on_model(struct engine *e, uint64_t peer)
{
    static struct msg m; /* large */
    struct msg_model_reply *r = &m.model_reply;
    const struct ledger *l = &e->ledger;
    if (!e->follow.heard_us) log_info("a program follows the run");
    e->follow.heard_us = e->now_us;
    m = (struct msg){.type = MSG_MODEL_REPLY};
    memcpy(r->run_id, l->run_id, WIRE_UUID);
    snprintf(r->run, sizeof r->run, "%.*s", WIRE_NAME_MAX - 1, e->config.run.name);
    text_make_clean(r->run);
    snprintf(r->waiting_for, sizeof r->waiting_for, "%s", engine_waiting_kept(e));
    if (engine_serves(e) && describe(e) == STATUS_OK) {
        const struct checkpoint_info *newest = engine_newest(e);
        r->round = engine_snapshot_round(e, r->current);
        r->rounds = round_total(&l->round);
        r->done = l->done && r->round >= round_done(&l->round);
        r->snapshot_round = newest->round;
        r->bytes = e->follow.size;
        r->n_fragments = l->layout.n_fragments;
        for (uint32_t f = 0; f < r->n_fragments; f++)
            r->snapshot[f] = (struct wire_version){newest->versions[f], newest->hashes[f]};
    }
    if (engine_send(e, peer, WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send MODEL_REPLY");
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* Bytes of a worker are on their way, as far as the coordinator knows. */
static bool sees_transfer(const struct engine *e)
{
    if (e->sessions.uploads.granted || session_next_to_serve(&e->sessions, NULL)) return true;
    for_each_session(e, s) {
        bool moves = s->last.state == WORKER_SENDING || s->last.expected > s->last.received;
        if (moves && !admission_is_silent(e, s)) return true;
    }
    return false;
}

/* At most RATE_BYTES a second. */
static bool take_time(struct engine *e, uint64_t size)
{
    struct engine_follow *f = &e->follow;
    uint64_t gap_us = min_u64(e->now_us - f->rate_us, 1000000), cost = size > LEAST ? size : LEAST;
    f->rate = f->rate_us ? min_u64(f->rate + gap_us * RATE_BYTES / 1000000, RATE_SAVED) : RATE_SAVED;
    f->rate_us = e->now_us;
    if (f->rate < cost) return false;
    f->rate -= cost;
    return true;
}

/* True: this follower may get `size` bytes now. */
static bool take_credit(struct engine *e, uint64_t size)
{
    struct engine_follow *f = &e->follow;
    struct engine_bytes bytes = {0};
    if (e->io.bytes) e->io.bytes(e->io.ctx, &bytes);
    uint64_t moved = bytes.up + bytes.down;
    f->credit = min_u64(f->credit + (moved - min_u64(f->moved, moved)) / SHARE, CREDIT_MAX);
    f->moved = moved;
    if (!f->busy_us || e->now_us - f->busy_us >= LOOK_US) {
        f->busy = sees_transfer(e);
        f->busy_us = e->now_us;
    }
    if (!f->busy) return true;
    if (f->credit < size) return false;
    f->credit -= size;
    return true;
}

/* Keeps the newest checkpoint that gives this object, or the updates behind it, for a while. */
static void need(struct engine *e, const struct msg_fetch *m)
{
    struct engine_follow *f = &e->follow;
    size_t i = e->n_kept;
    while (i > 1 && e->kept[i - 1].versions[m->index] >= m->version + (m->kind == FETCH_SNAPSHOT)) i--;
    uint64_t round = e->kept[i - 1].round;
    if (engine_snapshot_is_followed(e, &e->kept[0]) && f->needed < round) return; /* for another follower */
    f->needed = round;
    f->needed_us = e->now_us;
}

static uint64_t size_of(struct engine *e, const struct msg_fetch *m, const char **name_p)
{
    static struct model_object described; /* large */
    if (m->kind == FETCH_MODEL) return describe(e) == STATUS_OK ? e->follow.size : 0;
    if (m->kind == FETCH_FILE) {
        described.n_files = 0;
        list_files(e, &described);
        if (m->index >= described.n_files) return 0;
        *name_p = described.files[m->index].name;
        return described.files[m->index].size;
    }
    if (m->index >= e->ledger.layout.n_fragments) return 0;
    return engine_object_size(e, m->kind == FETCH_UPDATE ? OBJECT_UPDATE : OBJECT_SNAPSHOT, m->index, m->version);
}

static enum status read_part(struct engine *e, const struct msg_fetch *m, const char *name, uint64_t total,
                             uint8_t *dst, size_t size, struct err *err)
{
    if (m->kind == FETCH_MODEL) {
        memcpy(dst, e->follow.object + m->offset, size);
        return STATUS_OK;
    }
    if (m->kind == FETCH_FILE) return e->store->ops->file_read(e->store, name, m->offset, dst, size, err);
    const struct msg_chunk chunk = {.kind = m->kind == FETCH_UPDATE ? OBJECT_UPDATE : OBJECT_SNAPSHOT,
                                    .fragment = m->index,
                                    .key = m->version,
                                    .offset = m->offset,
                                    .total = total,
                                    .size = size};
    need(e, m);
    return engine_object_read(e, &chunk, dst, err);
}

void engine_on_fetch(struct engine *e, uint64_t peer, const struct msg_fetch *m)
{
    static uint8_t data[WIRE_FETCH_MAX];
    const char *name = NULL;
    struct err err = {0};
    struct msg reply = {.type = MSG_FETCH_REPLY, .fetch_reply = {.id = m->id, .data = data}};
    struct msg_fetch_reply *r = &reply.fetch_reply;
    e->follow.heard_us = e->now_us;
    r->total = engine_serves(e) ? size_of(e, m, &name) : 0;
    uint64_t size = m->offset < r->total ? min_u64(r->total - m->offset, m->want) : 0;
    if (size && (!take_credit(e, size) || !take_time(e, size)))
        r->wait_ms = WAIT_MS;
    else if (size && read_part(e, m, name, r->total, data, size, &err) == STATUS_OK)
        r->size = size;
    else if (size) { /* the disk cannot read it: the follower takes another snapshot */
        log_warn("%s", err.msg);
        r->total = 0;
    }
    /* A full queue drops the reply: the follower has more under way than it needs. */
    if (engine_send(e, peer, WIRE_BULK, &reply) != STATUS_OK) log_debug("cannot send FETCH_REPLY");
}
