/* A network link as text, for the relay, the plan and the comparison: rates, delay, jitter and outages.
 *
 * A spec is `none` or words joined by commas, in any order; spaces around a word are ignored:
 *     100mbit           rate of both directions; units kbit, mbit, gbit (10^3, 10^6, 10^9 bits a second)
 *     up=20mbit         rate from the worker to the coordinator
 *     down=100mbit      rate from the coordinator to the worker
 *     rtt=50ms          round trip without load, half of it in each direction; units ms, s
 *     jitter=5ms        additional delay of each direction, uniform between 0 and this
 *     outage=60s+10s    no byte moves from 60 s after the start of the link, for 10 s; may repeat
 * A spec for each worker is a list joined by semicolons. */
#ifndef COMMON_LINK_SPEC_H
#define COMMON_LINK_SPEC_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum { LINK_OUTAGES_MAX = 16, LINK_SPEC_MAX = 1024 }; /* LINK_SPEC_MAX: bytes of the canonical text with its NUL */

struct link_spec {
    double up_mbit, down_mbit; /* 10^6 bits a second; 0: no limit */
    double delay_ms;           /* one way */
    double jitter_ms;
    struct link_outage {
        double start_s, seconds;
    } outages[LINK_OUTAGES_MAX]; /* [n_outages], by start, disjoint */
    size_t n_outages;
};

/* Parses one spec. INVALID: err has one line, which begins with the wrong word; *spec is unspecified. */
enum status link_spec_parse(struct link_spec *spec, const char *text, struct err *err) MUST_CHECK;
/* Parses a list for n workers to specs[n]; one spec holds for all. INVALID, also for another number of specs. */
enum status link_specs_parse(struct link_spec *specs, size_t n, const char *text, struct err *err) MUST_CHECK;
/* Writes the canonical text, in mbit, ms for rtt and jitter, s for outages, with at most 9 decimals. Returns out. */
const char *link_spec_print(const struct link_spec *spec, char out[LINK_SPEC_MAX]);
/* True for `none`: the link changes nothing. */
bool link_spec_is_none(const struct link_spec *spec);

#endif
