/* JSON files, written atomically with a newline at the end, and optional members of JSON objects. */
#ifndef COMMON_JSON_FILE_H
#define COMMON_JSON_FILE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Write `root` (borrowed) with the flags of json_dumps. NOMEM, also for root NULL; otherwise as file_write. */
enum status json_file_write(const char *path, const json_t *root, size_t flags, struct err *err) MUST_CHECK;

/* Set a member; omitted when the value is UINT64_MAX, not finite (JSON has no such number), NULL or empty. */
void json_put_count(json_t *object, const char *key, uint64_t value);
void json_put_real(json_t *object, const char *key, double value);
void json_put_text(json_t *object, const char *key, const char *value);
/* A list of the n counts, without the zeros at its end. The caller owns it. NULL: no memory. */
json_t *json_counts(const uint64_t *counts, size_t n);

#endif
