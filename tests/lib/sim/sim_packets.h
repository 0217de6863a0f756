/* Messages on their way through tests/lib/sim_net: packets on the heap, in queues. */
#ifndef TESTS_LIB_SIM_PACKETS_H
#define TESTS_LIB_SIM_PACKETS_H

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

struct sim_packets {
    struct simpacket *head, **tail;
    size_t count;
};

/* An empty queue, which stays where it is. */
void sim_packets_init(struct sim_packets *q);
/* The queue owns the packet; who takes it does then. NULL: it is empty. */
void sim_packets_put(struct sim_packets *q, struct simpacket *p);
struct simpacket *sim_packets_take(struct sim_packets *q);
void sim_packets_clear(struct sim_packets *q);
/* For mem_free. */
struct simpacket *simpacket_copy(const struct simpacket *p);

#endif
