#include "worker/outer/rank_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/format/field_rows.h"
#include "common/os/descriptors.h"
#include "worker/outer/worker_state.h"

#define MAGIC 0x4b4e524c4c4f5441u /* "ATOLLRNK" */

enum { FORMAT = 1, STATES = 2, PUT_BYTES = 1 << 20 };

struct head {
    uint64_t magic;
    uint32_t format, rank;
    uint64_t tag, size;
    uint32_t body_crc, crc;
};

static const struct field head_fields[] = {
    U64(head, magic), U32(head, format),   U32(head, rank), U64(head, tag),
    U64(head, size),  U32(head, body_crc), U32(head, crc),  END,
};
const struct field_part rank_file_parts[] = {{"head", head_fields}, {0}};

/* --- names -------------------------------------------------------------------------------------------------------- */

static enum status path_of(char out[FILEIO_PATH_MAX], const char *folder, uint32_t rank, uint64_t tag, struct err *err)
{
    int n = snprintf(out, FILEIO_PATH_MAX, "%s/state.rank-%" PRIu32 ".%016" PRIx64 ".bin", folder, rank, tag);
    if (n < 0 || n >= FILEIO_PATH_MAX) return err_set(err, STATUS_LIMIT, "path too long: %s", folder);
    return STATUS_OK;
}

static enum status spare_path(char out[FILEIO_PATH_MAX], const char *folder, uint32_t rank, struct err *err)
{
    int n = snprintf(out, FILEIO_PATH_MAX, "%s/state.rank-%" PRIu32 ".spare.bin", folder, rank);
    if (n < 0 || n >= FILEIO_PATH_MAX) return err_set(err, STATUS_LIMIT, "path too long: %s", folder);
    return STATUS_OK;
}

/* Whether it is the name of a rank's file; then of which one. *spare_p: the one to overwrite, without a tag. */
static bool parse_name(const char *name, uint32_t *rank_p, uint64_t *tag_p, bool *spare_p)
{
    int at = 0;
    *tag_p = 0;
    *spare_p = true;
    if (sscanf(name, "state.rank-%" SCNu32 ".spare.bin%n", rank_p, &at) == 1 && at && !name[at]) return true;
    *spare_p = false;
    at = 0;
    return sscanf(name, "state.rank-%" SCNu32 ".%16" SCNx64 ".bin%n", rank_p, tag_p, &at) == 2 && at && !name[at];
}

/* --- what the states need ----------------------------------------------------------------------------------------- */

static uint64_t tag_in(const char *path, struct saved_state *s, uint8_t *head)
{
    int fd;
    struct stat st;
    uint64_t tag = 0;
    if (file_open_plain(path, O_RDONLY, 0, &fd, NULL) != STATUS_OK) return 0;
    ssize_t n = pread(fd, head, SAVED_HEAD_MAX, 0);
    if (n > 0 && fstat(fd, &st) == 0 &&
        saved_state_peek_head(s, head, (size_t)n, (uint64_t)st.st_size, NULL) == STATUS_OK && s->n_ranks)
        tag = s->tag;
    close(fd);
    return tag;
}

/* The tags of the two newest states; 0: it has none. */
static enum status tags_needed(const char *folder, uint64_t tags[STATES], struct err *err)
{
    static const char *const names[STATES] = {"state.bin", "state.old.bin"};
    char path[FILEIO_PATH_MAX];
    struct saved_state *s = mem_alloc(1, sizeof *s);
    uint8_t *head = mem_alloc(1, SAVED_HEAD_MAX);
    enum status status = s && head ? STATUS_OK : err_set(err, STATUS_NOMEM, "out of memory");
    for (int i = 0; i < STATES && status == STATUS_OK; i++) {
        int n = snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        tags[i] = n > 0 && n < FILEIO_PATH_MAX ? tag_in(path, s, head) : 0;
    }
    mem_free(head);
    mem_free(s);
    return status;
}

static bool is_needed(const uint64_t tags[STATES], uint64_t tag)
{
    for (int i = 0; i < STATES; i++)
        if (tags[i] == tag) return true;
    return false;
}

/* Renames a file of this rank that no state needs to the spare name, if there is no spare file; removes others. */
static enum status free_one(const char *folder, uint32_t rank, const char *spare, struct err *err)
{
    uint64_t tags[STATES], tag;
    char path[FILEIO_PATH_MAX];
    uint32_t of;
    bool is_spare;
    TRY(tags_needed(folder, tags, err));
    DIR *dir = descriptors_opendir(folder);
    if (!dir) return err_set(err, STATUS_IO, "cannot read the folder %s: %s", folder, strerror(errno));
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!parse_name(e->d_name, &of, &tag, &is_spare) || of != rank || is_spare || is_needed(tags, tag)) continue;
        if (path_of(path, folder, rank, tag, NULL) != STATUS_OK) continue;
        if (file_exists(spare))
            unlink(path);
        else
            rename(path, spare);
    }
    closedir(dir);
    return STATUS_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void encode_head(const struct rank_file *f, uint8_t out[RANK_FILE_HEAD])
{
    struct head head = {MAGIC, FORMAT, f->rank, f->tag, f->size, f->crc, 0};
    for (int pass = 0; pass < 2; pass++) { /* the checksum of the head with a zero in its place */
        struct writer w = writer_of(out, RANK_FILE_HEAD);
        memset(out, 0, RANK_FILE_HEAD);
        fields_put(head_fields, &head, &w);
        assert(!w.bad);
        if (!pass) head.crc = crc32c(0, out, RANK_FILE_HEAD);
    }
}

enum status rank_file_begin(struct rank_file *f, const char *folder, uint32_t rank, uint64_t tag, struct err *err)
{
    char path[FILEIO_PATH_MAX], spare[FILEIO_PATH_MAX];
    uint8_t head[RANK_FILE_HEAD] = {0};
    *f = (struct rank_file){.out.fd = -1, .rank = rank, .tag = tag};
    TRY(path_of(path, folder, rank, tag, err));
    TRY(spare_path(spare, folder, rank, err));
    TRY(free_one(folder, rank, spare, err));
    TRY(file_out_open_spare(&f->out, path, spare, err));
    if (!file_out_direct(&f->out))
        log_debug("rank %u saves through the page cache: the file system of %s has no O_DIRECT", rank, folder);
    enum status status = file_out_put(&f->out, head, sizeof head, err);
    if (status != STATUS_OK) rank_file_abort(f);
    return status;
}

enum status rank_file_put(struct rank_file *f, const void *data, size_t size, struct err *err)
{
    const uint8_t *bytes = data;
    f->size += size;
    for (size_t n; size; size -= n, bytes += n) { /* checksummed in cache, then written */
        n = size < PUT_BYTES ? size : PUT_BYTES;
        f->crc = crc32c(f->crc, bytes, n);
        TRY(file_out_put(&f->out, bytes, n, err));
    }
    return STATUS_OK;
}

enum status rank_file_end(struct rank_file *f, struct err *err)
{
    uint8_t head[RANK_FILE_HEAD];
    encode_head(f, head);
    TRY(file_out_put_head(&f->out, head, sizeof head, err));
    return file_out_commit(&f->out, err);
}

void rank_file_abort(struct rank_file *f)
{
    file_out_abort(&f->out);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static enum status decode_head(struct head *h, const uint8_t *data, size_t have, uint64_t size, uint32_t rank,
                               uint64_t tag, struct err *err)
{
    uint8_t copy[RANK_FILE_HEAD] = {0};
    if (have < RANK_FILE_HEAD) return err_set(err, STATUS_CORRUPT, "the file of rank %u is truncated", rank);
    struct reader r = reader_of(data, RANK_FILE_HEAD);
    fields_get(head_fields, h, &r);
    size_t crc_at = r.pos - sizeof h->crc;
    memcpy(copy, data, sizeof copy);
    memset(copy + crc_at, 0, sizeof h->crc);
    if (h->magic != MAGIC) return err_set(err, STATUS_CORRUPT, "the file of rank %u is not one of a saved state", rank);
    if (h->format != FORMAT)
        return err_set(err, STATUS_UNSUPPORTED, "the file of rank %u has format version %u, this program reads %d",
                       rank, h->format, FORMAT);
    if (h->crc != crc32c(0, copy, sizeof copy))
        return err_set(err, STATUS_CORRUPT, "the head of the file of rank %u does not match its checksum", rank);
    if (h->rank != rank || h->tag != tag)
        return err_set(err, STATUS_CORRUPT, "the file of rank %u is that of %s", rank,
                       h->rank != rank ? "another rank" : "another save");
    if (h->size != size - RANK_FILE_HEAD) return err_set(err, STATUS_CORRUPT, "the file of rank %u is truncated", rank);
    return STATUS_OK;
}

enum status rank_file_map(struct file_map *map, const char *folder, uint32_t rank, uint64_t tag, const uint8_t **body_p,
                          size_t *size_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct head head;
    TRY(path_of(path, folder, rank, tag, err));
    TRY(file_map_open(map, path, err));
    enum status status = decode_head(&head, map->data, map->size, map->size, rank, tag, err);
    if (status == STATUS_OK && head.body_crc != crc32c(0, map->data + RANK_FILE_HEAD, head.size))
        status = err_set(err, STATUS_CORRUPT, "the file of rank %u does not match its checksum", rank);
    if (status != STATUS_OK) {
        file_map_close(map);
        return status;
    }
    *body_p = map->data + RANK_FILE_HEAD;
    *size_p = head.size;
    return STATUS_OK;
}

static enum status check_one(const char *folder, uint32_t rank, uint64_t tag, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    uint8_t data[RANK_FILE_HEAD];
    struct head head;
    struct stat st;
    int fd;
    TRY(path_of(path, folder, rank, tag, err));
    TRY(file_open_plain(path, O_RDONLY, 0, &fd, err));
    ssize_t n = pread(fd, data, sizeof data, 0);
    enum status status = n < 0 || fstat(fd, &st) != 0
                             ? err_set(err, STATUS_CORRUPT, "cannot read %s: %s", path, strerror(errno))
                             : decode_head(&head, data, (size_t)n, (uint64_t)st.st_size, rank, tag, err);
    close(fd);
    return status;
}

enum status rank_files_check(const char *folder, uint64_t tag, uint32_t n_ranks, struct err *err)
{
    for (uint32_t rank = 0; rank < n_ranks; rank++) {
        enum status status = check_one(folder, rank, tag, err);
        if (status == STATUS_NOTFOUND) return err_set(err, STATUS_CORRUPT, "the file of rank %u is missing", rank);
        TRY(status);
    }
    return STATUS_OK;
}

void rank_file_set_aside(const char *folder, uint32_t rank, uint64_t tag)
{
    char path[FILEIO_PATH_MAX], aside[FILEIO_PATH_MAX + 16];
    if (path_of(path, folder, rank, tag, NULL) != STATUS_OK) return;
    snprintf(aside, sizeof aside, "%s.damaged", path);
    if (rename(path, aside) == 0) log_warn("put aside as %s", aside);
}

void rank_files_sweep(const char *folder, uint32_t n_ranks)
{
    uint64_t tags[STATES], tag;
    char path[FILEIO_PATH_MAX];
    uint32_t rank;
    bool is_spare;
    int length = snprintf(path, sizeof path, "%s/state.ranks", folder);
    if (length < 0 || (size_t)length >= sizeof path || !file_exists(path)) return; /* it never had ranks */
    if (tags_needed(folder, tags, NULL) != STATUS_OK) return;
    DIR *dir = descriptors_opendir(folder);
    if (!dir) return;
    for (const struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (!parse_name(e->d_name, &rank, &tag, &is_spare) || rank < n_ranks) continue;
        if (!is_spare && is_needed(tags, tag)) continue;
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (n > 0 && (size_t)n < sizeof path) unlink(path);
    }
    closedir(dir);
}
