/* The packets of tests/lib/sim/sim_net.h: messages on the heap, in queues. */
#ifndef TESTS_LIB_SIM_PACKETS_H
#define TESTS_LIB_SIM_PACKETS_H

#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"

struct sim_packet {
    struct sim_packet *next;
    uint64_t arrival_us; /* UINT64_MAX: waits for a connection */
    uint64_t peer;       /* the listener's id of the connection that carried it */
    int client;
    enum wire_lane lane;
    size_t size;
    uint8_t data[];
};

struct sim_packets {
    struct sim_packet *head, **tail;
    size_t count;
};

/* Initialize an empty queue, which must stay at this address. */
void sim_packets_init(struct sim_packets *q);
/* put passes the packet to the queue; take passes it to the caller, NULL if the queue is empty. */
void sim_packets_put(struct sim_packets *q, struct sim_packet *p);
struct sim_packet *sim_packets_take(struct sim_packets *q);
void sim_packets_clear(struct sim_packets *q);
/* The caller frees the copy with mem_free. */
struct sim_packet *sim_packet_copy(const struct sim_packet *p);

#endif
