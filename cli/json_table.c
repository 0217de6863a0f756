#include "cli/json_table.h"

#include <jansson.h>
#include <string.h>

#include "common/base/text.h"

enum { CELL_MAX = 256, COLUMNS_MAX = 24 };

static const char *cell(const json_t *value, char out[CELL_MAX])
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_STRING:
        snprintf(out, CELL_MAX, "%s", json_string_value(value));
        text_make_clean(out); /* an escape such as \u001b is a control character now */
        break;
    case JSON_INTEGER: snprintf(out, CELL_MAX, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL: snprintf(out, CELL_MAX, "%.6g", json_real_value(value)); break;
    case JSON_TRUE: snprintf(out, CELL_MAX, "yes"); break;
    case JSON_FALSE: snprintf(out, CELL_MAX, "no"); break;
    case JSON_ARRAY: snprintf(out, CELL_MAX, "(%zu)", json_array_size(value)); break;
    case JSON_OBJECT: snprintf(out, CELL_MAX, "{%zu}", json_object_size(value)); break;
    default: snprintf(out, CELL_MAX, "-"); break;
    }
    return out;
}

static const char *shown(const char *key, char out[TEXT_SHOWN])
{
    return text_shown(key, strlen(key), out);
}

static void print_scalars(json_t *object, const char *indent, FILE *out)
{
    const char *key;
    json_t *value;
    char text[CELL_MAX], name[TEXT_SHOWN];
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value)) {
            fprintf(out, "%s%s\n", indent, shown(key, name));
            print_scalars(value, "  ", out);
        } else if (!json_is_array(value)) {
            fprintf(out, "%s%-*s %s\n", indent, 18 - (int)strlen(indent), shown(key, name), cell(value, text));
        }
    }
}

/* Columns are the keys of the first row. */
static void print_rows(const char *name, json_t *rows, FILE *out)
{
    const char *keys[COLUMNS_MAX], *key;
    int widths[COLUMNS_MAX], n = 0;
    json_t *value, *row;
    size_t i;
    char text[CELL_MAX];
    json_object_foreach(json_array_get(rows, 0), key, value)
    {
        if (n == COLUMNS_MAX) break;
        keys[n] = key;
        widths[n] = (int)strlen(key);
        json_array_foreach(rows, i, row)
        {
            int width = (int)strlen(cell(json_object_get(row, key), text));
            if (width > widths[n]) widths[n] = width;
        }
        n++;
    }
    fprintf(out, "\n%s\n", shown(name, text));
    for (int c = 0; c < n; c++) fprintf(out, "  %-*s", widths[c], shown(keys[c], text));
    fprintf(out, "\n");
    json_array_foreach(rows, i, row)
    {
        for (int c = 0; c < n; c++) {
            value = json_object_get(row, keys[c]);
            fprintf(out, "  %*s", json_is_number(value) ? widths[c] : -widths[c], cell(value, text));
        }
        fprintf(out, "\n");
    }
}

enum status json_table_print(const char *text, const char *where, FILE *out, struct err *err)
{
    json_error_t error;
    json_t *root = json_loads(text, 0, &error), *value;
    const char *key;
    size_t i;
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(err, STATUS_CORRUPT, "%s is not a JSON object: %s", where,
                       root ? "it is another type" : error.text);
    }
    print_scalars(root, "", out);
    json_object_foreach(root, key, value)
    {
        if (!json_is_array(value) || !json_array_size(value)) continue;
        if (json_is_object(json_array_get(value, 0))) {
            print_rows(key, value, out);
        } else {
            json_t *item;
            char cell_text[CELL_MAX];
            fprintf(out, "%-18s", shown(key, cell_text));
            json_array_foreach(value, i, item) fprintf(out, " %s", cell(item, cell_text));
            fprintf(out, "\n");
        }
    }
    json_decref(root);
    return STATUS_OK;
}
