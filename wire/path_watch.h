/* Notices a path that drops large packets (an MTU black hole): small messages pass in both directions, and the bytes of
 * a transfer do not. Pure.
 *
 * A slow path is none: its bytes move. Neither is an outage: then no message passes. */
#ifndef WIRE_PATH_WATCH_H
#define WIRE_PATH_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#define PATH_WATCH_TEXT "probably drops large packets (MTU)"
#define PATH_WATCH_ADVICE                                                                                              \
    "lower the MTU of the network interface on one side, for example: ip link set dev INTERFACE mtu 1280"

/* STUCK: without progress for so long. GAP: the time without a small message that ends the watch; ZeroMQ opens a broken
 * connection again within it. SMALL: handshakes and small messages are no progress. */
enum { PATH_STUCK_US = 30000000, PATH_GAP_US = 10000000, PATH_SMALL = 4096 };

/* Zeroed: nothing was seen. */
struct path_watch {
    uint64_t seen;            /* the count at the last call, */
    bool waited;              /* and whether bytes were on their way then */
    uint64_t bytes, since_us; /* the count at the last progress, and its time */
    uint64_t waits_us;        /* when bytes were last on their way */
    uint64_t heard_us;        /* when the last small message arrived */
    bool stuck;               /* the path drops large packets */
};

/* Call it with each heartbeat, or each answer to one. `waits`: bytes are on their way. `bytes`: how many have arrived
 * on the present connection, as the kernel counts. Returns whether the path drops large packets. */
bool path_watch(struct path_watch *w, bool waits, uint64_t bytes, uint64_t now_us);
/* The same while there is no connection whose bytes count: the path stays as it is. */
bool path_watch_unknown(struct path_watch *w, uint64_t now_us);

#endif
