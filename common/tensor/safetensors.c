#include "common/tensor/safetensors.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/mem.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fp32 tensors are copied without conversion: this needs a little-endian machine"
#endif

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {{"F32", 32},        {"F16", 16},    {"BF16", 16},   {"BOOL", 8},    {"U8", 8},      {"I8", 8},
              {"I16", 16},        {"U16", 16},    {"I32", 32},    {"U32", 32},    {"I64", 64},    {"U64", 64},
              {"F64", 64},        {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
              {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};

uint32_t safetensors_bits(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, dtype)) return dtypes[i].bits;
    return 0;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static enum status bad(struct err *err, const char *where, const char *name, const char *what)
{
    return err_set(err, STATUS_CORRUPT, "%.200s: not a valid safetensors file: tensor '%.96s': %s", where, name, what);
}

static bool json_u64(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* Parses one entry of the header. The caller computes e->data from *begin. */
static enum status parse_entry(struct safetensors_entry *e, const json_t *value, uint64_t *begin, uint64_t *end,
                               const char *where, struct err *err)
{
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *shape = json_object_get(value, "shape"), *offsets = json_object_get(value, "data_offsets");
    if (!json_is_object(value) || json_object_size(value) != 3 || !dtype || !json_is_array(shape) ||
        !json_is_array(offsets) || json_array_size(offsets) != 2)
        return bad(err, where, e->name, "expected exactly dtype, shape and data_offsets");
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtypes[i].name, dtype)) {
            e->dtype = dtypes[i].name;
            bits = dtypes[i].bits;
        }
    if (!bits) return bad(err, where, e->name, "unknown dtype");
    if (json_array_size(shape) > SAFETENSORS_DIMS_MAX) return bad(err, where, e->name, "too many dimensions");
    e->ndim = (uint32_t)json_array_size(shape);
    e->count = 1;
    for (uint32_t d = 0; d < e->ndim; d++)
        if (!json_u64(json_array_get(shape, d), &e->shape[d]) ||
            __builtin_mul_overflow(e->count, e->shape[d], &e->count))
            return bad(err, where, e->name, "the shape is not a list of numbers whose product fits 64 bits");
    if (!json_u64(json_array_get(offsets, 0), begin) || !json_u64(json_array_get(offsets, 1), end) || *end < *begin)
        return bad(err, where, e->name, "data_offsets are not two ascending numbers");
    uint64_t total;
    if (__builtin_mul_overflow(e->count, bits, &total) || total % 8 || total / 8 != *end - *begin)
        return bad(err, where, e->name, "data_offsets do not match dtype and shape");
    e->bytes = total / 8;
    return STATUS_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Checks that the tensors, sorted by position, cover the buffer without hole or overlap. */
static enum status check_tiling(struct safetensors *st, const uint8_t *data, uint64_t size, const char *where,
                                struct err *err)
{
    if (st->n) qsort(st->entries, st->n, sizeof *st->entries, by_place);
    uint64_t at = 0;
    for (uint32_t i = 0; i < st->n; i++) {
        if (st->entries[i].data != data + at)
            return bad(err, where, st->entries[i].name, "hole or overlap before this tensor");
        at += st->entries[i].bytes;
        assert(at <= size); /* parse_entries checked that each entry ends inside the file */
    }
    if (at != size)
        return err_set(err, STATUS_CORRUPT,
                       "%.200s: damaged: %llu bytes of tensors, but the header requires %llu: copy it again", where,
                       (unsigned long long)size, (unsigned long long)at);
    return STATUS_OK;
}

static enum status check_metadata(const json_t *metadata, const char *where, struct err *err)
{
    const char *key;
    json_t *value;
    bool ok = json_is_object(metadata);
    if (ok) json_object_foreach((json_t *)(uintptr_t)metadata, key, value) ok = ok && json_is_string(value);
    return ok ? STATUS_OK : bad(err, where, "__metadata__", "expected only text values");
}

static enum status parse_entries(struct safetensors *st, const uint8_t *data, uint64_t size, const char *where,
                                 struct err *err)
{
    json_t *root = st->json;
    size_t n = json_object_size(root);
    if (n > SAFETENSORS_TENSORS_MAX)
        return err_set(err, STATUS_LIMIT, "%.200s: %zu tensors exceed the limit of %d", where, n,
                       SAFETENSORS_TENSORS_MAX);
    st->entries = mem_alloc(n, sizeof *st->entries);
    if (!st->entries) return err_set(err, STATUS_NOMEM, "no memory for the header of %.200s", where);
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        if (!strcmp(name, "__metadata__")) {
            TRY(check_metadata(value, where, err));
            continue;
        }
        assert(st->n < n);
        struct safetensors_entry *e = &st->entries[st->n];
        uint64_t begin = 0, end = 0;
        e->name = name;
        TRY(parse_entry(e, value, &begin, &end, where, err));
        if (end > size) return bad(err, where, name, "ends beyond the end of the file: truncated, copy it again");
        e->data = data + begin;
        st->n++;
    }
    return check_tiling(st, data, size, where, err);
}

enum status safetensors_parse(struct safetensors *st, const void *data, size_t size, const char *where, struct err *err)
{
    *st = (struct safetensors){0};
    struct reader r = reader_of(data, size);
    uint64_t header = get_u64(&r);
    if (r.bad || header > SAFETENSORS_HEADER_MAX || header > reader_left(&r) || header < 2)
        return err_set(err, STATUS_CORRUPT, "%.200s: not a safetensors file: its header does not fit in %zu bytes",
                       where, size);
    const char *text = (const char *)get_bytes(&r, (size_t)header);
    json_error_t why;
    assert(text && reader_left(&r) == size - 8 - header);
    if (text[0] == '{') st->json = json_loadb(text, (size_t)header, JSON_REJECT_DUPLICATES, &why);
    if (!st->json)
        return err_set(err, STATUS_CORRUPT, "%.200s: not a safetensors file: header is not JSON: %.100s", where,
                       text[0] == '{' ? why.text : "it does not start with '{'");
    enum status status = parse_entries(st, r.data + r.pos, reader_left(&r), where, err);
    if (status != STATUS_OK) safetensors_close(st);
    return status;
}

enum status safetensors_open(struct safetensors *st, const char *path, struct err *err)
{
    struct file_map map;
    *st = (struct safetensors){0};
    TRY(file_map_open(&map, path, err));
    enum status status = safetensors_parse(st, map.data, map.size, path, err);
    if (status == STATUS_OK)
        st->map = map;
    else
        file_map_close(&map);
    return status;
}

void safetensors_close(struct safetensors *st)
{
    json_decref(st->json);
    mem_free(st->entries);
    file_map_close(&st->map);
    *st = (struct safetensors){0};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name)
{
    for (uint32_t i = 0; i < st->n; i++)
        if (!strcmp(st->entries[i].name, name)) return &st->entries[i];
    return NULL;
}

static float half_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff, bits;
    float value;
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24 */
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

enum status safetensors_read_f32(const struct safetensors_entry *entry, float *out, struct err *err)
{
    struct reader r = reader_of(entry->data, entry->bytes);
    if (!strcmp(entry->dtype, "F32")) {
        assert(entry->bytes == entry->count * sizeof *out);
        if (entry->bytes) memcpy(out, entry->data, entry->bytes);
    } else if (!strcmp(entry->dtype, "F16")) {
        for (uint64_t i = 0; i < entry->count; i++) out[i] = half_to_f32(get_u16(&r));
        assert(reader_done(&r));
    } else if (!strcmp(entry->dtype, "BF16")) {
        for (uint64_t i = 0; i < entry->count; i++) {
            uint32_t bits = (uint32_t)get_u16(&r) << 16;
            memcpy(&out[i], &bits, sizeof bits);
        }
        assert(reader_done(&r));
    } else {
        return err_set(err, STATUS_UNSUPPORTED, "tensor '%s' has type %s, expected F32, F16 or BF16", entry->name,
                       entry->dtype);
    }
    return STATUS_OK;
}

struct safetensors_entry safetensors_slice(const struct safetensors_entry *entry, uint64_t first, uint64_t n)
{
    assert(n && first + n <= entry->count);
    uint64_t size = entry->bytes / entry->count;
    struct safetensors_entry part = *entry;
    part.count = n;
    part.bytes = size * n;
    part.data = entry->data + size * first;
    return part;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Theta lies behind frozen tensors of 8-byte elements and before all others. */
static int rank(const struct safetensors_tensor *t)
{
    int bits = t->frozen ? (int)safetensors_bits(t->dtype) : 48;
    return -bits;
}

static int by_place_in_file(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (rank(x) != rank(y)) return rank(x) < rank(y) ? -1 : 1;
    return strcmp(x->name, y->name);
}

uint64_t safetensors_tensor_bytes(const struct safetensors_tensor *t)
{
    uint64_t n = sizeof(float);
    if (t->dtype) return t->bytes;
    for (uint32_t d = 0; d < t->ndim; d++) n *= t->shape[d];
    return n;
}

/* Adds the tensor at byte `at` to the header. */
static bool add_entry(json_t *root, const struct safetensors_tensor *t, uint64_t at)
{
    json_t *shape = json_array();
    bool ok = true;
    for (uint32_t d = 0; d < t->ndim; d++)
        ok = ok && !json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
    json_int_t begin = (json_int_t)at, end = begin + (json_int_t)safetensors_tensor_bytes(t);
    json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype ? t->dtype : "F32", "shape", shape,
                              "data_offsets", begin, end);
    return ok && !json_object_set_new(root, t->name, entry);
}

/* The header as compact JSON in insertion order, or NULL. The caller frees it with free(). */
static char *header_text(const struct safetensors_tensor *tensors, uint32_t n)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at = 0, begin = 0, theta = 0;
    uint32_t frozen = 0;
    bool ok = root;
    for (uint32_t i = 0; ok && i < n; i++) {
        ok = add_entry(root, &tensors[i], at);
        if (!tensors[i].frozen && !theta) begin = at;
        if (!tensors[i].frozen) theta += safetensors_tensor_bytes(&tensors[i]);
        frozen += tensors[i].frozen;
        at += safetensors_tensor_bytes(&tensors[i]);
    }
    char range[48];
    snprintf(range, sizeof range, "%llu %llu", (unsigned long long)begin, (unsigned long long)begin + theta);
    if (ok && frozen && frozen < n)
        ok = !json_object_set_new(json_object_get(root, "__metadata__"), "theta", json_string(range));
    char *text = ok && json_object_size(root) == n + 1u ? json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    return text;
}

enum status safetensors_head(struct safetensors_tensor *tensors, uint32_t n, uint8_t **head_p, size_t *size_p,
                             struct err *err)
{
    if (n) qsort(tensors, n, sizeof *tensors, by_place_in_file);
    char *text = header_text(tensors, n);
    if (!text) return err_set(err, STATUS_INVALID, "invalid or repeated tensor names");
    size_t length = strlen(text), pad = -length & 7u;
    uint8_t *head = mem_alloc(1, 8 + length + pad);
    if (head) {
        struct writer w = writer_of(head, 8 + length + pad);
        put_u64(&w, length + pad);
        put_bytes(&w, text, length);
        put_bytes(&w, "       ", pad);
        assert((length + pad) % 8 == 0 && !w.bad);
        *head_p = head;
        *size_p = w.pos;
    }
    free(text);
    return head ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the header of model.safetensors");
}

enum status safetensors_write(const char *path, struct safetensors_tensor *tensors, uint32_t n, struct err *err)
{
    struct file_out out;
    uint8_t *head;
    size_t size;
    if (safetensors_head(tensors, n, &head, &size, err) != STATUS_OK) {
        err_prefix(err, "cannot write the header of %s", path);
        return err ? err->code : STATUS_INVALID;
    }
    enum status status = file_out_open(&out, path, err);
    if (status == STATUS_OK) status = file_out_put(&out, head, size, err);
    for (uint32_t i = 0; status == STATUS_OK && i < n; i++)
        status = file_out_put(&out, tensors[i].data, safetensors_tensor_bytes(&tensors[i]), err);
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    mem_free(head);
    return status;
}

void safetensors_of_theta(struct safetensors_tensor *tensors, const struct layout *layout, const float *theta)
{
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        assert(t->offset + t->count <= layout->n_params);
        tensors[i] = (struct safetensors_tensor){.name = t->name, .ndim = t->ndim, .data = theta + t->offset};
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
}

static void add_frozen(struct safetensors_tensor *tensors, const struct safetensors *frozen)
{
    for (uint32_t i = 0; i < frozen->n; i++) {
        const struct safetensors_entry *e = &frozen->entries[i];
        tensors[i] = (struct safetensors_tensor){
            .name = e->name, .dtype = e->dtype, .bytes = e->bytes, .frozen = true, .ndim = e->ndim, .data = e->data};
        memcpy(tensors[i].shape, e->shape, sizeof tensors[i].shape);
    }
}

enum status safetensors_write_theta(const char *path, const struct layout *layout, const float *theta,
                                    const struct safetensors *frozen, struct err *err)
{
    uint32_t n = layout->n_tensors + (frozen ? frozen->n : 0);
    for (uint32_t i = 0; frozen && i < frozen->n; i++)
        if (frozen->entries[i].ndim > LAYOUT_DIMS_MAX)
            return err_set(err, STATUS_INVALID, "frozen tensor '%.96s' has more than %d dimensions",
                           frozen->entries[i].name, LAYOUT_DIMS_MAX);
    struct safetensors_tensor *tensors = mem_alloc(n, sizeof *tensors);
    if (!tensors) return err_set(err, STATUS_NOMEM, "no memory to write %s", path);
    safetensors_of_theta(tensors, layout, theta);
    if (frozen) add_frozen(tensors + layout->n_tensors, frozen);
    enum status status = safetensors_write(path, tensors, n, err);
    mem_free(tensors);
    return status;
}
