#include "wire/zmq/peers.h"

#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/config/config.h"
#include "wire/frame.h"

_Static_assert(2 * CONFIG_WORKERS_MAX <= PEERS_MAX, "two connections of each worker");
_Static_assert(2 * CONFIG_WORKERS_MAX <= WIRE_NAMED_MAX, "deltas of all workers, and of as many workers that left");

static uint16_t *bucket_of(struct peers *peers, const uint8_t id[PEER_ID_BYTES])
{
    return &peers->buckets[hash64(id, PEER_ID_BYTES) % PEERS_MAX];
}

void peer_id_make(struct peer_id *id, enum wire_lane lane, const uint8_t uuid[WIRE_UUID], uint64_t nonce)
{
    struct writer w = writer_of(id->bytes, sizeof id->bytes);
    put_u32(&w, FRAME_MAGIC);
    put_u8(&w, (uint8_t)lane);
    put_bytes(&w, uuid, WIRE_UUID);
    put_u64(&w, nonce);
    assert(!w.bad && w.pos == PEER_ID_BYTES);
}

void peers_init(struct peers *peers)
{
    memset(peers, 0, sizeof *peers);
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        peers->buckets[i] = PEERS_MAX;
        peers->table[i].next = (uint16_t)(i + 1);
    }
}

unsigned peers_slot(const struct peers *peers, const struct peer *peer)
{
    assert(peer >= peers->table && peer < peers->table + PEERS_MAX);
    return (unsigned)(peer - peers->table);
}

void peers_forget(struct peers *peers, struct peer *peer)
{
    assert(peer->number);
    uint16_t index = (uint16_t)peers_slot(peers, peer);
    uint16_t *link = bucket_of(peers, peer->id.bytes);
    while (*link != index) {
        assert(*link < PEERS_MAX); /* a peer is in the bucket of its id */
        link = &peers->table[*link].next;
    }
    *link = peer->next;
    peer->number = 0;
    peer->next = peers->free;
    peers->free = index;
}

static struct peer *least_recently_heard(struct peers *peers)
{
    struct peer *oldest = &peers->table[0];
    for (struct peer *p = peers->table; p < peers->table + PEERS_MAX; p++)
        if (p->heard < oldest->heard) oldest = p;
    return oldest;
}

struct peer *peers_hear(struct peers *peers, const uint8_t *id, size_t size, const uint8_t key[WIRE_KEY])
{
    struct reader r = reader_of(id, size);
    uint32_t magic = get_u32(&r);
    uint8_t lane = get_u8(&r);
    if (size != PEER_ID_BYTES || magic != FRAME_MAGIC || lane > WIRE_BULK) return NULL;
    uint16_t *bucket = bucket_of(peers, id), i = *bucket;
    while (i != PEERS_MAX && memcmp(peers->table[i].id.bytes, id, PEER_ID_BYTES)) i = peers->table[i].next;
    if (i != PEERS_MAX && memcmp(peers->table[i].key, key, WIRE_KEY) != 0) {
        peers_forget(peers, &peers->table[i]);
        i = PEERS_MAX;
    }
    if (i == PEERS_MAX) {
        if (peers->free == PEERS_MAX) peers_forget(peers, least_recently_heard(peers));
        i = peers->free;
        assert(i < PEERS_MAX && !peers->table[i].number);
        struct peer *p = &peers->table[i];
        peers->free = p->next;
        *p = (struct peer){.number = ++peers->numbers * PEERS_MAX + i, .fd = -1, .lane = lane, .next = *bucket};
        memcpy(p->id.bytes, id, PEER_ID_BYTES);
        memcpy(p->key, key, WIRE_KEY);
        *bucket = i;
    }
    assert(peers->table[i].number % PEERS_MAX == i);
    peers->table[i].heard = ++peers->ticks;
    return &peers->table[i];
}

struct peer *peers_find(struct peers *peers, uint64_t number)
{
    struct peer *p = &peers->table[number % PEERS_MAX];
    return number && p->number == number ? p : NULL;
}
