/* A test program: cmocka, the standard headers that it needs, and tests that name themselves.
 *
 *   TEST(test_sum_of_nothing_is_zero)
 *   {
 *       assert_int_equal(sum(NULL, 0), 0);
 *   }
 *
 *   TEST_MAIN(NULL, NULL)
 *
 * The tests of a file run in its order. `./test_sum test_sum_of_*` runs those that match a pattern. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The body of the test follows. */
#define TEST(name) TEST_WITH(name, NULL, NULL)

/* `set_up` runs before the test and `tear_down` after it, also if it fails; NULL: nothing. */
#define TEST_WITH(name, set_up, tear_down)                                                                             \
    static void name(void **);                                                                                         \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        test_add(__LINE__, (struct CMUnitTest){#name, name, set_up, tear_down, NULL});                                 \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **unused_state)

/* The program. `set_up` runs before all tests and `tear_down` after them; NULL: nothing. */
#define TEST_MAIN(set_up, tear_down)                                                                                   \
    int main(int n_words, char **words)                                                                                \
    {                                                                                                                  \
        return test_run(n_words, words, set_up, tear_down);                                                            \
    }

void test_add(int line, struct CMUnitTest test);

/* Runs all tests, or those that match argv[1]. Returns the number of failed ones. */
int test_run(int argc, char **argv, CMFixtureFunction set_up, CMFixtureFunction tear_down);
