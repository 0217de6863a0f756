#include "tests/lib/test.h"

enum { TESTS_MAX = 64 };

static struct CMUnitTest tests[TESTS_MAX];
static int lines[TESTS_MAX];
static size_t n_tests;

void test_add(int line, struct CMUnitTest test)
{
    size_t at = n_tests++;
    if (n_tests > TESTS_MAX) abort();
    for (; at && lines[at - 1] > line; at--) {
        tests[at] = tests[at - 1];
        lines[at] = lines[at - 1];
    }
    tests[at] = test;
    lines[at] = line;
}

int test_run(int argc, char **argv, CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("tests", tests, n_tests, set_up, tear_down);
}
