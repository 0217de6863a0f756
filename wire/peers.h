/* Who is connected to a listener: ZeroMQ routing ids <-> peer numbers. Fixed size; numbers are never reused. When the
 * table is full the peer unheard for longest is forgotten, so strangers that come and go cost nothing. */
#ifndef WIRE_PEERS_H
#define WIRE_PEERS_H

#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"

enum { PEER_ID_BYTES = 29, PEERS_MAX = 4096 };

/* A dialler's routing id: "ATL1", lane, uuid, nonce of the process. */
struct peer_id {
    uint8_t bytes[PEER_ID_BYTES];
};

struct peer {
    uint64_t number; /* 0: free */
    uint64_t heard;  /* tick of the last message */
    struct peer_id id;
    uint8_t lane;  /* enum wire_lane */
    uint16_t next; /* in its bucket or in the free list; PEERS_MAX: none */
};

struct peers {
    struct peer table[PEERS_MAX];
    uint16_t buckets[PEERS_MAX];
    uint16_t free;
    uint64_t ticks, numbers;
};

void peer_id_make(struct peer_id *id, enum wire_lane lane, const uint8_t uuid[WIRE_UUID], uint64_t nonce);

void peers_init(struct peers *peers);
/* The peer with this routing id, new or known; marks it heard. NULL when the bytes are not an id of peer_id_make. */
struct peer *peers_hear(struct peers *peers, const uint8_t *id, size_t size);
/* NULL when forgotten or never there. */
struct peer *peers_find(struct peers *peers, uint64_t number);
/* Its place in the table, below PEERS_MAX: nobody else has it until this one is forgotten. */
unsigned peers_slot(const struct peers *peers, const struct peer *peer);
void peers_forget(struct peers *peers, struct peer *peer);

#endif
