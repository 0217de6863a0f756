/* Numbers as people read them: three digits and a unit. tests/golden/units.tsv is the table of examples, also for
 * python/atoll/units.py. NaN gives "-": unknown. Below zero counts as zero.
 *
 * The text is the value of the call, so it can be an argument of printf: units_bytes(n).text */
#ifndef COMMON_UNITS_H
#define COMMON_UNITS_H

#include <stdint.h>

struct units_text {
    char text[32];
};

/* "73.3 ms", "5.25 s", "7 min 46 s", "6 h 16 min", "3 d 4 h". Infinity gives "∞". */
struct units_text units_duration(double seconds);
/* The same of microseconds. */
struct units_text units_us(uint64_t us);
/* The same without fractions of a second, for texts that are written again and again: "0 s", "5 s". */
struct units_text units_whole_seconds(double seconds);
/* "999 B", "1.54 kB", "202 MB": decimal units. */
struct units_text units_bytes(double bytes);
/* Tokens, parameters: "280 k", "2.95 M". */
struct units_text units_count(double count);
/* Of a fraction: "0.42 %", "8 %". Only a whole gives "100 %": 0.996 gives "99.6 %". */
struct units_text units_percent(double fraction);

#endif
