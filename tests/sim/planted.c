/* Runs random schedules on libraries with one planted bug (tests/sim/planted.cmake) until the checker detects it.
 * Exit status: 1 if the checker detects the bug, like a test that fails; 0 if it misses the bug. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/sim/sim_random.h"

#ifndef FIRST_SEED
#define FIRST_SEED 1
#endif

enum { RUNS = 4000, BEATS_MIN = 300 };

int main(void)
{
    double updates = 0, beats = 0; /* outer.grace auto */
    for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + RUNS; seed++) {
        struct sim_random_plan plan;
        struct sim_random_outcome stormy, calm;
        char found[512] = "the run did not end";
        FILE *explain = fmemopen(found, sizeof(found), "w");
        if (!explain || sim_random_run(seed, 0, explain, &plan, &stormy) != STATUS_OK) return 0;
        fclose(explain);
        bool noticed = !stormy.ended;
        if (!noticed && plan.comparable && !stormy.checks.evicted && !stormy.checks.left) {
            if (sim_random_run(seed, SIM_RANDOM_CALM, NULL, &plan, &calm) != STATUS_OK) return 0;
            noticed = !calm.ended || calm.result.theta_hash != stormy.result.theta_hash;
            snprintf(found, sizeof(found), "x\ntheta differs from the undisturbed run's\n");
        }
        if (!noticed && plan.updates > 0) {
            if (sim_random_run(seed, SIM_RANDOM_CALM, NULL, &plan, &calm) != STATUS_OK) return 0;
            updates += (double)calm.checks.updates;
            beats += plan.updates;
            noticed = beats > BEATS_MIN && updates > SIM_RANDOM_UPDATES_MOST * beats;
            snprintf(found, sizeof found, "x\n%.0f updates instead of %.0f\n", updates, beats);
        }
        if (!noticed) continue;
        char *line = strchr(found, '\n'); /* the first line is the plan */
        line = line ? line + 1 : found;
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "no invariant broken") == 0) line = "the run does not end";
        printf("seed %4llu: %s\n", (unsigned long long)seed, line);
        return 1;
    }
    return 0;
}
