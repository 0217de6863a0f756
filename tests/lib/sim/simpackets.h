/* Messages on their way through tests/lib/simnet: packets on the heap, in queues. */
#ifndef TESTS_LIB_SIMPACKETS_H
#define TESTS_LIB_SIMPACKETS_H

#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"

struct simpacket {
    struct simpacket *next;
    uint64_t arrival_us; /* UINT64_MAX: waits for a connection */
    uint64_t peer;       /* the listener's id of the connection it came by */
    int client;
    enum wire_lane lane;
    size_t size;
    uint8_t data[];
};

struct simpackets {
    struct simpacket *head, **tail;
    size_t count;
};

/* An empty queue, which stays where it is. */
void simpackets_init(struct simpackets *q);
/* The queue owns the packet; who takes it does then. NULL: it is empty. */
void simpackets_put(struct simpackets *q, struct simpacket *p);
struct simpacket *simpackets_take(struct simpackets *q);
void simpackets_clear(struct simpackets *q);
/* For mem_free. */
struct simpacket *simpacket_copy(const struct simpacket *p);

#endif
