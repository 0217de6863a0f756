/* docs/operate.md says which settings may change when: its table agrees with the table of keys. */

#include "common/config/config_keys.h"
#include "tests/lib/test.h"

enum row { AT_START, AT_WORKER_START, RATE, RAISE, NEVER };

static const char *const begins[] = {
    "| at any start of the coordinator", "| at any start of a worker", "| with `--change`, for the rest of the run |",
    "| to a larger value, as a flag, in CONFIG or with `--change` |", "| never: they belong to the run | all others |"};

static char lines[NEVER + 1][2048];

static void read_table(void)
{
    char line[2048];
    FILE *f = fopen("docs/operate.md", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        for (int r = 0; r <= NEVER; r++)
            if (!strncmp(line, begins[r], strlen(begins[r]))) memcpy(lines[r], line, sizeof line);
    fclose(f);
    for (int r = 0; r <= NEVER; r++)
        if (!lines[r][0]) fail_msg("docs/operate.md has no row '%s'", begins[r]);
}

static bool names(const char *line, const char *section, const char *key)
{
    char one[128], all[128];
    snprintf(one, sizeof one, "`%s.%s`", section, key);
    snprintf(all, sizeof all, "`%s.*`", section);
    return strstr(line, one) || strstr(line, all);
}

static enum row row_of(const struct config_key *k)
{
    if (k->local) return !strcmp(k->section, "data") || !strcmp(k->section, "train") ? AT_WORKER_START : AT_START;
    switch (k->change) {
    case CONFIG_AT_START: return AT_START;
    case CONFIG_RATE: return RATE;
    case CONFIG_RAISE: return RAISE;
    case CONFIG_FIXED: return NEVER;
    }
    return NEVER;
}

/* Keys of the run that a worker may set to a value of its own (docs/methods.md); the run keeps its value. */
static bool is_own_value(const struct config_key *k)
{
    return (!strcmp(k->section, "train") && !strcmp(k->key, "batch_size")) ||
           (!strcmp(k->section, "codec") && !strcmp(k->key, "up"));
}

TEST(test_table_agrees_with_keys)
{
    read_table();
    for (int i = 0; i < config_keys_count; i++) {
        const struct config_key *k = &config_keys[i];
        for (int r = 0; r < NEVER; r++) {
            bool expected = (int)row_of(k) == r || (r == AT_WORKER_START && is_own_value(k));
            if (names(lines[r], k->section, k->key) != expected)
                fail_msg("%s.%s %s in the row '%s'", k->section, k->key, expected ? "is missing" : "must not stand",
                         begins[r]);
        }
    }
}

TEST_MAIN(NULL, NULL)
