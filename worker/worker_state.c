#include "worker/worker_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/fileio.h"
#include "common/hash.h"
#include "common/pool.h"

#define MAGIC 0x5453574c4c4f5441u /* "ATOLLWST" */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats of the body are written as they lie in memory");

enum { FORMAT = 1, CRC_AT = 16, FIXED_BYTES = 134, FRAGMENT_BYTES = 48, CRC_GRAIN = 64 << 10 };

static size_t head_bytes(uint32_t n_fragments)
{
    return (FIXED_BYTES + (size_t)n_fragments * FRAGMENT_BYTES + 63) & ~(size_t)63;
}

static uint32_t head_crc(const uint8_t *head, size_t size)
{
    static const uint8_t zeros[4];
    uint32_t crc = crc32c(0, head, CRC_AT);
    crc = crc32c(crc, zeros, sizeof zeros);
    return crc32c(crc, head + CRC_AT + 4, size - CRC_AT - 4);
}

struct crc_job {
    const struct outer_part *part;
    uint32_t crc[POOL_THREADS_MAX];
    size_t size[POOL_THREADS_MAX];
};

static void crc_share(void *ctx, int thread, int threads)
{
    struct crc_job *job = ctx;
    size_t begin, end;
    pool_share(job->part->size, CRC_GRAIN, thread, threads, &begin, &end);
    job->size[thread] = end - begin;
    job->crc[thread] = crc32c(0, (const uint8_t *)job->part->data + begin, end - begin);
}

static uint32_t body_crc_of(const struct outer_part *body, size_t n_body, struct pool *pool)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < n_body; i++) {
        struct crc_job job = {.part = &body[i]};
        if (!pool || body[i].size <= CRC_GRAIN) {
            crc = crc32c(crc, body[i].data, body[i].size);
            continue;
        }
        pool_run(pool, crc_share, &job);
        for (int t = 0; t < pool_threads(pool); t++) crc = crc32c_join(crc, job.crc[t], job.size[t]);
    }
    return crc;
}

size_t saved_state_head(const struct saved_state *s, const struct outer_part *body, size_t n_body, struct pool *pool,
                        uint8_t *dst)
{
    uint32_t body_crc = body_crc_of(body, n_body, pool);
    uint64_t body_size = 0;
    for (size_t i = 0; i < n_body; i++) body_size += body[i].size;
    size_t size = head_bytes(s->n_fragments);
    memset(dst, 0, size);
    struct writer w = writer_of(dst, size);
    put_u64(&w, MAGIC);
    put_u32(&w, FORMAT);
    put_u32(&w, (uint32_t)size);
    put_u32(&w, 0);
    put_u32(&w, body_crc);
    put_u64(&w, body_size);
    put_bytes(&w, s->uuid, WIRE_UUID);
    put_bytes(&w, s->run_id, WIRE_UUID);
    put_u64(&w, s->layout_hash);
    put_u64(&w, s->n_params);
    put_u64(&w, s->inner_size);
    put_u64(&w, s->round);
    put_u64(&w, s->tokens);
    put_f64(&w, s->loss_sum);
    put_u64(&w, s->compute_us);
    put_u32(&w, s->steps);
    put_u32(&w, s->worker_id);
    put_u32(&w, s->n_fragments);
    put_u8(&w, s->form);
    put_u8(&w, s->has_residual);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct saved_fragment *f = &s->f[i];
        put_u64(&w, f->version);
        put_u64(&w, f->hash);
        put_u64(&w, f->base_version);
        put_u64(&w, f->payload_size);
        put_u32(&w, f->payload_crc);
        put_f32(&w, f->norm);
        put_u64(&w, f->count);
    }
    w = writer_of(dst + CRC_AT, 4);
    put_u32(&w, head_crc(dst, size));
    return size;
}

static void read_head(struct saved_state *s, struct reader *r)
{
    const uint8_t *uuid = get_bytes(r, WIRE_UUID), *run_id = get_bytes(r, WIRE_UUID);
    if (uuid) memcpy(s->uuid, uuid, WIRE_UUID);
    if (run_id) memcpy(s->run_id, run_id, WIRE_UUID);
    s->layout_hash = get_u64(r);
    s->n_params = get_u64(r);
    s->inner_size = get_u64(r);
    s->round = get_u64(r);
    s->tokens = get_u64(r);
    s->loss_sum = get_f64(r);
    s->compute_us = get_u64(r);
    s->steps = get_u32(r);
    s->worker_id = get_u32(r);
    s->n_fragments = get_u32(r);
    s->form = get_u8(r);
    s->has_residual = get_u8(r);
    if (s->n_fragments < 1 || s->n_fragments > LAYOUT_FRAGMENTS_MAX) {
        reader_fail(r);
        return;
    }
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        struct saved_fragment *f = &s->f[i];
        f->version = get_u64(r);
        f->hash = get_u64(r);
        f->base_version = get_u64(r);
        f->payload_size = get_u64(r);
        f->payload_crc = get_u32(r);
        f->norm = get_f32(r);
        f->count = get_u64(r);
    }
}

/* Head, its CRC and the length of the whole; *body_crc for who wants to check the rest. */
static enum status decode_head(struct saved_state *s, const uint8_t *data, size_t size, size_t *head_size,
                               uint32_t *body_crc, struct err *err)
{
    struct reader r = reader_of(data, size);
    memset(s, 0, sizeof *s);
    if (get_u64(&r) != MAGIC) return err_set(err, STATUS_CORRUPT, "not a worker state file");
    uint32_t format = get_u32(&r);
    if (format != FORMAT)
        return err_set(err, STATUS_UNSUPPORTED, "format version %u, this program reads %d", format, FORMAT);
    *head_size = get_u32(&r);
    uint32_t crc = get_u32(&r);
    *body_crc = get_u32(&r);
    uint64_t body_size = get_u64(&r);
    if (r.bad || *head_size > size || *head_size < FIXED_BYTES || body_size != size - *head_size)
        return err_set(err, STATUS_CORRUPT, "cut short");
    if (crc != head_crc(data, *head_size)) return err_set(err, STATUS_CORRUPT, "its head does not match its checksum");
    read_head(s, &r);
    if (r.bad || *head_size != head_bytes(s->n_fragments)) return err_set(err, STATUS_CORRUPT, "its head is malformed");
    return STATUS_OK;
}

enum status saved_state_peek(struct saved_state *s, const uint8_t *data, size_t size, struct err *err)
{
    size_t head_size;
    uint32_t body_crc;
    return decode_head(s, data, size, &head_size, &body_crc, err);
}

enum status saved_state_decode(struct saved_state *s, const uint8_t *data, size_t size, struct err *err)
{
    size_t head_size;
    uint32_t body_crc;
    TRY(decode_head(s, data, size, &head_size, &body_crc, err));
    struct reader r = reader_of(data + head_size, size - head_size);
    uint64_t count = 0;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].count > s->n_params - count) return err_set(err, STATUS_CORRUPT, "fragments do not add up");
        count += s->f[i].count;
    }
    if (count != s->n_params || s->n_params > SIZE_MAX / 8)
        return err_set(err, STATUS_CORRUPT, "fragments do not add up");
    s->theta = (const float *)(const void *)get_bytes(&r, s->n_params * 4);
    if (s->has_residual) s->residual = (const float *)(const void *)get_bytes(&r, s->n_params * 4);
    s->inner = get_bytes(&r, s->inner_size);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].payload_size == 0) continue;
        s->payload[i] = get_bytes(&r, s->f[i].payload_size);
    }
    if (!reader_done(&r)) return err_set(err, STATUS_CORRUPT, "its parts do not add up");
    if (body_crc != crc32c(0, data + head_size, size - head_size))
        return err_set(err, STATUS_CORRUPT, "its content does not match its checksum");
    return STATUS_OK;
}

/* ---- on disk ------------------------------------------------------------------------------------------------------
 */

void state_dir_init(struct state_dir *d, const char *folder)
{
    snprintf(d->folder, sizeof d->folder, "%s", folder);
    snprintf(d->current, sizeof d->current, "%s/state.bin", d->folder);
    snprintf(d->previous, sizeof d->previous, "%s/state.old.bin", d->folder);
    snprintf(d->spare, sizeof d->spare, "%s/state.spare.bin", d->folder);
    snprintf(d->passing, sizeof d->passing, "%s/state.passing.bin", d->folder);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The newest file gets the name of the one before, and that becomes the spare one, by way of a name of passage: at
 * every instant there is a whole one, and a save killed anywhere leaves no two names for a file that is written over.
 * Where the file system has no links the older one is kept by renaming, and for a moment it is the only one. */
static enum status shift(const struct state_dir *d, struct err *err)
{
    if (!file_exists(d->current) || same_file(d->current, d->previous)) return STATUS_OK;
    if ((rename(d->previous, d->passing) && errno != ENOENT) ||
        (link(d->current, d->previous) && rename(d->current, d->previous)))
        return err_set(err, STATUS_IO, "cannot keep %s as %s: %s", d->current, d->previous, strerror(errno));
    return STATUS_OK;
}

static enum status state_dir_save(void *ctx, const struct outer_part *parts, size_t n, struct err *err)
{
    struct state_dir *d = ctx;
    struct file_out out;
    enum status status;
    if (!file_exists(d->spare)) rename(d->passing, d->spare); /* of a save that was killed; there need not be one */
    TRY(file_out_open_spare(&out, d->current, d->spare, err));
    for (size_t i = 0; i < n; i++) TRY_GOTO(file_out_put(&out, parts[i].data, parts[i].size, err), err_abort);
    TRY_GOTO(file_out_sync(&out, err), err_abort);
    TRY_GOTO(shift(d, err), err_abort);
    TRY_GOTO(file_out_commit(&out, err), err_abort);
    rename(d->passing, d->spare);
    return STATUS_OK;
err_abort:
    file_out_abort(&out);
    return status;
}

static enum status state_dir_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    struct state_dir *d = ctx;
    struct file_map map;
    const char *path = age == 0 ? d->current : d->previous;
    if (!file_exists(path)) return STATUS_NOTFOUND;
    TRY(file_map_open(&map, path, err));
    *data_p = map.data;
    *size_p = map.size;
    return STATUS_OK;
}

static void state_dir_release(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    struct file_map map = {.data = data, .size = size};
    file_map_close(&map);
}

void state_dir_attach(struct state_dir *d, struct outer_setup *setup)
{
    setup->storage_ctx = d;
    setup->save = state_dir_save;
    setup->load = state_dir_load;
    setup->release = state_dir_release;
}
