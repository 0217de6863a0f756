/* Configuration from the environment, and what in it looks as if it were some. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/edit_distance.h"
#include "common/base/log.h"
#include "common/config/config_keys.h"
#include "common/config/options.h"

static const char prefix[] = "ATOLL_";
enum { PREFIX = sizeof prefix - 1 };

/* Variables that are no keys, without the prefix and in small letters: what docs/gpu.md tells of
 * (tests/lint/check_environment.sh compares them), ... */
static const char *const programs[] = {
    "algo_cache",   "algo_timing", "attention",    "bin_dir",          "cpu",       "cuda_plugin", "cudnn_library",
    "epilogue",     "gpu_grace",   "gpu_timeout",  "host_coordinator", "host_free", "host_memory", "nccl_library",
    "progress_bar", "supervised",  "worker_index", "workers_here"};
/* ... and what ./run and the tests read; a star stands for any end. */
static const char *const tools[] = {"bin",    "build", "case_log",   "emulate*", "fuzz_spec",    "golden",
                                    "hf_out", "long",  "no_install", "stub_*",   "test_presets", "torch_python"};
enum { PROGRAMS = sizeof programs / sizeof *programs, TOOLS = sizeof tools / sizeof *tools };

const char *config_env_name(int index, char out[128])
{
    snprintf(out, 128, "%s%s_%s", prefix, config_keys[index].section, config_keys[index].key);
    for (char *p = out; *p; p++) *p = (char)toupper((unsigned char)*p);
    return out;
}

/* A variable ATOLL_REST=VALUE that is neither a key nor one of those above. rest: in small letters, cut to fit. */
static bool unknown(const char *variable, char rest[128])
{
    char name[128];
    size_t n = strcspn(variable, "=");
    if (n <= PREFIX || strncmp(variable, prefix, PREFIX) != 0) return false;
    for (int i = 0; i < config_keys_count; i++)
        if (strlen(config_env_name(i, name)) == n && !memcmp(name, variable, n)) return false;
    snprintf(rest, 128, "%.*s", (int)(n - PREFIX), variable + PREFIX);
    for (char *p = rest; *p; p++) *p = (char)tolower((unsigned char)*p);
    for (int i = 0; i < PROGRAMS; i++)
        if (!strcmp(rest, programs[i])) return false;
    for (int i = 0; i < TOOLS; i++) {
        size_t len = strcspn(tools[i], "*");
        if (!strncmp(rest, tools[i], len + !tools[i][len])) return false; /* without a star the end counts */
    }
    return true;
}

/* ATOLL_SECTION_ with what is nearly a key of that section: the key; -1: none. What is further away may be somebody
 * else's (ATOLL_COORDINATOR_SERVICE_HOST is what Kubernetes makes of a service's name). */
static int misspelt(const char *rest)
{
    for (int i = 0; i < config_keys_count; i++) {
        const char *section = config_keys[i].section, *key = rest + strlen(section) + 1;
        if (strncmp(rest, section, strlen(section)) != 0 || key[-1] != '_') continue;
        int nearest = config_key_nearest(section, key);
        return 4 * edit_distance(key, config_keys[nearest].key) <= (int)strlen(key) + 3 ? nearest : -1;
    }
    return -1;
}

/* As a flag, or a line of a file: a value that somebody gave and nobody takes would be missed after hours. */
static enum status refuse_misspelt(struct err *err)
{
    for (char **e = environ; *e; e++) {
        char rest[128], name[128];
        if (!unknown(*e, rest) || misspelt(rest) < 0) continue;
        return err_set(err, STATUS_INVALID, "environment, %.*s: there is no such key; the nearest is %s",
                       (int)strcspn(*e, "="), *e, config_env_name(misspelt(rest), name));
    }
    return STATUS_OK;
}

enum status config_env(struct config *config, struct config_sources *sources, struct err *err)
{
    for (int i = 0; i < config_keys_count; i++) {
        char name[128];
        const char *value = getenv(config_env_name(i, name));
        if (!value) continue;
        enum status status = config_value_set(config, i, value, err);
        if (status != STATUS_OK) {
            err_prefix(err, "environment, %s", name);
            return status;
        }
        sources->of[i] = CONFIG_ENV;
    }
    return refuse_misspelt(err);
}

/* What may have been meant: a key without its section, or a name much like this one; "": nothing. */
static const char *meant(const char *rest, char out[128])
{
    char names[CONFIG_KEYS_MAX][64];
    const char *near[CONFIG_KEYS_MAX];
    for (int i = 0; i < config_keys_count; i++) {
        if (!strcmp(config_keys[i].key, rest)) return config_env_name(i, out);
        snprintf(names[i], sizeof names[i], "%s_%s", config_keys[i].section, config_keys[i].key);
        near[i] = names[i];
    }
    const char *best = options_nearest(rest, near, (size_t)config_keys_count);
    if (!best) best = options_nearest(rest, programs, PROGRAMS);
    snprintf(out, 128, "%s%s", best ? prefix : "", best ? best : "");
    for (char *p = out; *p; p++) *p = (char)toupper((unsigned char)*p);
    return out;
}

void config_env_warn(void)
{
    for (char **e = environ; *e; e++) {
        char rest[128], name[128];
        if (!unknown(*e, rest) || misspelt(rest) >= 0) continue;
        bool near = meant(rest, name)[0];
        log_warn("environment: %.*s names nothing here and is ignored%s%s%s", (int)strcspn(*e, "="), *e,
                 near ? "; did you mean " : "", name, near ? "?" : "");
    }
}
