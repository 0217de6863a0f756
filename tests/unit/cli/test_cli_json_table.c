/* cli/json_table: status and summaries as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/json_table.h"

static struct err err;

static void expect(const char *json, const char *want)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(json_table_print(json, "here", out, &err), STATUS_OK);
    fclose(out);
    assert_string_equal(text, want);
    free(text);
}

/* A hostile coordinator cannot send commands to the terminal. */
static void test_control_characters_are_replaced(void **state)
{
    (void)state;
    expect("{\"run\": \"a\\u001b[31mb\\u0007\", \"k\\u001b\": 1, \"rows\": [{\"n\\u009b\": \"\\u001b]0;x\"}]}",
           "run                a?[31mb?\n"
           "k?                 1\n"
           "\nrows\n"
           "  n??  \n"
           "  ?]0;x\n");
}

static void test_scalars_are_aligned(void **state)
{
    (void)state;
    expect("{\"method\": \"ddp\", \"loss\": 1.25, \"n\": 3, \"ok\": true, \"none\": null, \"in\": {\"x\": 1}}",
           "method             ddp\n"
           "loss               1.25\n"
           "n                  3\n"
           "ok                 yes\n"
           "none               -\n"
           "in\n"
           "  x                1\n");
}

static void test_arrays_of_objects_are_tables(void **state)
{
    (void)state;
    expect("{\"workers\": [{\"name\": \"a\", \"step\": 12}, {\"name\": \"longer\", \"step\": 3}], \"v\": [1, 2], "
           "\"e\": []}",
           "\nworkers\n"
           "  name    step\n"
           "  a         12\n"
           "  longer     3\n"
           "v                  1 2\n");
}

static void test_other_json_is_refused(void **state)
{
    (void)state;
    assert_int_equal(json_table_print("[1]", "here", stdout, &err), STATUS_CORRUPT);
    assert_int_equal(json_table_print("{\"a\":", "here", stdout, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "here"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_characters_are_replaced), cmocka_unit_test(test_scalars_are_aligned),
        cmocka_unit_test(test_arrays_of_objects_are_tables), cmocka_unit_test(test_other_json_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
