/* Configuration from environment variables, and warnings about unknown ATOLL_ variables. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/text.h"
#include "common/config/config_keys.h"
#include "common/config/options.h"

static const char prefix[] = "ATOLL_";
enum { PREFIX = sizeof prefix - 1 };

/* Variables that are not keys, without the prefix and in lower case: those of docs/gpu.md
 * (tests/lint/check_environment.sh compares the lists), ... */
static const char *const programs[] = {
    "algo_cache",   "algo_timing",  "attention",        "bin_dir",      "cpu",         "cuda_plugin", "cudnn_library",
    "gpu_grace",    "gpu_timeout",  "host_coordinator", "host_free",    "host_memory", "join",        "logged",
    "nccl_library", "progress_bar", "supervised",       "worker_index", "workers_here"};
/* ... and those of ./run, the tests and the Python package; a star matches any ending. */
static const char *const tools[] = {"bin", "build", "case_log",   "emulate*", "fuzz_spec",    "golden",      "hf_out",
                                    "lib", "long",  "no_install", "stub_*",   "test_presets", "torch_python"};
enum { PROGRAMS = sizeof programs / sizeof *programs, TOOLS = sizeof tools / sizeof *tools };

static const char *env_name(const char *section, const char *key, char out[128])
{
    snprintf(out, 128, "%s%s_%s", prefix, section, key);
    for (char *p = out; *p; p++) *p = (char)toupper((unsigned char)*p);
    return out;
}

const char *config_env_name(int index, char out[128])
{
    return env_name(config_keys[index].section, config_keys[index].key, out);
}

static const char *removed_name(int index, char out[128])
{
    return env_name(config_removed[index].section, config_removed[index].key, out);
}

/* True for a variable ATOLL_REST=VALUE that is neither a key, now or earlier, nor in the lists above. rest: lower case,
 * cut to fit. */
static bool unknown(const char *variable, char rest[128])
{
    char name[128];
    size_t n = strcspn(variable, "=");
    if (n <= PREFIX || strncmp(variable, prefix, PREFIX) != 0) return false;
    for (int i = 0; i < config_keys_count; i++)
        if (strlen(config_env_name(i, name)) == n && !memcmp(name, variable, n)) return false;
    for (int i = 0; i < config_removed_count; i++)
        if (strlen(removed_name(i, name)) == n && !memcmp(name, variable, n)) return false;
    snprintf(rest, 128, "%.*s", (int)(n - PREFIX), variable + PREFIX);
    for (char *p = rest; *p; p++) *p = (char)tolower((unsigned char)*p);
    for (int i = 0; i < PROGRAMS; i++)
        if (!strcmp(rest, programs[i])) return false;
    for (int i = 0; i < TOOLS; i++) {
        size_t len = strcspn(tools[i], "*");
        if (!strncmp(rest, tools[i], len + !tools[i][len]))
            return false; /* without a star, compare the terminator, too */
    }
    return true;
}

/* The key that ATOLL_SECTION_REST misspells, or -1. A name farther from every key may belong to other software:
 * Kubernetes sets ATOLL_COORDINATOR_SERVICE_HOST for a service named atoll-coordinator. */
static int misspelt(const char *rest)
{
    for (int i = 0; i < config_keys_count; i++) {
        const char *section = config_keys[i].section, *key = rest + strlen(section) + 1;
        if (strncmp(rest, section, strlen(section)) != 0 || key[-1] != '_') continue;
        int nearest = config_key_nearest(section, key);
        return 4 * text_distance(key, config_keys[nearest].key) <= (int)strlen(key) + 3 ? nearest : -1;
    }
    return -1;
}

/* A misspelt variable is an error, like a misspelt flag or key: an ignored value would be noticed only after hours. */
static enum status refuse_misspelt(struct err *err)
{
    for (char **e = environ; *e; e++) {
        char rest[128], name[128];
        if (!unknown(*e, rest) || misspelt(rest) < 0) continue;
        return err_set(err, STATUS_INVALID, "environment, %.*s: unknown key; the nearest is %s", (int)strcspn(*e, "="),
                       *e, config_env_name(misspelt(rest), name));
    }
    return STATUS_OK;
}

static enum status refuse_removed(struct err *err)
{
    for (int i = 0; i < config_removed_count; i++) {
        char name[128];
        const char *value = getenv(removed_name(i, name));
        if (value && config_removed_check(&config_removed[i], value, err) != STATUS_OK)
            return err_prefix(err, "environment, %s", name);
    }
    return STATUS_OK;
}

enum status config_env(struct config *config, struct config_sources *sources, struct err *err)
{
    TRY(refuse_removed(err));
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

/* The variable that the user probably meant: a key without its section, or a similar name; "": none. */
static const char *suggestion(const char *rest, char out[128])
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
        bool near = suggestion(rest, name)[0];
        log_warn("environment: ignored unknown variable %.*s%s%s%s", (int)strcspn(*e, "="), *e,
                 near ? "; did you mean " : "", name, near ? "?" : "");
    }
}
