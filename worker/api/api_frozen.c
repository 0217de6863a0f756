/* The caller's tensors that are not exchanged. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/api/api_impl.h"

enum { JOIN_REST_MAX = WIRE_CONFIG_MAX + (1 << 16) }; /* of a JOIN, besides both lists of tensors */

_Static_assert((int)ATOLL_DIMS_MAX == (int)LAYOUT_DIMS_MAX, "a list has room for each tensor");

static enum status take_one(struct frozen_tensor *t, const struct atoll_frozen *given, uint32_t i, bool whole,
                            struct err *err)
{
    char shown[TEXT_SHOWN];
    const char *name = given->name ? given->name : "", *dtype = given->dtype ? given->dtype : "";
    bool fits = strlen(name) < sizeof t->name && strlen(dtype) < sizeof t->dtype && given->ndim <= LAYOUT_DIMS_MAX;
    if (fits) {
        memcpy(t->name, name, strlen(name) + 1);
        memcpy(t->dtype, dtype, strlen(dtype) + 1);
        t->ndim = given->ndim;
        memcpy(t->shape, given->shape, given->ndim * sizeof *t->shape);
        t->bytes = given->bytes;
        t->hash = given->hash;
    }
    if (!fits || !frozen_tensor_ok(t))
        return err_set(err, STATUS_INVALID,
                       "frozen tensor %" PRIu32 ", '%s': its name must be printable ASCII of 1 to %d bytes, its dtype "
                       "of 1 to %d, and it may have %d dimensions",
                       i, text_shown(name, strlen(name), shown), LAYOUT_NAME_MAX - 1, FROZEN_DTYPE_MAX - 1,
                       LAYOUT_DIMS_MAX);
    return whole ? frozen_storable(t, err) : STATUS_OK;
}

/* A JOIN holds both lists of tensors. */
static enum status check_size(const struct atoll *a, struct err *err)
{
    size_t size = layout_encoded_size(&a->own) + frozen_encoded_size(&a->frozen) + JOIN_REST_MAX;
    if (size > WIRE_BODY_MAX)
        return err_set(err, STATUS_INVALID, "the lists of tensors have %zu bytes, more than %d: shorten their names",
                       size, WIRE_BODY_MAX);
    if (frozen_file_most(&a->frozen) <= FROZEN_BYTES_MAX) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "the frozen tensors have more than %llu TiB",
                   (unsigned long long)FROZEN_BYTES_MAX >> 40);
}

enum status api_take_frozen(struct atoll *a, const struct atoll_options *o, struct err *err)
{
    uint32_t n = o->n_frozen;
    if (n && !o->frozen)
        return err_set(err, STATUS_INVALID, "options.frozen is NULL, but options.n_frozen is %" PRIu32, n);
    if (n > FROZEN_MAX)
        return err_set(err, STATUS_INVALID, "options.frozen has %" PRIu32 " tensors, more than %d", n, FROZEN_MAX);
    a->frozen_any = o->frozen_any != 0;
    a->frozen_read = o->frozen_read;
    a->frozen_ctx = o->frozen_ctx;
    a->frozen.tensors = mem_alloc(n, sizeof *a->frozen.tensors);
    a->frozen_place = mem_alloc(n, sizeof *a->frozen_place);
    if (!a->frozen.tensors || !a->frozen_place)
        return err_set(err, STATUS_NOMEM, "no memory for the list of frozen tensors");
    for (; a->frozen.n < n; a->frozen.n++) {
        uint32_t i = a->frozen.n;
        TRY(take_one(&a->frozen.tensors[i], &o->frozen[i], i, o->frozen_read != NULL, err));
    }
    TRY(frozen_sort(&a->frozen, &a->own, err));
    for (uint32_t i = 0; i < n; i++)
        a->frozen_place[frozen_find(&a->frozen, o->frozen[i].name) - a->frozen.tensors] = i;
    return check_size(a, err);
}

int api_read_frozen(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size)
{
    const struct atoll *a = ctx;
    return a->frozen_read(a->frozen_ctx, a->frozen_place[i], offset, out, size);
}
