#include "coordinator/outer/held.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/mem.h"

/* LOOKS: free places that held_take looks at for memory of the right size. */
enum { LOOKS = 16 };
enum held_use { FREE, TAKEN, KEPT };

struct held_place {
    enum held_use use;
    uint8_t *bytes; /* [cap] or NULL */
    size_t cap;
    struct journal_ref at;
    uint32_t before, next; /* KEPT: by age. FREE: next of the list */
};

static struct held_place *at(const struct held *h, uint32_t place)
{
    assert(place && place <= h->n);
    return &h->places[place - 1];
}

static void free_bytes(struct held *h, struct held_place *p)
{
    assert(h->bytes >= p->cap);
    mem_free(p->bytes);
    h->bytes -= p->cap;
    p->bytes = NULL;
    p->cap = 0;
}

void held_finish(struct held *h)
{
    for (uint32_t i = 0; i < h->n; i++) free_bytes(h, &h->places[i]);
    mem_free(h->places);
    *h = (struct held){.most = h->most};
}

static void release(struct held *h, uint32_t place)
{
    struct held_place *p = at(h, place);
    assert(p->use != FREE);
    if (p->use == KEPT) {
        *(p->before ? &at(h, p->before)->next : &h->oldest) = p->next;
        *(p->next ? &at(h, p->next)->before : &h->newest) = p->before;
    }
    p->use = FREE;
    p->next = h->free_places;
    h->free_places = place;
}

/* Frees memory until `size` more bytes fit. False: taken places need it. */
static bool make_room(struct held *h, size_t size)
{
    if (size > h->most) return false;
    for (uint32_t i = h->free_places; i && h->bytes + size > h->most; i = at(h, i)->next) free_bytes(h, at(h, i));
    while (h->bytes + size > h->most && h->oldest) {
        uint32_t place = h->oldest;
        release(h, place);
        free_bytes(h, at(h, place));
    }
    return h->bytes + size <= h->most;
}

/* Takes a free place out of the list, if it can one with memory of about `size` bytes; adds places when there is none.
 * 0: no memory. */
static uint32_t pick(struct held *h, size_t size)
{
    if (!h->free_places) {
        uint32_t cap = h->cap ? 2 * h->cap : 64;
        struct held_place *grown = h->n < h->cap ? h->places : NULL;
        if (!grown) grown = mem_resize(h->places, h->n * sizeof *grown, cap * sizeof *grown);
        if (!grown) return 0;
        if (h->n == h->cap) h->cap = cap;
        h->places = grown;
        h->places[h->n] = (struct held_place){.use = FREE};
        h->free_places = ++h->n;
    }
    uint32_t *link = &h->free_places;
    for (int i = 0; i < LOOKS; i++) {
        struct held_place *p = at(h, *link);
        if (p->cap >= size && p->cap - size <= size / 4) break;
        if (!p->next) {
            link = &h->free_places;
            break;
        }
        link = &p->next;
    }
    uint32_t place = *link;
    *link = at(h, place)->next;
    return place;
}

uint32_t held_take(struct held *h, size_t size)
{
    if (size > h->most) return 0;
    uint32_t place = pick(h, size);
    if (!place) return 0;
    struct held_place *p = at(h, place);
    p->use = TAKEN;
    if (p->cap >= size && p->cap - size <= size / 4) return place;
    free_bytes(h, p);
    if (make_room(h, size)) p->bytes = mem_alloc_untouched(size);
    if (p->bytes) {
        p->cap = size;
        h->bytes += size;
        return place;
    }
    release(h, place);
    return 0;
}

void held_give(struct held *h, uint32_t place)
{
    assert(!place || at(h, place)->use == TAKEN);
    if (place) release(h, place);
}

uint8_t *held_bytes(const struct held *h, uint32_t place)
{
    assert(at(h, place)->use == TAKEN);
    return at(h, place)->bytes;
}

void held_keep(struct held *h, uint32_t place, struct journal_ref ref)
{
    struct held_place *p = at(h, place);
    assert(p->use == TAKEN);
    p->use = KEPT;
    p->at = ref;
    p->before = h->newest;
    p->next = 0;
    *(h->newest ? &at(h, h->newest)->next : &h->oldest) = place;
    h->newest = place;
}

/* NULL: the place has another delta now, or none. */
static struct held_place *find(const struct held *h, uint32_t place, struct journal_ref ref)
{
    if (!place) return NULL;
    struct held_place *p = at(h, place);
    return p->use == KEPT && p->at.segment == ref.segment && p->at.offset == ref.offset ? p : NULL;
}

const uint8_t *held_find(const struct held *h, uint32_t place, struct journal_ref ref)
{
    const struct held_place *p = find(h, place, ref);
    return p ? p->bytes : NULL;
}

void held_move(struct held *h, uint32_t place, struct journal_ref from, struct journal_ref to)
{
    struct held_place *p = find(h, place, from);
    if (p) p->at = to;
}

void held_drop(struct held *h, uint32_t place, struct journal_ref ref)
{
    if (find(h, place, ref)) release(h, place);
}
