#include "wire/initial.h"

#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"

enum { MAGIC = 0x4e495441 /* "ATIN" */, FORMAT = 1, FIXED = 12 };

size_t initial_head_size(const struct initial_head *h)
{
    size_t size = FIXED + sizeof(uint32_t);
    for (uint32_t i = 0; i < h->n_files; i++) size += 2 + strlen(h->files[i].name) + 8;
    return size;
}

uint64_t initial_total(const struct initial_head *h)
{
    uint64_t total = initial_head_size(h);
    for (uint32_t i = 0; i < h->n_files; i++) total += h->files[i].size;
    return total;
}

size_t initial_head_encode(const struct initial_head *h, uint8_t *dst)
{
    struct writer w = writer_of(dst, INITIAL_HEAD_MAX);
    assert(h->n_files && h->n_files <= INITIAL_FILES_MAX);
    put_u32(&w, MAGIC);
    put_u8(&w, FORMAT);
    put_u8(&w, 0);
    put_u16(&w, 0);
    put_u32(&w, h->n_files);
    for (uint32_t i = 0; i < h->n_files; i++) {
        put_str(&w, h->files[i].name);
        put_u64(&w, h->files[i].size);
    }
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == initial_head_size(h));
    return w.pos;
}

static enum status bad(struct err *err, const char *what)
{
    return err_set(err, STATUS_CORRUPT, "the list of its files %s", what);
}

/* Checks the last file, which must be new, and adds its size. */
static enum status check_file(const struct initial_head *h, uint64_t *sum, struct err *err)
{
    const struct initial_file *file = &h->files[h->n_files - 1];
    if (!file->size || __builtin_add_overflow(*sum, file->size, sum)) return bad(err, "has a wrong size");
    if (strcmp(file->name, INITIAL_MODEL) != 0 && strcmp(file->name, INITIAL_FROZEN) != 0 &&
        !hf_files_allowed(file->name))
        return bad(err, "has a name that no model folder has");
    for (uint32_t i = 0; i + 1 < h->n_files; i++)
        if (!strcmp(h->files[i].name, file->name)) return bad(err, "has one name twice");
    return STATUS_OK;
}

enum status initial_head_decode(struct initial_head *h, const uint8_t *src, size_t size, struct err *err)
{
    struct reader r = reader_of(src, size);
    uint64_t sum = INITIAL_HEAD_MAX;
    bool model = false;
    uint32_t magic = get_u32(&r);
    uint8_t format = get_u8(&r), zero = get_u8(&r);
    uint16_t zeros = get_u16(&r);
    uint32_t n = get_u32(&r);
    *h = (struct initial_head){0};
    if (r.bad || magic != MAGIC || format != FORMAT || zero || zeros || !n || n > INITIAL_FILES_MAX)
        return bad(err, "is malformed");
    for (uint32_t i = 0; i < n; i++) {
        get_str(&r, h->files[i].name, sizeof h->files[i].name);
        h->files[i].size = get_u64(&r);
        if (r.bad) return bad(err, "is malformed");
        h->n_files = i + 1;
        TRY(check_file(h, &sum, err));
        model = model || !strcmp(h->files[i].name, INITIAL_MODEL);
    }
    uint32_t crc = crc32c(0, src, r.pos);
    if (get_u32(&r) != crc || r.bad) return bad(err, "does not match its checksum");
    return model ? STATUS_OK : bad(err, "has no " INITIAL_MODEL);
}
