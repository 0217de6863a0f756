/* Configuration texts, read as a file and as the coordinator's shared text, and command-line settings.
 * - A refused text changes nothing and gives an error of one line.
 * - An accepted text is the same after print and parse. */
#include <stdint.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "tests/fuzz/fuzz_check.h"

static void no_log(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void check_refusal(const struct err *err, const struct config *config, const struct config *before)
{
    FUZZ_CHECK(err->msg[0] && !strchr(err->msg, '\n'));
    FUZZ_CHECK(memcmp(config, before, sizeof *config) == 0);
}

static void check_accepted(struct config *config, struct config_sources *sources)
{
    static char text[CONFIG_TEXT_MAX], again[CONFIG_TEXT_MAX];
    static struct config other;
    struct config_sources other_sources;
    struct err err = {0};
    char diff[64];
    if (config_resolve(config, sources, &err) != STATUS_OK) {
        FUZZ_CHECK(err.msg[0] && !strchr(err.msg, '\n'));
        return;
    }
    size_t n = config_shared_text(config, text, sizeof text);
    FUZZ_CHECK(n);
    config_defaults(&other, &other_sources);
    FUZZ_CHECK(config_parse(&other, &other_sources, text, n, "x", CONFIG_COORDINATOR, &err) == STATUS_OK);
    FUZZ_CHECK(config_run_diff(config, &other, false, diff, sizeof diff) == 0);
    FUZZ_CHECK(config_resolve(&other, &other_sources, &err) == STATUS_OK);
    FUZZ_CHECK(config_shared_text(&other, again, sizeof again) == n && memcmp(text, again, n) == 0);
    FUZZ_CHECK(config_run_hash(config) == config_run_hash(&other));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config config, before;
    struct config_sources sources;
    struct err err;
    log_set_sink(no_log, NULL);
    for (int from_coordinator = 0; from_coordinator < 2; from_coordinator++) {
        memset(&err, 0, sizeof err);
        config_defaults(&config, &sources);
        before = config;
        if (config_parse(&config, &sources, (const char *)data, size, "a.yaml",
                         from_coordinator ? CONFIG_COORDINATOR : CONFIG_FILE, &err) == STATUS_OK)
            check_accepted(&config, &sources);
        else
            check_refusal(&err, &config, &before);
    }
    char flag[2048];
    size_t n = size < sizeof flag - 1 ? size : sizeof flag - 1;
    memcpy(flag, data, n);
    flag[n] = 0;
    config_defaults(&config, &sources);
    if (config_set(&config, &sources, flag, CONFIG_FLAG, &err) == STATUS_OK)
        check_accepted(&config, &sources);
    else
        check_refusal(&err, &config, &before);
    return 0;
}
