/* The journal: records appended to segments of a store, each with its length and checksums.
 *
 *     segment = "ATOLLJ1\n", u64 segment number, u32 crc32c of both, u32 zero, records
 *     record  = u32 magic, u16 type, u16 zero, u64 body bytes, u64 durable, u32 crc32c of the body,
 *               u32 crc32c of the 28 bytes before, body
 *
 * `durable` is how much of the segment was known to be on disk when the record was written. After a crash a damaged or
 * missing record is the torn tail if nothing behind it knows it to be durable: the segment is cut there. Otherwise
 * bytes that were safe have changed: that is corruption, and recovery refuses. After each sync a record of type 0 (no
 * body) carries the new mark. Layout of bodies: coordinator/ledger/record.h. */
#ifndef COORDINATOR_JOURNAL_H
#define COORDINATOR_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/store.h"
#include "coordinator/round/member.h"

enum { JOURNAL_SEGMENT_HEADER = 24, JOURNAL_RECORD_HEADER = 32, JOURNAL_PARTS_MAX = 4 };
enum { JOURNAL_FORMAT = '1' }; /* the digit in a segment's magic */
enum { JOURNAL_MARK = 0 };

struct journal {
    struct store *store; /* borrowed */
    uint64_t segment, size, durable;
    bool open;  /* a segment takes appends */
    bool dirty; /* something was appended since the last sync */
};

/* One record found by recovery; body is valid during the call. Return a failure to stop there. */
typedef enum status (*journal_visit_fn)(void *ctx, uint16_t type, struct journal_ref at, const uint8_t *body,
                                        size_t size, struct err *err);

/* Read all segments from number `first` on, oldest first, give every whole record to `visit` (marks excepted), cut the
 * torn tail of the last segment, and go on appending there. With no segment at all `journal->open` stays false.
 * CORRUPT: a damaged record that is not the torn tail; the line says segment and offset. UNSUPPORTED: a segment of
 * another format. */
enum status journal_recover(struct journal *journal, struct store *store, uint64_t first, journal_visit_fn visit,
                            void *ctx, struct err *err) MUST_CHECK;
/* Start segment `segment`; the one before is synced first. *journal is zeroed or open. */
enum status journal_begin(struct journal *journal, struct store *store, uint64_t segment, struct err *err) MUST_CHECK;
/* Append one record whose body is parts[0 .. n) end to end; *at is where the body begins. */
enum status journal_append(struct journal *journal, uint16_t type, const struct store_part *parts, size_t n,
                           struct journal_ref *at, struct err *err) MUST_CHECK;
/* Everything appended is durable on return. */
enum status journal_sync(struct journal *journal, struct err *err) MUST_CHECK;

/* Where recovery reads a segment from. */
struct journal_source {
    enum status (*read)(void *ctx, uint64_t offset, void *dst, size_t size, struct err *err);
    void *ctx;
    uint64_t segment, size;
    bool last; /* of the run: only there a torn tail is possible */
};

/* The part of recovery that sees untrusted bytes. *good_p: bytes of the segment that hold whole records. */
enum status journal_scan(const struct journal_source *source, uint64_t *good_p, journal_visit_fn visit, void *ctx,
                         struct err *err) MUST_CHECK;

#endif
