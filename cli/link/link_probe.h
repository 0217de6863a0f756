/* Measures the link to a coordinator: round trip, and goodput in both directions, in about 2 s each.
 *
 * - Round trip: one small PROBE after the other, PROBE_TRIPS times, over a long path fewer.
 * - Goodput: more and larger PROBEs are under way until they wait for each other. After this start the bytes of one
 *   second count, without the headers of the messages. */
#ifndef CLI_LINK_PROBE_H
#define CLI_LINK_PROBE_H

#include "common/config/link_spec.h"
#include "wire/transport.h"

enum { PROBE_TRIPS = 10 };

struct link_probe {
    int trips;                  /* measured */
    double least_ms, median_ms; /* round trip */
    double up_mbit, down_mbit;
};

/* Measures over a transport to the coordinator, which may take patience_us and 8 round trips to connect. CLOSED: no
 * answer; LIMIT: the coordinator rests after other probes; REFUSED. */
enum status link_probe_measure(struct link_probe *result, struct transport *t, uint64_t patience_us,
                               struct err *err) MUST_CHECK;
/* Dials the coordinator that a user names (link_target_find) and measures. One line in err says why it cannot. */
enum status link_probe_target(struct link_probe *result, const char *given, struct err *err) MUST_CHECK;
/* The measured link, with three digits. */
struct link_spec link_probe_spec(const struct link_probe *result);

#endif
