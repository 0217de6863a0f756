/* JSON for people: scalars of an object as aligned lines, arrays of objects as tables. */
#ifndef CLI_JSON_TABLE_H
#define CLI_JSON_TABLE_H

#include <stdio.h>

#include "common/base/status.h"

/* `where` names the text in the error (CORRUPT). */
enum status json_table_print(const char *text, const char *where, FILE *out, struct err *err) MUST_CHECK;

#endif
