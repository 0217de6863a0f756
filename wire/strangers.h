/* Counts refused connections and logs them at most once a minute: the first at once, later ones with their number.
 *
 * One thread owns a counter. */
#ifndef WIRE_STRANGERS_H
#define WIRE_STRANGERS_H

#include <stdint.h>

/* Zeroed except for `reason`: none counted. */
struct strangers {
    const char *reason; /* end of the line, for example "unknown key" */
    uint64_t count;     /* since the last line */
    uint64_t next_us;   /* earliest time of the next line */
    char address[64];   /* of the newest connection */
};

/* Count one connection. Logs it if a line is due. */
void strangers_add(struct strangers *s, const char *address, uint64_t now_us);
/* Log the connections that were counted since the last line, if a line is due. */
void strangers_log(struct strangers *s, uint64_t now_us);

#endif
