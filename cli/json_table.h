/* Prints a JSON object as text: scalars as aligned lines, arrays of objects as tables. */
#ifndef CLI_JSON_TABLE_H
#define CLI_JSON_TABLE_H

#include <stdio.h>

#include "common/base/status.h"

/* Prints the JSON object `text` to `out`. CORRUPT for text that is no JSON object; `where` names it in the error. */
enum status json_table_print(const char *text, const char *where, FILE *out, struct err *err) MUST_CHECK;

#endif
