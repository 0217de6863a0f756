/* Time limits from measured durations: median + k * MAD (median absolute deviation), between a floor and a ceiling.
 * A limit carries the numbers behind it, for log lines. Pure. */
#ifndef COORDINATOR_DEADLINE_H
#define COORDINATOR_DEADLINE_H

#include <stddef.h>
#include <stdint.h>

enum { DEADLINE_SAMPLES = 64 };

/* The latest DEADLINE_SAMPLES durations. Zeroed: no durations. */
struct deadline {
    uint64_t samples_us[DEADLINE_SAMPLES]; /* ring */
    uint64_t sorted_us[DEADLINE_SAMPLES];  /* the same, ascending */
    uint32_t n, next;
    uint64_t median_us, mad_us; /* of the samples */
};

struct deadline_limit {
    uint64_t limit_us;
    uint64_t median_us, mad_us;
    double k;
    uint32_t n; /* durations behind the limit; 0: the limit is the caller's default */
};

void deadline_add(struct deadline *d, uint64_t duration_us);
/* median + k * MAD, clamped to [floor, ceiling]. With fewer than 3 durations: unknown_us, clamped the same way. */
struct deadline_limit deadline_of(const struct deadline *d, double k, uint64_t floor_us, uint64_t ceiling_us,
                                  uint64_t unknown_us);
/* Writes the limit and its numbers for log lines; returns out. */
const char *deadline_text(const struct deadline_limit *limit, char *out, size_t cap);

#endif
