#include "tests/lib/sim/sim_packets.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

void sim_packets_init(struct sim_packets *q)
{
    *q = (struct sim_packets){.tail = &q->head};
}

void sim_packets_put(struct sim_packets *q, struct sim_packet *p)
{
    p->next = NULL;
    *q->tail = p;
    q->tail = &p->next;
    q->count++;
}

struct sim_packet *sim_packets_take(struct sim_packets *q)
{
    struct sim_packet *p = q->head;
    if (!p) return NULL;
    q->head = p->next;
    if (!q->head) q->tail = &q->head;
    q->count--;
    return p;
}

void sim_packets_clear(struct sim_packets *q)
{
    for (struct sim_packet *p = sim_packets_take(q); p; p = sim_packets_take(q)) mem_free(p);
}

struct sim_packet *sim_packet_copy(const struct sim_packet *p)
{
    struct sim_packet *copy = mem_alloc(1, sizeof(*p) + p->size);
    assert(copy);
    memcpy(copy, p, sizeof(*p) + p->size);
    return copy;
}
