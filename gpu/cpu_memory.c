#include "gpu/cpu_memory.h"

#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 256 };

/* "MemAvailable:   12345 kB": what could be given without swapping, caches included. */
static void of_machine(uint64_t *free_p, uint64_t *total_p)
{
    char line[LINE_BYTES];
    unsigned long long kib;
    FILE *f = fopen("/proc/meminfo", "re");
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

void cpu_memory(uint64_t *free_p, uint64_t *total_p)
{
    /* Of the group at the root of what this process sees: in a container its own. Version 2, then 1. */
    static const char *const limits[][3] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat"}};
    *free_p = *total_p = 0;
    of_machine(free_p, total_p);
    for (int i = 0; i < 2; i++) {
        uint64_t limit = number_in(limits[i][0]), used = number_in(limits[i][1]);
        if (!limit || !*total_p || limit >= *total_p) continue; /* none, or one beyond the machine */
        uint64_t files = files_in(limits[i][2]);
        used -= files < used ? files : used;
        uint64_t left = limit > used ? limit - used : 0;
        *total_p = limit;
        if (left < *free_p) *free_p = left;
    }
}
