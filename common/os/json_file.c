#include "common/os/json_file.h"

#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

enum status json_file_write(const char *path, const json_t *root, size_t flags, struct err *err)
{
    size_t size = root ? json_dumpb(root, NULL, 0, flags) : 0;
    char *text = size ? mem_alloc(1, size + 1) : NULL;
    if (!text || json_dumpb(root, text, size, flags) != size) {
        mem_free(text);
        return err_set(err, STATUS_NOMEM, "no memory to write %s", path);
    }
    text[size] = '\n';
    enum status status = file_write(path, text, size + 1, err);
    mem_free(text);
    return status;
}

void json_put_count(json_t *object, const char *key, uint64_t value)
{
    if (value != UINT64_MAX) json_object_set_new(object, key, json_integer((json_int_t)value));
}

void json_put_real(json_t *object, const char *key, double value)
{
    if (isfinite(value)) json_object_set_new(object, key, json_real(value));
}

void json_put_text(json_t *object, const char *key, const char *value)
{
    if (value && value[0]) json_object_set_new(object, key, json_string(value));
}

json_t *json_counts(const uint64_t *counts, size_t n)
{
    json_t *list = json_array();
    while (n && !counts[n - 1]) n--;
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)counts[i]));
    return list;
}
