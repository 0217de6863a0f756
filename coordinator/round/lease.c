#include "coordinator/round/lease.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/format/field_rows.h"
#include "wire/msg_table.h"

static const uint64_t order_end = (uint64_t)1 << 63;

enum { LEASES_MAX = 1 << 16, FREE_MAX = 1 << 24 };

void lease_book_init(struct lease_book *book)
{
    memset(book, 0, sizeof *book);
}

void lease_book_finish(struct lease_book *book)
{
    mem_free(book->free);
    mem_free(book->leases);
    lease_book_init(book);
}

static enum status grow(void *items, uint32_t *cap, uint32_t need, size_t size)
{
    void **block = items;
    if (need <= *cap) return STATUS_OK;
    uint32_t room = *cap ? *cap : 8;
    while (room < need) room *= 2;
    assert(room >= need && room > *cap);
    void *grown = mem_resize(*block, *cap * size, room * size);
    if (!grown) return STATUS_NOMEM;
    *block = grown;
    *cap = room;
    return STATUS_OK;
}

struct lease_plan lease_plan_start(const struct lease_book *book)
{
    return (struct lease_plan){.book = book, .cursor = book->cursor};
}

enum status lease_plan_take(struct lease_plan *plan, uint64_t count, struct wire_range ranges[WIRE_RANGES_MAX],
                            uint32_t *n_p)
{
    uint32_t n = 0;
    assert(plan->cursor >= plan->book->cursor && plan->index <= plan->book->n_free);
    while (count && plan->index < plan->book->n_free && n < WIRE_RANGES_MAX - 1) {
        const struct wire_range *free = &plan->book->free[plan->index];
        uint64_t left = free->count - plan->used, take = left < count ? left : count;
        ranges[n++] = (struct wire_range){free->start + plan->used, take};
        count -= take;
        plan->used += take;
        if (plan->used == free->count) {
            plan->index++;
            plan->used = 0;
        }
    }
    if (count > order_end - plan->cursor) return STATUS_LIMIT;
    if (count) ranges[n++] = (struct wire_range){plan->cursor, count};
    plan->cursor += count;
    assert(n <= WIRE_RANGES_MAX);
    *n_p = n;
    return STATUS_OK;
}

/* Index of the free range that contains `range`, or -1. */
static long free_holding(const struct lease_book *book, struct wire_range range)
{
    for (uint32_t i = 0; i < book->n_free; i++) {
        const struct wire_range *f = &book->free[i];
        if (range.start >= f->start && range.start - f->start <= f->count &&
            range.count <= f->count - (range.start - f->start))
            return (long)i;
    }
    return -1;
}

/* Removes `range` from free[i]. The array has room for the two rests. */
static void free_cut(struct lease_book *book, uint32_t i, struct wire_range range)
{
    struct wire_range f = book->free[i];
    struct wire_range left = {f.start, range.start - f.start};
    struct wire_range right = {range.start + range.count, f.start + f.count - (range.start + range.count)};
    uint32_t keep = (left.count > 0) + (right.count > 0);
    assert(left.count + range.count + right.count == f.count); /* the range lies inside */
    assert(book->n_free - 1 + keep <= book->cap_free);
    memmove(&book->free[i + keep], &book->free[i + 1], (book->n_free - i - 1) * sizeof f);
    book->n_free = book->n_free - 1 + keep;
    if (left.count) book->free[i++] = left;
    if (right.count) book->free[i] = right;
}

/* Adds a range and joins it with its neighbours. */
static void free_add(struct lease_book *book, struct wire_range range)
{
    uint32_t i = 0;
    while (i < book->n_free && book->free[i].start < range.start) i++;
    assert(book->n_free < book->cap_free);
    assert(!i || book->free[i - 1].start + book->free[i - 1].count <= range.start);
    assert(i == book->n_free || range.start + range.count <= book->free[i].start);
    if (i > 0 && book->free[i - 1].start + book->free[i - 1].count == range.start) {
        book->free[--i].count += range.count;
    } else {
        memmove(&book->free[i + 1], &book->free[i], (book->n_free - i) * sizeof range);
        book->free[i] = range;
        book->n_free++;
    }
    if (i + 1 < book->n_free && book->free[i].start + book->free[i].count == book->free[i + 1].start) {
        book->free[i].count += book->free[i + 1].count;
        memmove(&book->free[i + 1], &book->free[i + 2], (book->n_free - i - 2) * sizeof range);
        book->n_free--;
    }
}

/* committed + outstanding + free = cursor, by size. lease_check also compares the positions. */
static bool sizes_add_up(const struct lease_book *book)
{
    uint64_t sum = book->committed + lease_outstanding(book);
    for (uint32_t i = 0; i < book->n_free; i++) sum += book->free[i].count;
    return sum == book->cursor;
}

enum status lease_take(struct lease_book *book, uint32_t worker, uint64_t round, const struct wire_range *ranges,
                       uint32_t n)
{
    if (!n || n > WIRE_RANGES_MAX || lease_find(book, worker, round)) return STATUS_STATE;
    uint64_t cursor = book->cursor;
    for (uint32_t i = 0; i < n; i++) {
        if (!ranges[i].count) return STATUS_STATE;
        if (ranges[i].start == cursor && ranges[i].count <= order_end - cursor)
            cursor += ranges[i].count;
        else if (free_holding(book, ranges[i]) < 0)
            return STATUS_STATE;
        for (uint32_t j = 0; j < i; j++)
            if (ranges[i].start < ranges[j].start + ranges[j].count &&
                ranges[j].start < ranges[i].start + ranges[i].count)
                return STATUS_STATE;
    }
    /* Reserve free ranges for all outstanding leases, so that lease_return cannot fail. */
    uint32_t ranges_max = book->n_free + 2 * n;
    for (uint32_t i = 0; i < book->n_leases; i++) ranges_max += book->leases[i].n_ranges;
    TRY(grow(&book->free, &book->cap_free, ranges_max, sizeof *book->free));
    TRY(grow(&book->leases, &book->cap_leases, book->n_leases + 1, sizeof *book->leases));
    struct lease *lease = &book->leases[book->n_leases++];
    *lease = (struct lease){.worker = worker, .round = round, .n_ranges = n};
    memcpy(lease->ranges, ranges, n * sizeof *ranges);
    for (uint32_t i = 0; i < n; i++) {
        long at = ranges[i].start >= book->cursor ? -1 : free_holding(book, ranges[i]);
        if (at >= 0) free_cut(book, (uint32_t)at, ranges[i]);
    }
    assert(cursor >= book->cursor);
    book->cursor = cursor;
    assert(sizes_add_up(book));
    return STATUS_OK;
}

const struct lease *lease_find(const struct lease_book *book, uint32_t worker, uint64_t round)
{
    for (uint32_t i = 0; i < book->n_leases; i++)
        if (book->leases[i].worker == worker && book->leases[i].round == round) return &book->leases[i];
    return NULL;
}

static void remove_lease(struct lease_book *book, const struct lease *lease)
{
    size_t i = (size_t)(lease - book->leases);
    assert(i < book->n_leases);
    memmove(&book->leases[i], &book->leases[i + 1], (book->n_leases - i - 1) * sizeof *lease);
    book->n_leases--;
}

enum status lease_commit(struct lease_book *book, uint32_t worker, uint64_t round)
{
    const struct lease *lease = lease_find(book, worker, round);
    if (!lease) return STATUS_NOTFOUND;
    for (uint32_t i = 0; i < lease->n_ranges; i++) book->committed += lease->ranges[i].count;
    remove_lease(book, lease);
    assert(sizes_add_up(book));
    return STATUS_OK;
}

enum status lease_return(struct lease_book *book, uint32_t worker, uint64_t round)
{
    const struct lease *lease = lease_find(book, worker, round);
    if (!lease) return STATUS_NOTFOUND;
    TRY(grow(&book->free, &book->cap_free, book->n_free + lease->n_ranges, sizeof *book->free));
    for (uint32_t i = 0; i < lease->n_ranges; i++) free_add(book, lease->ranges[i]);
    remove_lease(book, lease);
    assert(sizes_add_up(book));
    return STATUS_OK;
}

void lease_give_up(struct lease_book *book)
{
    for (uint32_t i = 0; i < book->n_free; i++) book->committed += book->free[i].count;
    book->n_free = 0;
    assert(sizes_add_up(book));
}

static uint64_t common_part(const struct wire_range *a, const struct wire_range *b)
{
    uint64_t from = a->start > b->start ? a->start : b->start, end = a->start + a->count;
    if (b->start + b->count < end) end = b->start + b->count;
    return end > from ? end - from : 0;
}

bool lease_holds(const struct lease_book *book, const struct wire_range *ranges, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t held = 0;
        for (uint32_t k = 0; k < book->n_free; k++) held += common_part(&ranges[i], &book->free[k]);
        for (uint32_t k = 0; k < book->n_leases; k++)
            for (uint32_t j = 0; j < book->leases[k].n_ranges; j++)
                held += common_part(&ranges[i], &book->leases[k].ranges[j]);
        if (held != ranges[i].count) return false;
    }
    return true;
}

static bool meets(const struct wire_range *a, const struct wire_range *all, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (common_part(a, &all[i])) return true;
    return false;
}

/* A position below the cursor was another's, and one above it is new. */
static void free_granted(struct lease_book *book, struct wire_range range)
{
    uint64_t end = range.start + range.count;
    if (range.start > book->cursor) book->committed += range.start - book->cursor;
    if (range.start < book->cursor) book->committed -= (end < book->cursor ? end : book->cursor) - range.start;
    if (end > book->cursor) book->cursor = end;
    free_add(book, range);
    assert(sizes_add_up(book));
}

enum status lease_grant(struct lease_book *book, const struct wire_range *ranges, uint32_t n, bool kept)
{
    if (!n || n > WIRE_RANGES_MAX) return STATUS_STATE;
    for (uint32_t i = 0; i < n; i++) {
        const struct wire_range *range = &ranges[i];
        if (!range->count || range->start > order_end || range->count > order_end - range->start) return STATUS_STATE;
        if (meets(range, ranges, i)) return STATUS_STATE;
        for (uint32_t k = 0; k < book->n_leases; k++)
            if (meets(range, book->leases[k].ranges, book->leases[k].n_ranges)) return STATUS_STATE;
        kept = kept && !meets(range, book->free, book->n_free);
    }
    TRY(grow(&book->free, &book->cap_free, book->n_free + n, sizeof *book->free));
    if (!kept) lease_give_up(book);
    for (uint32_t i = 0; i < n; i++) free_granted(book, ranges[i]);
    return STATUS_OK;
}

uint64_t lease_outstanding(const struct lease_book *book)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < book->n_leases; i++)
        for (uint32_t k = 0; k < book->leases[i].n_ranges; k++) sum += book->leases[i].ranges[k].count;
    return sum;
}

static int by_start(const void *a, const void *b)
{
    uint64_t x = ((const struct wire_range *)a)->start, y = ((const struct wire_range *)b)->start;
    return (x > y) - (x < y);
}

enum status lease_check(const struct lease_book *book)
{
    size_t n = book->n_free, k = 0;
    for (uint32_t i = 0; i < book->n_leases; i++) n += book->leases[i].n_ranges;
    struct wire_range *all = mem_alloc(n, sizeof *all);
    if (!all) return STATUS_NOMEM;
    for (uint32_t i = 0; i < book->n_free; i++) all[k++] = book->free[i];
    for (uint32_t i = 0; i < book->n_leases; i++)
        for (uint32_t j = 0; j < book->leases[i].n_ranges; j++) all[k++] = book->leases[i].ranges[j];
    qsort(all, n, sizeof *all, by_start);
    uint64_t end = 0, sum = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n; i++) {
        if (!all[i].count || all[i].start < end || all[i].start > order_end || all[i].count > order_end - all[i].start)
            status = STATUS_CORRUPT;
        else
            end = all[i].start + all[i].count;
        sum += all[i].count;
    }
    mem_free(all);
    if (end > book->cursor || sum > book->cursor || book->committed != book->cursor - sum) return STATUS_CORRUPT;
    return status;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

const struct field lease_book_fields[] = {
    U64(lease_book, cursor),
    U64(lease_book, committed),
    U32_IN(lease_book, n_free, 0, FREE_MAX),
    U32_IN(lease_book, n_leases, 0, LEASES_MAX),
    END,
};
const struct field lease_fields[] = {U32(lease, worker), U64(lease, round), WORK_RANGES(lease), END};

void lease_encode(const struct lease_book *book, struct writer *w)
{
    assert(sizes_add_up(book));
    fields_put(lease_book_fields, book, w);
    fields_put_all(wire_range_fields, book->free, sizeof *book->free, book->n_free, w);
    fields_put_all(lease_fields, book->leases, sizeof *book->leases, book->n_leases, w);
}

enum status lease_decode(struct lease_book *book, struct reader *r)
{
    struct lease_book read = {0};
    const size_t range_bytes = fields_size(wire_range_fields, &(struct wire_range){0});
    const size_t lease_bytes = fields_size(lease_fields, &(struct lease){.n_ranges = 1});
    assert(!book->n_free && !book->n_leases);
    fields_read(lease_book_fields, &read, r);
    /* Compare the counts with the bytes left before allocating for them: a damaged count must not exhaust memory. */
    if (r->bad || read.n_free * range_bytes + read.n_leases * lease_bytes > reader_left(r)) return STATUS_CORRUPT;
    TRY(grow(&book->free, &book->cap_free, read.n_free + read.n_leases * WIRE_RANGES_MAX, sizeof *book->free));
    TRY(grow(&book->leases, &book->cap_leases, read.n_leases, sizeof *book->leases));
    fields_read_all(wire_range_fields, book->free, sizeof *book->free, read.n_free, r);
    fields_read_all(lease_fields, book->leases, sizeof *book->leases, read.n_leases, r);
    if (r->bad) return STATUS_CORRUPT;
    book->cursor = read.cursor;
    book->committed = read.committed;
    book->n_free = read.n_free;
    book->n_leases = read.n_leases;
    return lease_check(book);
}
