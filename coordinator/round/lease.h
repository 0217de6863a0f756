/* The lease book: which worker trains on which positions of the sample order. Pure.
 *
 * Every position below `cursor` has been handed out and is in exactly one state:
 * - committed: its delta was merged;
 * - outstanding: leased to a worker for a round;
 * - free: returned, and handed out again before the cursor moves. */
#ifndef COORDINATOR_LEASE_H
#define COORDINATOR_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "wire/msg.h"

struct lease {
    uint32_t worker;
    uint64_t round;
    uint32_t n_ranges;
    struct wire_range ranges[WIRE_RANGES_MAX];
};

struct lease_book {
    uint64_t cursor;         /* first position never handed out */
    uint64_t committed;      /* positions */
    struct wire_range *free; /* [n_free] ascending, neighbours joined */
    uint32_t n_free, cap_free;
    struct lease *leases; /* [n_leases] outstanding, oldest first */
    uint32_t n_leases, cap_leases;
};

/* Plans a series of leases without changing the book. */
struct lease_plan {
    const struct lease_book *book;
    uint32_t index; /* into book->free */
    uint64_t used;  /* planned positions of book->free[index] */
    uint64_t cursor;
};

void lease_book_init(struct lease_book *book);
void lease_book_finish(struct lease_book *book);

struct lease_plan lease_plan_start(const struct lease_book *book);
/* Plans the next `count` positions: free ranges first (at most WIRE_RANGES_MAX - 1), then new positions. LIMIT at the
 * end of the order (2^63 positions). */
enum status lease_plan_take(struct lease_plan *plan, uint64_t count, struct wire_range ranges[WIRE_RANGES_MAX],
                            uint32_t *n_p) MUST_CHECK;

/* Leases the ranges to (worker, round). When a position is not free, or the pair already has a lease: STATE, and the
 * book is unchanged. */
enum status lease_take(struct lease_book *book, uint32_t worker, uint64_t round, const struct wire_range *ranges,
                       uint32_t n) MUST_CHECK;
/* Ends a lease whose delta was merged. NOTFOUND: no such lease; it was committed or returned before. */
enum status lease_commit(struct lease_book *book, uint32_t worker, uint64_t round);
/* Ends a lease whose work is lost: its positions become free. NOTFOUND as above. */
enum status lease_return(struct lease_book *book, uint32_t worker, uint64_t round);
/* A region: upstream grants these positions, which become free. Those between them and the cursor count as committed by
 * others. `kept` false, or one of them is free already: so do the positions that were free. STATE: one is leased. */
enum status lease_grant(struct lease_book *book, const struct wire_range *ranges, uint32_t n, bool kept) MUST_CHECK;
/* All these positions are leased or free: the grant has been taken before. */
bool lease_holds(const struct lease_book *book, const struct wire_range *ranges, uint32_t n);
/* A region: all free positions count as committed by others. */
void lease_give_up(struct lease_book *book);
/* NULL: no such lease. */
const struct lease *lease_find(const struct lease_book *book, uint32_t worker, uint64_t round);
/* The number of outstanding positions. */
uint64_t lease_outstanding(const struct lease_book *book);
/* CORRUPT unless committed + outstanding + free = [0, cursor) without overlap. */
enum status lease_check(const struct lease_book *book) MUST_CHECK;

/* The bytes of a book: lease_book_fields, the free ranges (wire_range_fields), the leases (lease_fields). */
extern const struct field lease_book_fields[], lease_fields[];

void lease_encode(const struct lease_book *book, struct writer *w);
/* Decodes into an initialised book and checks it (lease_check). CORRUPT, NOMEM. */
enum status lease_decode(struct lease_book *book, struct reader *r) MUST_CHECK;

#endif
