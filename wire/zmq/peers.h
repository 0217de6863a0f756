/* Connections of a listener: a table of ZeroMQ routing ids and peer numbers.
 *
 * The size is fixed and numbers are never reused. When the table is full, the least recently heard peer is forgotten,
 * so unknown clients that come and go use no memory. One thread owns a table. */
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
    uint8_t key[WIRE_KEY]; /* public key of the connection */
    int fd;                /* descriptor of the connection that the last message came from; -1: unknown */
    uint8_t lane;          /* enum wire_lane */
    uint16_t next;         /* in its bucket or in the free list; PEERS_MAX: none */
};

struct peers {
    struct peer table[PEERS_MAX];
    uint16_t buckets[PEERS_MAX];
    uint16_t free;
    uint64_t ticks, numbers;
};

void peer_id_make(struct peer_id *id, enum wire_lane lane, const uint8_t uuid[WIRE_UUID], uint64_t nonce);

void peers_init(struct peers *peers);
/* The peer with this routing id and key, added if it is new, marked as heard now. The same id with another key is
 * another peer, and the earlier one is forgotten. NULL when the bytes are not an id of peer_id_make. */
struct peer *peers_hear(struct peers *peers, const uint8_t *id, size_t size, const uint8_t key[WIRE_KEY]);
/* NULL when the peer was forgotten or never existed. */
struct peer *peers_find(struct peers *peers, uint64_t number);
/* Index in the table, below PEERS_MAX; unique until this peer is forgotten. */
unsigned peers_slot(const struct peers *peers, const struct peer *peer);
void peers_forget(struct peers *peers, struct peer *peer);

#endif
