/* A slow link on one machine: a TCP relay with rates, delay, jitter and outages. It runs in user space without
 * privileges.
 * - All connections through one relay share its rates, like one access line; they take turns.
 * - Each direction is a separate line (cli/link/link_line.h). Bytes of a connection never overtake each other.
 * - It models neither packet loss nor TCP's own slow start over the long path. */
#ifndef CLI_LINK_RELAY_H
#define CLI_LINK_RELAY_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/config/link_spec.h"

struct relay_options {
    const char *listen;    /* HOST:PORT; port 0: any free port */
    const char *to;        /* HOST:PORT; each name is resolved once, at the start */
    struct link_spec spec; /* up: from the dialler to `to`; outages count from relay_run */
    int control_fd;        /* commands, one per line; -1: none */
};

struct relay_totals {
    uint64_t connections, up, down; /* up, down: delivered bytes */
    uint64_t flips;
};

enum { RELAY_ADDRESS_MAX = 64 };

struct relay;

/* Listens. Writes the numeric HOST:PORT to address. INVALID: a wrong address; IO. */
enum status relay_create(struct relay **relay_p, const struct relay_options *options, char address[RELAY_ADDRESS_MAX],
                         struct err *err) MUST_CHECK;
/* Relays until stopped by `quit` or a signal (common/os/interrupt.h). Commands:
 *     link SPEC             rates, delay and jitter from now on; outages from now on, too
 *     stall [SECONDS] | go  no byte moves, connections stay open
 *     cut                   reset every connection
 *     down | up             cut, and refuse new connections; accept again
 *     flip BYTES            flip one bit in so many bytes, on average; 0: none
 *     quit */
enum status relay_run(struct relay *relay, struct err *err) MUST_CHECK;
/* Any thread may ask while the relay runs. */
struct relay_totals relay_totals(const struct relay *relay);
void relay_destroy(struct relay *relay);

#endif
