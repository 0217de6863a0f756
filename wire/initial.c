#include "wire/initial.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/format/field_rows.h"

static const struct field file_fields[] = {LINE(initial_file, name, 0), U64(initial_file, size), END};
const struct field initial_head_fields[] = {
    CONST("magic", 4, 0x4e495441), /* bytes "ATIN" */
    CONST("format", 1, 1),
    CONST("zero", 1, 0),
    CONST("zero", 2, 0),
    COUNT(initial_head, n_files, 1, INITIAL_FILES_MAX),
    LIST(initial_head, files, n_files, file_fields, INITIAL_FILES_MAX),
    END,
};

size_t initial_head_size(const struct initial_head *h)
{
    return fields_size(initial_head_fields, h) + sizeof(uint32_t);
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
    fields_put(initial_head_fields, h, &w);
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == initial_head_size(h));
    return w.pos;
}

static enum status bad(struct err *err, const char *what)
{
    return err_set(err, STATUS_CORRUPT, "the list of its files %s", what);
}

/* Checks file i, whose name must be new, and adds its size. */
static enum status check_file(const struct initial_head *h, uint32_t i, uint64_t *sum, struct err *err)
{
    const struct initial_file *file = &h->files[i];
    if (!file->size || __builtin_add_overflow(*sum, file->size, sum)) return bad(err, "has a wrong size");
    if (strcmp(file->name, INITIAL_MODEL) != 0 && strcmp(file->name, INITIAL_FROZEN) != 0 &&
        !hf_files_allowed(file->name))
        return bad(err, "has a name that no model folder has");
    for (uint32_t k = 0; k < i; k++)
        if (!strcmp(h->files[k].name, file->name)) return bad(err, "has one name twice");
    return STATUS_OK;
}

enum status initial_head_decode(struct initial_head *h, const uint8_t *src, size_t size, struct err *err)
{
    struct reader r = reader_of(src, size);
    uint64_t sum = INITIAL_HEAD_MAX;
    bool model = false;
    *h = (struct initial_head){0};
    fields_get(initial_head_fields, h, &r); /* check_file says what is wrong with a name */
    if (r.bad || !h->n_files) return bad(err, "is malformed");
    for (uint32_t i = 0; i < h->n_files; i++) {
        TRY(check_file(h, i, &sum, err));
        model = model || !strcmp(h->files[i].name, INITIAL_MODEL);
    }
    uint32_t crc = crc32c(0, src, r.pos);
    if (get_u32(&r) != crc || r.bad) return bad(err, "does not match its checksum");
    return model ? STATUS_OK : bad(err, "has no " INITIAL_MODEL);
}
