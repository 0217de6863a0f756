#include "common/os/host_memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/os/environment.h"

enum { LINE_BYTES = 256, GROUP_BYTES = 1024, PATH_BYTES = GROUP_BYTES + 256 };

/* "MemAvailable:   12345 kB": memory that is available without swapping, including caches that can be dropped. */
static void machine_memory(const char *root, uint64_t *free_p, uint64_t *total_p)
{
    char line[LINE_BYTES], path[PATH_BYTES];
    unsigned long long kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu", &kib) == 1) *total_p = (uint64_t)kib << 10;
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) *free_p = (uint64_t)kib << 10;
    }
    (void)fclose(f);
}

/* 0: the file is missing or holds no number ("max"). */
static uint64_t read_number(const char *path)
{
    unsigned long long value = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%llu", &value) != 1) value = 0;
    (void)fclose(f);
    return (uint64_t)value;
}

/* Page cache of a group, from its memory.stat. The group's usage includes it, and reading shards fills it, but the
 * kernel drops it on demand. */
static uint64_t read_page_cache(const char *path)
{
    char line[LINE_BYTES];
    unsigned long long bytes;
    uint64_t sum = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "inactive_file %llu", &bytes) == 1 || sscanf(line, "active_file %llu", &bytes) == 1)
            sum += bytes;
    (void)fclose(f);
    return sum;
}

/* Mount point and file names of a version of control groups. */
struct cgroup_version {
    const char *mount, *limit, *used;
};

/* Apply the limits of one group. A limit below the memory of the machine bounds the total. The remainder of an outer
 * group bounds the free memory even if an inner group has a smaller limit. */
static void apply_group(const struct cgroup_version *version, const char *root, const char *group, uint64_t machine,
                        uint64_t *free_p, uint64_t *total_p)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    snprintf(folder, sizeof folder, "%s%s%s", root, version->mount, group);
    snprintf(path, sizeof path, "%s/%s", folder, version->limit);
    uint64_t limit = read_number(path);
    if (!limit || limit >= machine) return;
    snprintf(path, sizeof path, "%s/%s", folder, version->used);
    uint64_t used = read_number(path);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t cache = read_page_cache(path);
    used -= cache < used ? cache : used;
    uint64_t left = limit > used ? limit - used : 0;
    assert(left <= limit);
    if (limit < *total_p) *total_p = limit;
    if (left < *free_p) *free_p = left;
}

/* Apply the limits of the group and of all groups around it. A container may show the path of the host although only
 * its own root is visible: paths that do not exist are skipped. */
static void apply_groups(const struct cgroup_version *version, const char *root, char *group, uint64_t machine,
                         uint64_t *free_p, uint64_t *total_p)
{
    for (;;) {
        size_t length = strlen(group);
        while (length && group[length - 1] == '/') group[--length] = '\0';
        apply_group(version, root, group, machine, free_p, total_p);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* This process's group: of version 2 ("0::/PATH") if `second`, else of the memory controller of version 1
 * ("4:memory:/PATH" or "4:cpu,memory:/PATH"). "": the root, or unknown. */
static void group_of(const char *root, bool second, char group[GROUP_BYTES])
{
    char line[GROUP_BYTES], path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    group[0] = '\0';
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL;
        if (!at) continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        bool memory = false;
        char *rest = names + 1;
        for (char *name = strsep(&rest, ","); name; name = strsep(&rest, ",")) memory |= !strcmp(name, "memory");
        if (second ? !strncmp(line, "0:", 2) && !names[1] : memory) snprintf(group, GROUP_BYTES, "%s", at);
    }
    (void)fclose(f);
}

static enum status override_bytes(uint64_t *bytes, struct err *err)
{
    return environment_number(HOST_MEMORY_ENV, "bytes", 0, UINT64_MAX, bytes, err);
}

enum status host_memory_check_env(struct err *err)
{
    uint64_t bytes;
    return override_bytes(&bytes, err);
}

/* The override changes the total; the used bytes stay. At least one byte is free, because 0 means "unknown". */
static void apply_override(uint64_t *free_p, uint64_t *total_p)
{
    uint64_t total = 0, used = *total_p - *free_p;
    if (override_bytes(&total, NULL) != STATUS_OK || !total) return;
    *free_p = total > used ? total - used : 1;
    *total_p = total;
}

void host_memory_in(const char *root, uint64_t *free_p, uint64_t *total_p)
{
    static const struct cgroup_version versions[] = {
        {"/sys/fs/cgroup", "memory.max", "memory.current"},
        {"/sys/fs/cgroup/unified", "memory.max", "memory.current"},
        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"}};
    char group[GROUP_BYTES];
    *free_p = *total_p = 0;
    machine_memory(root, free_p, total_p);
    const uint64_t machine = *total_p;
    for (int i = 0; i < 3; i++) {
        group_of(root, i < 2, group);
        apply_groups(&versions[i], root, group, machine, free_p, total_p);
    }
    apply_override(free_p, total_p);
}

void host_memory(uint64_t *free_p, uint64_t *total_p)
{
    host_memory_in("", free_p, total_p);
}

const char *memory_text(uint64_t bytes, char out[MEMORY_TEXT_MAX])
{
    if (bytes >= 1 << 30)
        snprintf(out, MEMORY_TEXT_MAX, "%.2f GiB", (double)bytes / (1 << 30));
    else if (bytes >= 1 << 20)
        snprintf(out, MEMORY_TEXT_MAX, "%.1f MiB", (double)bytes / (1 << 20));
    else
        snprintf(out, MEMORY_TEXT_MAX, "%" PRIu64 " bytes", bytes);
    return out;
}
