/* Numbers as people read them: every line of tests/golden/units.tsv, which python/atoll/units.py reads, too. */
#include <math.h>

#include "common/base/units.h"
#include "tests/lib/test.h"

enum { KINDS = 4, KIND_CASES_MIN = 8 };

static const struct {
    const char *name;
    struct units_text (*text)(double);
} kinds[KINDS] = {
    {"duration", units_duration}, {"bytes", units_bytes}, {"count", units_count}, {"percent", units_percent}};

static int kind_of(const char *name)
{
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name)) return i;
    fail_msg("units.tsv has an unknown kind: %s", name);
    return 0;
}

TEST(test_every_line_of_the_table)
{
    char line[256], kind[32], value[64], want[64];
    unsigned cases[KINDS] = {0};
    FILE *table = fopen("tests/golden/units.tsv", "r");
    assert_non_null(table);
    while (fgets(line, sizeof line, table)) {
        if (line[0] == '#') continue;
        assert_int_equal(sscanf(line, "%31[^\t]\t%63[^\t]\t%63[^\n]", kind, value, want), 3);
        int i = kind_of(kind);
        struct units_text got = kinds[i].text(strtod(value, NULL));
        if (strcmp(got.text, want) != 0) fail_msg("%s of %s: \"%s\", expected \"%s\"", kind, value, got.text, want);
        cases[i]++;
    }
    fclose(table);
    for (int i = 0; i < KINDS; i++) assert_true(cases[i] >= KIND_CASES_MIN);
}

TEST(test_whole_seconds)
{
    assert_string_equal(units_whole_seconds(0.4).text, "0 s");
    assert_string_equal(units_whole_seconds(12.34).text, "12 s");
    assert_string_equal(units_whole_seconds(466.6).text, "7 min 47 s");
    assert_string_equal(units_whole_seconds(NAN).text, "-");
}

/* Every value fits the text, and the text has a unit that people know: no exponent, no minus. */
TEST(test_extreme_values_are_plain)
{
    static const double values[] = {-INFINITY, -1,  -0.0, 1e-300, 1e-7, 1e-4,    999.4999,
                                    1e6,       1e9, 1e12, 1e15,   1e18, INFINITY};
    for (int k = 0; k < KINDS; k++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            struct units_text got = kinds[k].text(values[i]);
            size_t n = strlen(got.text);
            if (n == 0 || n + 1 >= sizeof got.text || strstr(got.text, "e+") || strstr(got.text, "e-") ||
                got.text[0] == '-')
                fail_msg("%s of %g: \"%s\"", kinds[k].name, values[i], got.text);
        }
}

TEST_MAIN(NULL, NULL)
