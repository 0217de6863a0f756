/* Runs random schedules on libraries with one planted bug (tests/sim/planted.cmake) until the checker notices.
 * Exit 0: noticed; 1: the bug got through. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/simrandom.h"

enum { RUNS = 4000 };

int main(int argc, char **argv)
{
    const char *bug = argc > 1 ? argv[1] : "bug";
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        struct simrandom_plan plan;
        struct simrandom_outcome stormy, calm;
        char found[512] = "the run did not end";
        FILE *explain = fmemopen(found, sizeof(found), "w");
        if (!explain || simrandom_run(seed, false, false, explain, &plan, &stormy) != STATUS_OK) return 1;
        fclose(explain);
        bool noticed = !stormy.ended;
        if (!noticed && plan.comparable && !stormy.checks.evicted && !stormy.checks.left) {
            if (simrandom_run(seed, true, false, NULL, &plan, &calm) != STATUS_OK) return 1;
            noticed = !calm.ended || calm.result.theta_hash != stormy.result.theta_hash;
            snprintf(found, sizeof(found), "x\ntheta differs from the undisturbed run's\n");
        }
        if (!noticed) continue;
        char *line = strchr(found, '\n'); /* the first line is the plan */
        line = line ? line + 1 : found;
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "no breach") == 0) line = "the run does not end";
        printf("%-36s seed %4llu: %s\n", bug, (unsigned long long)seed, line);
        return 0;
    }
    printf("%-36s NOT NOTICED in %d runs\n", bug, RUNS);
    return 1;
}
