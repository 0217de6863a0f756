/* Time limits from measurements: median + k * MAD (median absolute deviation) of what was seen, between a floor and a
 * ceiling. Nobody has to choose a time limit, and each one can say where it came from. Pure. */
#ifndef COORDINATOR_DEADLINE_H
#define COORDINATOR_DEADLINE_H

#include <stddef.h>
#include <stdint.h>

enum { DEADLINE_SAMPLES = 64 };

/* The latest DEADLINE_SAMPLES durations. Zeroed: nothing seen. */
struct deadline {
    uint64_t samples_us[DEADLINE_SAMPLES]; /* ring */
    uint32_t n, next;
};

struct deadline_limit {
    uint64_t limit_us;
    uint64_t median_us, mad_us;
    double k;
    uint32_t n; /* measurements it is made of; 0: limit is the caller's guess */
};

void deadline_add(struct deadline *d, uint64_t duration_us);
/* median + k * MAD within [floor, ceiling]; with fewer than 3 measurements `unknown` within the same bounds. */
struct deadline_limit deadline_of(const struct deadline *d, double k, uint64_t floor_us, uint64_t ceiling_us,
                                  uint64_t unknown_us);
/* "12.3 s = median 8.1 s + 4 x MAD 0.9 s of 40 measured", for log lines. Returns out. */
const char *deadline_text(const struct deadline_limit *limit, char *out, size_t cap);

#endif
