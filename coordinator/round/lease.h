/* The lease book: who works on which part of the endless sample order. Pure.
 *
 * Positions below `cursor` have been handed out. Each is exactly one of: committed (its delta was merged), outstanding
 * (leased to a worker for a round) or free (returned, handed out again before the cursor moves). */
#ifndef COORDINATOR_LEASE_H
#define COORDINATOR_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"
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
    struct wire_range *free; /* ascending, not touching each other */
    uint32_t n_free, cap_free;
    struct lease *leases; /* outstanding, in order of handing out */
    uint32_t n_leases, cap_leases;
};

/* Plans several leases in a row without changing the book. */
struct lease_plan {
    const struct lease_book *book;
    uint32_t index; /* of book->free */
    uint64_t used;  /* positions of book->free[index] already planned */
    uint64_t cursor;
};

void lease_book_init(struct lease_book *book);
void lease_book_finish(struct lease_book *book);

struct lease_plan lease_plan_start(const struct lease_book *book);
/* The next `count` positions: returned ones first (at most WIRE_RANGES_MAX - 1 pieces), then new ones. LIMIT at the end
 * of the order (2^63 positions). */
enum status lease_plan_take(struct lease_plan *plan, uint64_t count, struct wire_range ranges[WIRE_RANGES_MAX],
                            uint32_t *n_p) MUST_CHECK;

/* Hand out ranges. STATE, and nothing changed, when a position is not free or (worker, round) has a lease already. */
enum status lease_take(struct lease_book *book, uint32_t worker, uint64_t round, const struct wire_range *ranges,
                       uint32_t n) MUST_CHECK;
/* The delta was merged. NOTFOUND when there is no such lease: it was committed or returned before. */
enum status lease_commit(struct lease_book *book, uint32_t worker, uint64_t round);
/* The work is lost: its positions are free again. */
enum status lease_return(struct lease_book *book, uint32_t worker, uint64_t round);
const struct lease *lease_find(const struct lease_book *book, uint32_t worker, uint64_t round);
uint64_t lease_outstanding(const struct lease_book *book);
/* CORRUPT unless committed + outstanding + free = [0, cursor) without overlap. */
enum status lease_check(const struct lease_book *book) MUST_CHECK;

/* Ranges as journal and checkpoints have them: how many (u32), then start and count of each. More than WIRE_RANGES_MAX
 * fail the reader and are none. */
void put_ranges(struct writer *w, const struct wire_range *ranges, uint32_t n);
uint32_t get_ranges(struct reader *r, struct wire_range ranges[WIRE_RANGES_MAX]) MUST_CHECK;

size_t lease_encoded_size(const struct lease_book *book);
void lease_encode(const struct lease_book *book, struct writer *w);
/* Into an initialised book; the result passes lease_check. */
enum status lease_decode(struct lease_book *book, struct reader *r) MUST_CHECK;

#endif
