#include "tests/lib/sim/simpackets.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

void simpackets_init(struct simpackets *q)
{
    *q = (struct simpackets){.tail = &q->head};
}

void simpackets_put(struct simpackets *q, struct simpacket *p)
{
    p->next = NULL;
    *q->tail = p;
    q->tail = &p->next;
    q->count++;
}

struct simpacket *simpackets_take(struct simpackets *q)
{
    struct simpacket *p = q->head;
    if (!p) return NULL;
    q->head = p->next;
    if (!q->head) q->tail = &q->head;
    q->count--;
    return p;
}

void simpackets_clear(struct simpackets *q)
{
    for (struct simpacket *p = simpackets_take(q); p; p = simpackets_take(q)) mem_free(p);
}

struct simpacket *simpacket_copy(const struct simpacket *p)
{
    struct simpacket *copy = mem_alloc(1, sizeof(*p) + p->size);
    assert(copy);
    memcpy(copy, p, sizeof(*p) + p->size);
    return copy;
}
