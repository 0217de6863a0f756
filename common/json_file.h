/* JSON documents as files: whole or not at all, the last line ended like any other. */
#ifndef COMMON_JSON_FILE_H
#define COMMON_JSON_FILE_H

#include <jansson.h>
#include <stddef.h>

#include "common/status.h"

/* NOMEM also for a root that could not be made (NULL). flags as for json_dumps; root is borrowed. */
enum status json_file_write(const char *path, const json_t *root, size_t flags, struct err *err) MUST_CHECK;

#endif
