#include "common/os/host_memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/os/environment.h"

enum { LINE_BYTES = 256, GROUP_BYTES = 1024, PATH_BYTES = GROUP_BYTES + 256 };

/* "MemAvailable:   12345 kB": what could be given without swapping, caches included. */
static void of_machine(const char *root, uint64_t *free_p, uint64_t *total_p)
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

/* 0: there is no such file, or no number in it ("max"). */
static uint64_t number_in(const char *path)
{
    unsigned long long value = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%llu", &value) != 1) value = 0;
    (void)fclose(f);
    return (uint64_t)value;
}

/* Bytes of a group's memory.stat that hold files and can be dropped: its usage counts them, and after a while of
 * reading shards they fill it. */
static uint64_t files_in(const char *path)
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

/* Where a version of control groups is mounted, and what its files are called. */
struct kind {
    const char *mount, *limit, *used;
};

/* One group: its limit counts where it is less than the `machine` has, and what is left of it also where a group
 * inside has a smaller one. */
static void of_group(const struct kind *kind, const char *root, const char *group, uint64_t machine, uint64_t *free_p,
                     uint64_t *total_p)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    snprintf(folder, sizeof folder, "%s%s%s", root, kind->mount, group);
    snprintf(path, sizeof path, "%s/%s", folder, kind->limit);
    uint64_t limit = number_in(path);
    if (!limit || limit >= machine) return;
    snprintf(path, sizeof path, "%s/%s", folder, kind->used);
    uint64_t used = number_in(path);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t files = files_in(path);
    used -= files < used ? files : used;
    uint64_t left = limit > used ? limit - used : 0;
    assert(left <= limit);
    if (limit < *total_p) *total_p = limit;
    if (left < *free_p) *free_p = left;
}

/* Of the group and of all that it lies in: each has a limit of its own. In a container the path may be that of the
 * host, of which only the last part is to be seen, at the root. */
static void of_groups(const struct kind *kind, const char *root, char *group, uint64_t machine, uint64_t *free_p,
                      uint64_t *total_p)
{
    for (;;) {
        size_t length = strlen(group);
        while (length && group[length - 1] == '/') group[--length] = '\0';
        of_group(kind, root, group, machine, free_p, total_p);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* This process's group of version 2 ("0::/PATH"), or of the memory controller of version 1 ("4:memory:/PATH", perhaps
 * "4:cpu,memory:/PATH"); "": the root, also where nothing is known. */
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

static enum status told_bytes(uint64_t *bytes, struct err *err)
{
    return environment_number(HOST_MEMORY_ENV, "bytes", 0, UINT64_MAX, bytes, err);
}

enum status host_memory_check_env(struct err *err)
{
    uint64_t bytes;
    return told_bytes(&bytes, err);
}

/* What is in use stays so. At least a byte is free: 0 is "not known". */
static void as_told(uint64_t *free_p, uint64_t *total_p)
{
    uint64_t told = 0, used = *total_p - *free_p;
    if (told_bytes(&told, NULL) != STATUS_OK || !told) return;
    *free_p = told > used ? told - used : 1;
    *total_p = told;
}

void host_memory_in(const char *root, uint64_t *free_p, uint64_t *total_p)
{
    static const struct kind kinds[] = {{"/sys/fs/cgroup", "memory.max", "memory.current"},
                                        {"/sys/fs/cgroup/unified", "memory.max", "memory.current"},
                                        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"}};
    char group[GROUP_BYTES];
    *free_p = *total_p = 0;
    of_machine(root, free_p, total_p);
    const uint64_t machine = *total_p;
    for (int i = 0; i < 3; i++) {
        group_of(root, i < 2, group);
        of_groups(&kinds[i], root, group, machine, free_p, total_p);
    }
    as_told(free_p, total_p);
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
