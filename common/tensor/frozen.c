#include "common/tensor/frozen.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/format/field_rows.h"

enum { HEADER_TEXT_MAX = 1024 };

void frozen_finish(struct frozen *list)
{
    mem_free(list->tensors);
    *list = (struct frozen){0};
}

static bool is_printable(const char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e) return false;
    return true;
}

bool frozen_tensor_ok(const struct frozen_tensor *t)
{
    return layout_name_ok(t->name) && t->dtype[0] && is_printable(t->dtype) && t->ndim <= LAYOUT_DIMS_MAX;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct frozen_tensor *)a)->name, ((const struct frozen_tensor *)b)->name);
}

const struct frozen_tensor *frozen_find(const struct frozen *list, const char *name)
{
    struct frozen_tensor key;
    if (!list->n || strlen(name) >= sizeof key.name) return NULL;
    snprintf(key.name, sizeof key.name, "%s", name);
    return bsearch(&key, list->tensors, list->n, sizeof key, by_name);
}

enum status frozen_sort(struct frozen *list, const struct layout *layout, struct err *err)
{
    if (list->n) qsort(list->tensors, list->n, sizeof *list->tensors, by_name);
    for (uint32_t i = 1; i < list->n; i++)
        if (!by_name(&list->tensors[i - 1], &list->tensors[i]))
            return err_set(err, STATUS_INVALID, "two frozen tensors have the name '%s': give tied tensors once",
                           list->tensors[i].name);
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        if (frozen_find(list, layout->tensors[i].name))
            return err_set(err, STATUS_INVALID, "tensor '%s' is exchanged and frozen: give it once",
                           layout->tensors[i].name);
    return STATUS_OK;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static const struct field shape_fields[] = {{.name = "size", .kind = FIELD_U64, .max = UINT64_MAX}, END};
static const struct field tensor_fields[] = {
    LINE(frozen_tensor, name, 1),
    LINE(frozen_tensor, dtype, 1),
    U8(frozen_tensor, ndim, 0, LAYOUT_DIMS_MAX), /* the lowest byte of the member */
    LIST(frozen_tensor, shape, ndim, shape_fields, LAYOUT_DIMS_MAX),
    U64(frozen_tensor, bytes),
    U64(frozen_tensor, hash),
    END,
};

void frozen_encode(const struct frozen *list, struct writer *w)
{
    if (list->n) put_u32(w, list->n);
    fields_put_all(tensor_fields, list->tensors, sizeof *list->tensors, list->n, w);
}

size_t frozen_encoded_size(const struct frozen *list)
{
    struct writer w = writer_counting();
    frozen_encode(list, &w);
    return w.pos;
}

enum status frozen_decode(struct frozen *list, const uint8_t *src, size_t size)
{
    const size_t least = fields_size(tensor_fields, &(struct frozen_tensor){.name = "x", .dtype = "x"});
    struct reader r = reader_of(src, size);
    assert(!list->n && !list->tensors);
    if (!size) return STATUS_OK;
    uint32_t n = get_u32(&r);
    if (r.bad || !n || n > FROZEN_MAX || n > reader_left(&r) / least) return STATUS_CORRUPT;
    list->tensors = mem_alloc(n, sizeof *list->tensors);
    if (!list->tensors) return STATUS_NOMEM;
    for (; list->n < n; list->n++) {
        struct frozen_tensor *t = &list->tensors[list->n];
        *t = (struct frozen_tensor){0};
        fields_get(tensor_fields, t, &r);
        if (r.bad || !frozen_tensor_ok(t) || (list->n && by_name(t - 1, t) >= 0)) return STATUS_CORRUPT;
    }
    return reader_done(&r) ? STATUS_OK : STATUS_CORRUPT;
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

static bool same_shape(const struct frozen_tensor *a, const struct frozen_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape);
}

/* False: equal. */
static bool describe(const struct frozen_tensor *its, const struct frozen_tensor *ours, char out[FROZEN_DIFFERENCE_MAX])
{
    char a[LAYOUT_SHAPE], b[LAYOUT_SHAPE];
    if (strcmp(its->dtype, ours->dtype) != 0)
        snprintf(out, FROZEN_DIFFERENCE_MAX, "frozen tensor '%s' has dtype %s instead of %s", ours->name, its->dtype,
                 ours->dtype);
    else if (!same_shape(its, ours))
        snprintf(out, FROZEN_DIFFERENCE_MAX, "frozen tensor '%s' has shape [%s] instead of [%s]", ours->name,
                 layout_shape(its->shape, its->ndim, ", ", a), layout_shape(ours->shape, ours->ndim, ", ", b));
    else if (its->bytes != ours->bytes)
        snprintf(out, FROZEN_DIFFERENCE_MAX, "frozen tensor '%s' has %llu bytes instead of %llu", ours->name,
                 (unsigned long long)its->bytes, (unsigned long long)ours->bytes);
    else if (its->hash != ours->hash)
        snprintf(out, FROZEN_DIFFERENCE_MAX, "frozen tensor '%s' has other values", ours->name);
    else
        return false;
    return true;
}

const char *frozen_difference(const struct frozen *other, const struct frozen *run, char out[FROZEN_DIFFERENCE_MAX])
{
    uint32_t i = 0, k = 0;
    while (i < other->n || k < run->n) {
        const struct frozen_tensor *its = i < other->n ? &other->tensors[i] : NULL;
        const struct frozen_tensor *ours = k < run->n ? &run->tensors[k] : NULL;
        int order = !its ? 1 : !ours ? -1 : by_name(its, ours);
        if (order > 0)
            snprintf(out, FROZEN_DIFFERENCE_MAX, "frozen tensor '%s' of the run is missing here", ours->name);
        else if (order < 0)
            snprintf(out, FROZEN_DIFFERENCE_MAX, "frozen tensor '%s' is missing in the run", its->name);
        if (order || describe(its, ours, out)) return out;
        i++;
        k++;
    }
    return NULL;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

uint64_t frozen_file_most(const struct frozen *list)
{
    uint64_t most = ((uint64_t)list->n + 1) * HEADER_TEXT_MAX;
    for (uint32_t i = 0; i < list->n; i++)
        if (__builtin_add_overflow(most, list->tensors[i].bytes, &most)) return UINT64_MAX;
    return most;
}

enum status frozen_storable(const struct frozen_tensor *t, struct err *err)
{
    uint64_t bits = safetensors_bits(t->dtype);
    if (!bits)
        return err_set(err, STATUS_INVALID, "frozen tensor '%s' has dtype %s, which no safetensors file holds", t->name,
                       t->dtype);
    for (uint32_t d = 0; d < t->ndim; d++)
        if (__builtin_mul_overflow(bits, t->shape[d], &bits))
            return err_set(err, STATUS_INVALID, "frozen tensor '%s' is too large", t->name);
    if (bits % 8 == 0 && bits / 8 == t->bytes) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "frozen tensor '%s' has %llu bytes, but its dtype and shape say %llu", t->name,
                   (unsigned long long)t->bytes, (unsigned long long)bits / 8);
}

void frozen_entries(const struct frozen *list, struct safetensors_tensor *out)
{
    for (uint32_t i = 0; i < list->n; i++) {
        const struct frozen_tensor *t = &list->tensors[i];
        out[i] = (struct safetensors_tensor){
            .name = t->name, .dtype = t->dtype, .bytes = t->bytes, .ndim = t->ndim, .frozen = true};
        memcpy(out[i].shape, t->shape, sizeof t->shape);
    }
}

bool frozen_is(const struct frozen_tensor *t, const struct safetensors_entry *e)
{
    return !strcmp(e->dtype, t->dtype) && e->bytes == t->bytes && e->ndim == t->ndim &&
           !memcmp(e->shape, t->shape, t->ndim * sizeof *t->shape);
}

enum status frozen_check_file(const struct frozen *list, const struct safetensors *file, struct err *err)
{
    if (file->n != list->n)
        return err_set(err, STATUS_MISMATCH, FROZEN_FILE " has %u tensors instead of %u", file->n, list->n);
    for (uint32_t i = 0; i < file->n; i++) {
        const struct frozen_tensor *t = frozen_find(list, file->entries[i].name);
        if (!t || !frozen_is(t, &file->entries[i]))
            return err_set(err, STATUS_MISMATCH, FROZEN_FILE ": tensor '%.96s' is not one of the worker's list",
                           file->entries[i].name);
    }
    return STATUS_OK;
}
