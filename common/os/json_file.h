/* JSON documents as files: whole or not at all, the last line ended like any other. And members of objects that may not
 * be known. */
#ifndef COMMON_JSON_FILE_H
#define COMMON_JSON_FILE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* NOMEM also for a root that could not be made (NULL). flags as for json_dumps; root is borrowed. */
enum status json_file_write(const char *path, const json_t *root, size_t flags, struct err *err) MUST_CHECK;

/* Set a member; left out when it is UINT64_MAX, not finite (JSON has no such number), NULL or empty. */
void json_put_count(json_t *object, const char *key, uint64_t value);
void json_put_real(json_t *object, const char *key, double value);
void json_put_text(json_t *object, const char *key, const char *value);

#endif
