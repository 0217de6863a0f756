/* Description of the machine in a benchmark's JSON. */
#ifndef TESTS_BENCH_MACHINE_H
#define TESTS_BENCH_MACHINE_H

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Returns {"cpu": "AMD EPYC ...", "cores": 2}. The caller owns it. NULL: out of memory. */
static inline json_t *machine_json(void)
{
    char line[256], model[200] = "unknown";
    FILE *f = fopen("/proc/cpuinfo", "r");
    int cores = 0;
    while (f && fgets(line, sizeof line, f)) {
        cores += !strncmp(line, "processor", 9);
        const char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10))
            snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
    }
    if (f) fclose(f);
    return json_pack("{s:s,s:i}", "cpu", model, "cores", cores);
}

#endif
