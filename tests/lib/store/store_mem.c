#include "tests/lib/store/store_mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/ledger/init_folder.h"

enum { SEGMENTS = 4096, SNAPSHOTS = 1024, BLOCK = 512 };

struct blob {
    uint8_t *data;
    size_t size, cap;
    size_t bad_from, bad_to; /* bytes that reads fail on */
};

struct mem_segment {
    bool used;
    uint64_t number;
    struct blob bytes;
    size_t synced;
};

struct mem_snapshot {
    bool used;
    uint64_t round;
    struct blob state, theta;
};

struct store_mem {
    struct store base;
    struct mem_segment segments[SEGMENTS];
    struct mem_snapshot snapshots[SNAPSHOTS];
    struct mem_segment *current;
    struct blob spool;
    uint64_t room, free;
    struct store_mem_counts counts;
    char run[FILEIO_PATH_MAX]; /* "": no initial model */
    struct init_folder init;
    struct store_mem_watch watch;
};

static struct store_mem *of(const struct store *s)
{
    return (struct store_mem *)(uintptr_t)s;
}

static enum status blob_add(struct blob *b, const void *data, size_t size)
{
    if (b->size + size > b->cap) {
        size_t cap = 2 * (b->size + size) + 256;
        uint8_t *grown = mem_resize(b->data, b->size, cap);
        if (!grown) return STATUS_NOMEM;
        b->data = grown;
        b->cap = cap;
    }
    if (size) memcpy(b->data + b->size, data, size);
    b->size += size;
    return STATUS_OK;
}

static void blob_free(struct blob *b)
{
    mem_free(b->data);
    *b = (struct blob){0};
}

/* The first line of every operation that writes. */
static enum status writes(struct store_mem *m, struct err *err)
{
    bool alive = !m->watch.alive || m->watch.alive(m->watch.ctx);
    return alive ? STATUS_OK : err_set(err, STATUS_IO, "the process was killed");
}

static struct mem_segment *find_segment(struct store_mem *m, uint64_t number)
{
    for (int i = 0; i < SEGMENTS; i++)
        if (m->segments[i].used && m->segments[i].number == number) return &m->segments[i];
    return NULL;
}

static enum status segment_begin(struct store *s, uint64_t number, struct err *err)
{
    struct store_mem *m = of(s);
    TRY(writes(m, err));
    if (find_segment(m, number)) return err_set(err, STATUS_EXISTS, "segment %llu exists", (unsigned long long)number);
    for (int i = 0; i < SEGMENTS; i++)
        if (!m->segments[i].used) {
            m->current = &m->segments[i];
            *m->current = (struct mem_segment){.used = true, .number = number};
            return STATUS_OK;
        }
    return err_set(err, STATUS_LIMIT, "too many segments");
}

static enum status segment_continue(struct store *s, uint64_t number, uint64_t size, struct err *err)
{
    struct store_mem *m = of(s);
    TRY(writes(m, err));
    m->current = find_segment(m, number);
    if (!m->current || size > m->current->bytes.size) return err_set(err, STATUS_NOTFOUND, "no such segment");
    m->current->bytes.size = size;
    m->current->synced = size;
    return STATUS_OK;
}

static enum status append(struct store *s, const struct store_part *parts, size_t n, struct err *err)
{
    struct store_mem *m = of(s);
    size_t size = 0;
    TRY(writes(m, err));
    for (size_t i = 0; i < n; i++) size += parts[i].size;
    if (size > m->room) return err_set(err, STATUS_IO, "cannot append to the journal: No space left on device");
    for (size_t i = 0; i < n; i++) TRY(blob_add(&m->current->bytes, parts[i].data, parts[i].size));
    if (m->room != UINT64_MAX) m->room -= size;
    m->counts.appended += size;
    if (m->watch.appended) m->watch.appended(m->watch.ctx, parts, n);
    return STATUS_OK;
}

static enum status sync(struct store *s, struct err *err)
{
    struct store_mem *m = of(s);
    TRY(writes(m, err));
    m->current->synced = m->current->bytes.size;
    m->counts.syncs++;
    if (m->watch.synced) m->watch.synced(m->watch.ctx);
    return STATUS_OK;
}

static enum status blob_read(const struct blob *b, uint64_t offset, void *dst, size_t size, struct err *err)
{
    if (offset > b->size || size > b->size - offset) return err_set(err, STATUS_CORRUPT, "read past the end");
    if (offset < b->bad_to && offset + size > b->bad_from)
        return err_set(err, STATUS_CORRUPT, "cannot read: Input/output error");
    if (size) memcpy(dst, b->data + offset, size);
    return STATUS_OK;
}

static enum status segment_read(struct store *s, uint64_t number, uint64_t offset, void *dst, size_t size,
                                struct err *err)
{
    struct mem_segment *seg = find_segment(of(s), number);
    return seg ? blob_read(&seg->bytes, offset, dst, size, err) : err_set(err, STATUS_NOTFOUND, "no such segment");
}

static enum status segment_size(struct store *s, uint64_t number, uint64_t *size_p, struct err *err)
{
    struct mem_segment *seg = find_segment(of(s), number);
    if (!seg) return err_set(err, STATUS_NOTFOUND, "no such segment");
    *size_p = seg->bytes.size;
    return STATUS_OK;
}

static uint64_t free_bytes(struct store *s)
{
    return of(s)->free;
}

static uint64_t total_bytes(struct store *s)
{
    (void)s;
    return UINT64_C(1) << 40;
}

void store_mem_set_free(struct store *s, uint64_t bytes)
{
    of(s)->free = bytes;
}

static void insert_sorted(uint64_t *out, size_t n, uint64_t value)
{
    while (n > 0 && out[n - 1] > value) {
        out[n] = out[n - 1];
        n--;
    }
    out[n] = value;
}

static enum status segment_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    struct store_mem *m = of(s);
    size_t n = 0;
    for (int i = 0; i < SEGMENTS; i++)
        if (m->segments[i].used) {
            if (n == cap) return err_set(err, STATUS_LIMIT, "too many segments");
            insert_sorted(out, n++, m->segments[i].number);
        }
    *n_p = n;
    return STATUS_OK;
}

static void drop_segment(struct store_mem *m, uint64_t number)
{
    struct mem_segment *seg = find_segment(m, number);
    if (!seg) return;
    blob_free(&seg->bytes);
    seg->used = false;
}

static enum status segment_remove(struct store *s, uint64_t number, struct err *err)
{
    TRY(writes(of(s), err));
    drop_segment(of(s), number);
    return STATUS_OK;
}

static struct mem_snapshot *find_snapshot(struct store_mem *m, uint64_t round)
{
    for (int i = 0; i < SNAPSHOTS; i++)
        if (m->snapshots[i].used && m->snapshots[i].round == round) return &m->snapshots[i];
    return NULL;
}

static void drop_snapshot(struct store_mem *m, uint64_t round)
{
    struct mem_snapshot *snap = find_snapshot(m, round);
    if (!snap) return;
    blob_free(&snap->state);
    blob_free(&snap->theta);
    snap->used = false;
}

static enum status checkpoint_remove(struct store *s, uint64_t round, struct err *err)
{
    TRY(writes(of(s), err));
    drop_snapshot(of(s), round);
    return STATUS_OK;
}

static enum status checkpoint_put_aside(struct store *s, uint64_t round, char *name, size_t cap, struct err *err)
{
    snprintf(name, cap, "round_%06llu.damaged", (unsigned long long)round);
    return checkpoint_remove(s, round, err);
}

static enum status segment_put_aside(struct store *s, uint64_t number, uint64_t keep, char *name, size_t cap,
                                     struct err *err)
{
    TRY(writes(of(s), err));
    snprintf(name, cap, "journal.damaged/%08llu.log", (unsigned long long)number);
    if (keep == STORE_KEEP_NONE)
        drop_segment(of(s), number);
    else
        store_mem_cut(s, number, keep);
    return STATUS_OK;
}

static enum status checkpoint_write(struct store *s, const struct store_checkpoint *in, struct err *err)
{
    struct store_mem *m = of(s);
    TRY(writes(m, err));
    drop_snapshot(m, in->round);
    for (int i = 0; i < SNAPSHOTS; i++)
        if (!m->snapshots[i].used) {
            struct mem_snapshot *snap = &m->snapshots[i];
            *snap = (struct mem_snapshot){.used = true, .round = in->round};
            TRY(blob_add(&snap->theta, in->theta, in->layout->n_params * sizeof *in->theta));
            for (size_t k = 0; k < in->n_state; k++) TRY(blob_add(&snap->state, in->state[k].data, in->state[k].size));
            m->counts.snapshots++;
            return STATUS_OK;
        }
    return err_set(err, STATUS_LIMIT, "too many snapshots");
}

static enum status checkpoint_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    struct store_mem *m = of(s);
    size_t n = 0;
    for (int i = 0; i < SNAPSHOTS; i++)
        if (m->snapshots[i].used) {
            if (n == cap) return err_set(err, STATUS_LIMIT, "too many snapshots");
            insert_sorted(out, n++, m->snapshots[i].round);
        }
    *n_p = n;
    return STATUS_OK;
}

static enum status checkpoint_state_size(struct store *s, uint64_t round, uint64_t *size_p, struct err *err)
{
    struct mem_snapshot *snap = find_snapshot(of(s), round);
    if (!snap) return err_set(err, STATUS_NOTFOUND, "no such snapshot");
    *size_p = snap->state.size;
    return STATUS_OK;
}

static enum status checkpoint_state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                         struct err *err)
{
    struct mem_snapshot *snap = find_snapshot(of(s), round);
    return snap ? blob_read(&snap->state, offset, dst, size, err) : err_set(err, STATUS_NOTFOUND, "no such snapshot");
}

static enum status checkpoint_theta_read(struct store *s, uint64_t round, const struct layout *layout, uint64_t first,
                                         float *dst, uint64_t count, struct err *err)
{
    (void)layout;
    struct mem_snapshot *snap = find_snapshot(of(s), round);
    return snap ? blob_read(&snap->theta, first * sizeof *dst, dst, count * sizeof *dst, err)
                : err_set(err, STATUS_NOTFOUND, "no such snapshot");
}

static enum status spool_write(struct store *s, uint64_t offset, const void *data, size_t size, struct err *err)
{
    static const uint8_t zeros[4096];
    struct blob *spool = &of(s)->spool;
    (void)err;
    while (spool->size < offset + size) {
        uint64_t left = offset + size - spool->size;
        TRY(blob_add(spool, zeros, left < sizeof zeros ? (size_t)left : sizeof zeros));
    }
    if (size) memcpy(spool->data + offset, data, size);
    of(s)->counts.spooled += size;
    return STATUS_OK;
}

static enum status spool_read(struct store *s, uint64_t offset, void *dst, size_t size, struct err *err)
{
    return blob_read(&of(s)->spool, offset, dst, size, err);
}

/* Overwrites the range, so that a later read returns wrong bytes. */
static void spool_forget(struct store *s, uint64_t offset, uint64_t size)
{
    struct blob *spool = &of(s)->spool;
    for (uint64_t i = offset; i < offset + size && i < spool->size; i++) spool->data[i] = 0xdd;
}

static struct init_folder *init_folder(struct store *s)
{
    return of(s)->run[0] ? &of(s)->init : NULL;
}

static enum status open_init(struct store_mem *m)
{
    if (m->run[0]) init_folder_close(&m->init);
    return m->run[0] ? init_folder_open(&m->init, m->run, NULL) : STATUS_OK;
}

void store_mem_keep_init(struct store *s, const char *run)
{
    snprintf(of(s)->run, sizeof of(s)->run, "%s", run);
    of(s)->init = (struct init_folder){.fd = -1};
    if (open_init(of(s)) != STATUS_OK) abort();
}

static void close_store(struct store *s)
{
    of(s)->current = NULL;
    blob_free(&of(s)->spool);
}

static const struct store_ops mem_ops = {
    .segment_begin = segment_begin,
    .segment_continue = segment_continue,
    .append = append,
    .sync = sync,
    .segment_read = segment_read,
    .segment_size = segment_size,
    .free_bytes = free_bytes,
    .total_bytes = total_bytes,
    .segment_list = segment_list,
    .segment_remove = segment_remove,
    .segment_put_aside = segment_put_aside,
    .checkpoint_write = checkpoint_write,
    .checkpoint_list = checkpoint_list,
    .checkpoint_state_size = checkpoint_state_size,
    .checkpoint_state_read = checkpoint_state_read,
    .checkpoint_theta_read = checkpoint_theta_read,
    .checkpoint_put_aside = checkpoint_put_aside,
    .checkpoint_remove = checkpoint_remove,
    .init_folder = init_folder,
    .spool_write = spool_write,
    .spool_read = spool_read,
    .spool_forget = spool_forget,
    .close = close_store,
};

enum status store_mem_create(struct store **s_p)
{
    struct store_mem *m = mem_alloc(1, sizeof *m);
    if (!m) return STATUS_NOMEM;
    m->base.ops = &mem_ops;
    m->room = UINT64_MAX;
    m->free = UINT64_C(1) << 40;
    *s_p = &m->base;
    return STATUS_OK;
}

void store_mem_destroy(struct store *s)
{
    if (!s) return;
    struct store_mem *m = of(s);
    for (int i = 0; i < SEGMENTS; i++) blob_free(&m->segments[i].bytes);
    for (int i = 0; i < SNAPSHOTS; i++) {
        blob_free(&m->snapshots[i].state);
        blob_free(&m->snapshots[i].theta);
    }
    blob_free(&m->spool);
    if (m->run[0]) init_folder_close(&m->init);
    mem_free(m);
}

/* Cuts the unsynced tail somewhere, then zeroes some of the remaining blocks: pages reach a disk in any order. */
static void lose_tail(struct mem_segment *seg, uint64_t draw)
{
    size_t tail = seg->bytes.size - seg->synced;
    if (!tail) return;
    uint64_t seed = draw ^ seg->number;
    uint64_t cut = rng_u64(seed, RNG_TEST, 0);
    size_t kept = cut % 2 ? tail : (cut >> 1) % (tail + 1);
    seg->bytes.size = seg->synced + kept;
    for (size_t at = seg->synced, i = 1; at < seg->bytes.size; i++) {
        size_t end = (at / BLOCK + 1) * BLOCK;
        if (end > seg->bytes.size) end = seg->bytes.size;
        if (rng_u64(seed, RNG_TEST, i) % 4 == 0) memset(seg->bytes.data + at, 0, end - at);
        at = end;
    }
}

void store_mem_crash(struct store *s, bool power, uint64_t draw)
{
    struct store_mem *m = of(s);
    m->current = NULL;
    blob_free(&m->spool);
    if (open_init(m) != STATUS_OK) abort();
    for (int i = 0; power && i < SEGMENTS; i++)
        if (m->segments[i].used) lose_tail(&m->segments[i], draw);
}

void store_mem_watch(struct store *s, const struct store_mem_watch *watch)
{
    of(s)->watch = *watch;
}

void store_mem_set_room(struct store *s, uint64_t bytes)
{
    of(s)->room = bytes;
}

struct store_mem_counts store_mem_counts(const struct store *s)
{
    return of(s)->counts;
}

uint8_t *store_mem_segment(struct store *s, uint64_t segment, size_t *size_p, size_t *synced_p)
{
    struct mem_segment *seg = find_segment(of(s), segment);
    if (!seg) return NULL;
    *size_p = seg->bytes.size;
    if (synced_p) *synced_p = seg->synced;
    return seg->bytes.data;
}

uint8_t *store_mem_state(struct store *s, uint64_t *round_p)
{
    struct store_mem *m = of(s);
    struct mem_snapshot *newest = NULL;
    for (int i = 0; i < SNAPSHOTS; i++)
        if (m->snapshots[i].used && (!newest || m->snapshots[i].round > newest->round)) newest = &m->snapshots[i];
    if (!newest) return NULL;
    *round_p = newest->round;
    return newest->state.data;
}

void store_mem_cut(struct store *s, uint64_t segment, size_t size)
{
    struct mem_segment *seg = find_segment(of(s), segment);
    if (!seg || size > seg->bytes.size) return;
    seg->bytes.size = size;
    if (seg->synced > size) seg->synced = size;
    if (seg->bytes.bad_to > size) seg->bytes.bad_from = seg->bytes.bad_to = 0;
}

static void spoil(struct blob *b, size_t from, size_t to)
{
    b->bad_from = from < b->size ? from : b->size;
    b->bad_to = to < b->size ? to : b->size;
}

void store_mem_spoil(struct store *s, uint64_t segment, size_t from, size_t to)
{
    spoil(&find_segment(of(s), segment)->bytes, from, to);
}

void store_mem_spoil_state(struct store *s, uint64_t round, size_t from, size_t to)
{
    spoil(&find_snapshot(of(s), round)->state, from, to);
}

void store_mem_spoil_theta(struct store *s, uint64_t round, size_t from, size_t to)
{
    spoil(&find_snapshot(of(s), round)->theta, from, to);
}

static enum status blob_copy(struct blob *to, const struct blob *from)
{
    *to = (struct blob){0};
    return from->size ? blob_add(to, from->data, from->size) : STATUS_OK;
}

enum status store_mem_copy(struct store **copy_p, const struct store *s)
{
    struct store *copy;
    TRY(store_mem_create(&copy));
    struct store_mem *to = of(copy), *from = of(s);
    for (int i = 0; i < SEGMENTS; i++) {
        to->segments[i] = from->segments[i];
        TRY(blob_copy(&to->segments[i].bytes, &from->segments[i].bytes));
    }
    for (int i = 0; i < SNAPSHOTS; i++) {
        to->snapshots[i] = from->snapshots[i];
        TRY(blob_copy(&to->snapshots[i].state, &from->snapshots[i].state));
        TRY(blob_copy(&to->snapshots[i].theta, &from->snapshots[i].theta));
    }
    *copy_p = copy;
    return STATUS_OK;
}
