/* The journal: records with length and checksums, appended to segments of a store.
 *
 *     segment = "ATOLLJ2\n", u64 segment number, u32 crc32c of both, u32 zero, records
 *     record  = journal_header_fields, u32 crc32c of these, body
 *
 * - `durable` is the number of segment bytes that were synced when the record was written. After each sync a record of
 *   type 0 (no body) carries the new number.
 * - After a crash, a damaged record that no later record calls durable begins the tail that was not synced. Recovery
 *   cuts the segment there. The tail is an incomplete record, which goes; or whole records follow, or the disk cannot
 *   read it: then the store puts the segment aside.
 * - A damaged record that a later record calls durable is corruption. Recovery refuses the journal.
 * - Bytes that the disk cannot read (CORRUPT from the store) are damaged bytes.
 * - Layout of bodies: coordinator/ledger/record.h. */
#ifndef COORDINATOR_JOURNAL_H
#define COORDINATOR_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "coordinator/ledger/store.h"
#include "coordinator/round/member.h"

enum { JOURNAL_SEGMENT_HEADER = 24, JOURNAL_RECORD_HEADER = 32, JOURNAL_PARTS_MAX = 4 };
enum { JOURNAL_FORMAT = '2' }; /* the digit in a segment's magic */
enum { JOURNAL_MARK = 0 };

extern const struct field journal_header_fields[]; /* crc: of the body */

struct journal {
    struct store *store; /* borrowed */
    uint64_t segment, size, durable;
    bool open;  /* a segment is open for appending */
    bool dirty; /* records were appended since the last sync */
};

struct journal_record {
    uint16_t type;
    struct journal_ref at; /* of the body */
    const uint8_t *body;
    size_t size;
};

/* Called for each record that recovery reads, which is valid during the call. A failure stops recovery. */
typedef enum status (*journal_visit_fn)(void *ctx, const struct journal_record *record, struct err *err);

/* The end of the records of a segment. */
struct journal_end {
    uint64_t good;    /* length of the prefix with complete records; the size of the segment: nothing is behind it */
    bool unreadable;  /* the disk cannot read the bytes there */
    bool damaged;     /* OK: a crash did not cut a record there: whole records follow, or the disk cannot read all */
    uint64_t records; /* of the last segment: whole records behind the damage, except marks */
};

/* A damaged tail that recovery put aside. */
struct journal_tail {
    journal_visit_fn lost;  /* set by the caller: called for each whole record behind the damage except marks */
    uint64_t segment, size; /* of the segment, before */
    struct journal_end end; /* the segment ends at end.good now */
    char aside[128];        /* its new place; "": no damaged tail */
};

/* Reads all segments from number `first` on, oldest first, and calls `visit` for every complete record except marks.
 * Then cuts the unsynced tail of the last segment, or puts it aside as *tail, and opens the segment for appending.
 * `ctx` is for both visitors. Without segments, `journal->open` stays false. CORRUPT: damage of records that were
 * durable; the text names segment and offset. UNSUPPORTED: a segment of another format. */
enum status journal_recover(struct journal *journal, struct store *store, uint64_t first, journal_visit_fn visit,
                            struct journal_tail *tail, void *ctx, struct err *err) MUST_CHECK;
/* CORRUPT: the error of a segment that recovery needs and does not find. */
enum status journal_missing(uint64_t segment, struct err *err);
/* Starts segment `segment` after syncing the previous one. *journal is zeroed or open. */
enum status journal_begin(struct journal *journal, struct store *store, uint64_t segment, struct err *err) MUST_CHECK;
/* Appends one record; its body is the concatenation of parts[n]. *at: position of the body. */
enum status journal_append(struct journal *journal, uint16_t type, const struct store_part *parts, size_t n,
                           struct journal_ref *at, struct err *err) MUST_CHECK;
/* The same for a body of two parts; `crc` is the CRC-32C of the second, which is not read for it. */
enum status journal_append_known(struct journal *journal, uint16_t type, const struct store_part *head,
                                 const struct store_part *tail, uint32_t crc, struct journal_ref *at,
                                 struct err *err) MUST_CHECK;
/* On return all appended records are durable. */
enum status journal_sync(struct journal *journal, struct err *err) MUST_CHECK;

/* The bytes of one segment, for recovery. */
struct journal_source {
    enum status (*read)(const struct journal_source *source, uint64_t offset, void *dst, size_t size, struct err *err);
    void *ctx; /* for `read`; the store of journal_source_of */
    uint64_t segment, size;
    bool last; /* the last segment of the run, the only one that can have a torn tail */
};

/* The bytes of a segment of a store. */
enum status journal_source_of(struct journal_source *source, struct store *store, uint64_t segment, bool last,
                              struct err *err) MUST_CHECK;

/* Visits every undamaged record from byte `from` on, except marks, and skips what is damaged between them. Memory and
 * time are bounded by the size of the segment. */
enum status journal_salvage(const struct journal_source *source, uint64_t from, journal_visit_fn visit, void *ctx,
                            struct err *err) MUST_CHECK;

/* Scans one segment of untrusted bytes. *end is set on OK and CORRUPT. */
enum status journal_scan(const struct journal_source *source, struct journal_end *end, journal_visit_fn visit,
                         void *ctx, struct err *err) MUST_CHECK;

#endif
