#include "coordinator/ledger/journal.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/format/field_rows.h"

static const char segment_magic[8] = {'A', 'T', 'O', 'L', 'L', 'J', JOURNAL_FORMAT, '\n'};
#define RECORD_MAGIC 0x4c4e524au /* "JRNL" */

enum { FORMAT_AT = 6, SCAN_WINDOW = 1 << 20, BLOCK = 4096, SEARCHES_MAX = 4 };

struct header {
    uint16_t type;
    uint64_t size, durable;
    uint32_t crc;
};

const struct field journal_header_fields[] = {
    CONST("magic", 4, RECORD_MAGIC),
    U16(header, type, 0, UINT16_MAX),
    CONST("zero", 2, 0),
    U64(header, size),
    U64(header, durable),
    U32(header, crc),
    END,
};

/* False: the bytes are not a valid record header. */
static bool header_decode(struct header *h, const uint8_t data[JOURNAL_RECORD_HEADER])
{
    struct reader r = reader_of(data, JOURNAL_RECORD_HEADER);
    fields_get(journal_header_fields, h, &r);
    return !r.bad && get_u32(&r) == crc32c(0, data, JOURNAL_RECORD_HEADER - 4);
}

static void segment_header(uint8_t out[JOURNAL_SEGMENT_HEADER], uint64_t segment, uint8_t format)
{
    struct writer w = writer_of(out, JOURNAL_SEGMENT_HEADER);
    put_bytes(&w, segment_magic, sizeof segment_magic);
    out[FORMAT_AT] = format;
    put_u64(&w, segment);
    put_u32(&w, crc32c(0, out, 16));
    put_u32(&w, 0);
}

/* A valid header of another format is reported as UNSUPPORTED, not as damage. */
static enum status check_format(const uint8_t head[JOURNAL_SEGMENT_HEADER], uint64_t segment, struct err *err)
{
    uint8_t other[JOURNAL_SEGMENT_HEADER], format = head[FORMAT_AT];
    segment_header(other, segment, format);
    if (format == JOURNAL_FORMAT || format < '0' || format > '9' || memcmp(head, other, sizeof other) != 0)
        return STATUS_OK;
    return err_set(err, STATUS_UNSUPPORTED,
                   "journal/%08llu.log has format %c, this program reads %c: continue with the release that began the "
                   "run, or start a new run from a checkpoint (model.init_from)",
                   (unsigned long long)segment, format, JOURNAL_FORMAT);
}

/* One pass over the bytes of a segment, which may be damaged anywhere. */
struct scan {
    const struct journal_source *source;
    uint8_t *body, *window; /* window[window_n]: the segment's bytes from window_at on; NULL until find_header */
    size_t cap, window_n;
    uint64_t window_at;
    struct header header; /* of the record read last */
    uint64_t durable;     /* the most that a header found by find_whole calls durable */
    uint64_t searched;    /* bytes of bodies that find_whole read */
    bool unreadable;      /* the disk could not read some of the bytes */
};

static void scan_finish(struct scan *scan)
{
    mem_free(scan->body);
    mem_free(scan->window);
}

/* END: the disk cannot read these bytes. */
static enum status read_bytes(struct scan *scan, uint64_t at, void *dst, size_t size, struct err *err)
{
    struct err why = {0};
    enum status status = scan->source->read(scan->source, at, dst, size, &why);
    if (status == STATUS_OK) return status;
    if (status != STATUS_CORRUPT) return err_set(err, status, "%s", why.msg);
    scan->unreadable = true;
    return STATUS_END;
}

/* Moves the window to `from`. Blocks that the disk cannot read become zeros, which are no record. */
static enum status move_window(struct scan *scan, uint64_t from, struct err *err)
{
    uint64_t left = scan->source->size - from;
    size_t n = left < SCAN_WINDOW ? (size_t)left : SCAN_WINDOW;
    if (!scan->window) scan->window = mem_alloc(1, SCAN_WINDOW);
    if (!scan->window) return err_set(err, STATUS_NOMEM, "no memory to search the journal");
    enum status status = read_bytes(scan, from, scan->window, n, err);
    if (status != STATUS_OK && status != STATUS_END) return status;
    for (size_t i = 0, block; status == STATUS_END && i < n; i += block) {
        block = BLOCK - (size_t)((from + i) % BLOCK);
        block = block < n - i ? block : n - i;
        enum status one = read_bytes(scan, from + i, scan->window + i, block, err);
        if (one == STATUS_END)
            memset(scan->window + i, 0, block);
        else
            TRY(one);
    }
    scan->window_at = from;
    scan->window_n = n;
    return STATUS_OK;
}

/* Finds the next valid record header from byte *at on; END: there is none. Its body may be damaged. */
static enum status find_header(struct scan *scan, uint64_t *at, struct err *err)
{
    for (uint64_t from = *at; from + JOURNAL_RECORD_HEADER <= scan->source->size;) {
        if (from < scan->window_at || from + JOURNAL_RECORD_HEADER > scan->window_at + scan->window_n)
            TRY(move_window(scan, from, err));
        assert(from >= scan->window_at && from - scan->window_at + JOURNAL_RECORD_HEADER <= scan->window_n);
        size_t i = (size_t)(from - scan->window_at);
        for (; i + JOURNAL_RECORD_HEADER <= scan->window_n; i++) {
            if (scan->window[i] != (RECORD_MAGIC & 0xff) || !header_decode(&scan->header, scan->window + i)) continue;
            *at = scan->window_at + i;
            return STATUS_OK;
        }
        from = scan->window_at + i;
    }
    return STATUS_END;
}

/* Reads the record at `at` into scan->body. OK, END if the record is incomplete or damaged, or a failure. */
static enum status scan_record(struct scan *scan, uint64_t at, struct err *err)
{
    const struct journal_source *source = scan->source;
    uint8_t head[JOURNAL_RECORD_HEADER];
    if (source->size - at < sizeof head) return STATUS_END;
    TRY(read_bytes(scan, at, head, sizeof head, err));
    if (!header_decode(&scan->header, head) || scan->header.size > source->size - at - sizeof head) return STATUS_END;
    size_t size = scan->header.size;
    if (size > scan->cap) {
        mem_free(scan->body);
        scan->cap = 0;
        scan->body = mem_alloc(1, size);
        if (!scan->body) return err_set(err, STATUS_NOMEM, "no memory for a journal record of %zu bytes", size);
        scan->cap = size;
    }
    if (size) TRY(read_bytes(scan, at + sizeof head, scan->body, size, err));
    return crc32c(0, scan->body, size) == scan->header.crc ? STATUS_OK : STATUS_END;
}

/* The record that scan_record read at byte `at`. */
static struct journal_record record_at(const struct scan *scan, uint64_t at)
{
    return (struct journal_record){.type = scan->header.type,
                                   .at = {scan->source->segment, at + JOURNAL_RECORD_HEADER},
                                   .body = scan->body,
                                   .size = scan->header.size};
}

/* Finds the next whole record from byte *at on, and reads it. END: there is none. A body may hold bytes that look like
 * headers of long records, so the search reads a bounded number of bytes. */
static enum status find_whole(struct scan *scan, uint64_t *at, struct err *err)
{
    for (;; ++*at) {
        TRY(find_header(scan, at, err));
        if (scan->header.durable > scan->durable) scan->durable = scan->header.durable;
        if (scan->searched / SEARCHES_MAX > scan->source->size) continue;
        enum status status = scan_record(scan, *at, err);
        uint64_t left = scan->source->size - *at - JOURNAL_RECORD_HEADER;
        scan->searched += scan->header.size < left ? scan->header.size : left;
        if (status != STATUS_END) return status;
    }
}

static enum status salvage(struct scan *scan, uint64_t from, journal_visit_fn visit, void *ctx, struct err *err)
{
    enum status status;
    for (uint64_t at = from; (status = find_whole(scan, &at, err)) == STATUS_OK;) {
        const struct journal_record record = record_at(scan, at);
        at += JOURNAL_RECORD_HEADER + record.size;
        if (record.type != JOURNAL_MARK) TRY(visit(ctx, &record, err));
    }
    return status == STATUS_END ? STATUS_OK : status;
}

static enum status count_one(void *ctx, const struct journal_record *record, struct err *err)
{
    (void)record, (void)err;
    ++*(uint64_t *)ctx;
    return STATUS_OK;
}

/* The bytes from end->good on are no whole record. Decides what they are: CORRUPT if they must have been whole, damage
 * if a disk that lost the last writes does not explain them, otherwise an incomplete record. A header has its own
 * checksum, so a header is enough to call the bytes before it durable. */
static enum status judge_end(struct scan *scan, struct journal_end *end, struct err *err)
{
    const struct journal_source *source = scan->source;
    end->unreadable = scan->unreadable;
    if (source->last) TRY(salvage(scan, end->good + 1, count_one, &end->records, err));
    end->damaged = scan->unreadable || end->records;
    if (source->last && scan->durable <= end->good) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT,
                   "journal/%08llu.log is damaged at byte %llu%s, before records that were synced: restore it from a "
                   "copy, or run atoll repair RUN, which keeps all rounds before the damage",
                   (unsigned long long)source->segment, (unsigned long long)end->good,
                   end->unreadable ? ", which the disk cannot read" : "");
}

enum status journal_scan(const struct journal_source *source, struct journal_end *end, journal_visit_fn visit,
                         void *ctx, struct err *err)
{
    uint8_t expect[JOURNAL_SEGMENT_HEADER], head[JOURNAL_SEGMENT_HEADER] = {0};
    struct scan scan = {.source = source};
    enum status status = STATUS_OK;
    uint64_t at = 0;
    *end = (struct journal_end){0};
    segment_header(expect, source->segment, JOURNAL_FORMAT);
    if (source->size >= sizeof head) status = read_bytes(&scan, 0, head, sizeof head, err);
    if (status == STATUS_END) memset(head, 0, sizeof head);
    if (status != STATUS_OK && status != STATUS_END) return status;
    TRY(check_format(head, source->segment, err));
    if (!memcmp(head, expect, sizeof head)) {
        at = sizeof head;
        while (at < source->size && (status = scan_record(&scan, at, err)) == STATUS_OK) {
            const struct journal_record record = record_at(&scan, at);
            if (record.type != JOURNAL_MARK) TRY_GOTO(visit(ctx, &record, err), done);
            at += JOURNAL_RECORD_HEADER + record.size;
            assert(at <= source->size);
        }
        if (status != STATUS_OK && status != STATUS_END) goto done;
    }
    end->good = at;
    status = at == source->size && at ? STATUS_OK : judge_end(&scan, end, err);
done:
    scan_finish(&scan);
    return status;
}

enum status journal_salvage(const struct journal_source *source, uint64_t from, journal_visit_fn visit, void *ctx,
                            struct err *err)
{
    struct scan scan = {.source = source};
    enum status status = salvage(&scan, from, visit, ctx, err);
    scan_finish(&scan);
    return status;
}

static enum status store_read(const struct journal_source *source, uint64_t offset, void *dst, size_t size,
                              struct err *err)
{
    struct store *store = source->ctx;
    return store->ops->segment_read(store, source->segment, offset, dst, size, err);
}

enum status journal_source_of(struct journal_source *source, struct store *store, uint64_t segment, bool last,
                              struct err *err)
{
    *source = (struct journal_source){.read = store_read, .ctx = store, .segment = segment, .last = last};
    return store->ops->segment_size(store, segment, &source->size, err);
}

static enum status begin_header(struct journal *j, struct err *err)
{
    uint8_t head[JOURNAL_SEGMENT_HEADER];
    assert(j->open && !j->size && !j->durable);
    segment_header(head, j->segment, JOURNAL_FORMAT);
    struct store_part part = {head, sizeof head};
    TRY(j->store->ops->append(j->store, &part, 1, err));
    j->size = sizeof head;
    j->dirty = true;
    return STATUS_OK;
}

/* Puts the segment aside and keeps its records before the damage. *tail tells what is behind it. */
static enum status put_tail_aside(const struct journal_source *source, const struct journal_end *end,
                                  struct journal_tail *tail, void *ctx, struct err *err)
{
    struct store *store = source->ctx;
    TRY(journal_salvage(source, end->good + 1, tail->lost, ctx, err));
    tail->segment = source->segment;
    tail->size = source->size;
    tail->end = *end;
    return store->ops->segment_put_aside(store, source->segment, end->good, tail->aside, sizeof tail->aside, err);
}

static enum status recover_segment(struct journal *j, uint64_t segment, bool last, journal_visit_fn visit,
                                   struct journal_tail *tail, void *ctx, struct err *err)
{
    struct journal_source source;
    struct journal_end end;
    TRY(journal_source_of(&source, j->store, segment, last, err));
    TRY(journal_scan(&source, &end, visit, ctx, err));
    assert(end.good <= source.size);
    if (!last) return STATUS_OK;
    if (end.damaged)
        TRY(put_tail_aside(&source, &end, tail, ctx, err));
    else if (end.good < source.size)
        log_warn("journal/%08llu.log: removed the last %llu bytes after byte %llu: the crash left an incomplete record",
                 (unsigned long long)segment, (unsigned long long)(source.size - end.good),
                 (unsigned long long)end.good);
    TRY(j->store->ops->segment_continue(j->store, segment, end.good, err));
    *j = (struct journal){.store = j->store, .segment = segment, .size = end.good, .durable = end.good, .open = true};
    return end.good ? STATUS_OK : begin_header(j, err); /* 0: the crash lost the segment's header, too */
}

enum status journal_missing(uint64_t segment, struct err *err)
{
    const char *instead = segment ? "run atoll repair RUN, which keeps all rounds before it"
                                  : "start a new run from a checkpoint (model.init_from)"; /* no round is before it */
    return err_set(err, STATUS_CORRUPT, "journal/%08llu.log is missing: restore it from a copy, or %s",
                   (unsigned long long)segment, instead);
}

enum status journal_recover(struct journal *journal, struct store *store, uint64_t first, journal_visit_fn visit,
                            struct journal_tail *tail, void *ctx, struct err *err)
{
    uint64_t *list, expect = first;
    size_t n;
    *journal = (struct journal){.store = store};
    TRY(store_list(store, store->ops->segment_list, &list, &n, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        if (list[i] < first) continue;
        if (list[i] != expect++)
            status = journal_missing(expect - 1, err);
        else
            status = recover_segment(journal, list[i], i + 1 == n, visit, tail, ctx, err);
    }
    mem_free(list);
    return status;
}

enum status journal_begin(struct journal *journal, struct store *store, uint64_t segment, struct err *err)
{
    /* This sync writes no mark after it: an older segment must be durable to its last byte. */
    assert(!journal->open || (journal->store == store && journal->durable <= journal->size));
    if (journal->open) TRY(store->ops->sync(store, err));
    TRY(store->ops->segment_begin(store, segment, err));
    *journal = (struct journal){.store = store, .segment = segment, .open = true};
    return begin_header(journal, err);
}

/* parts[n + 1]: the first one is for the header. */
static enum status append_record(struct journal *journal, struct header *h, struct store_part *parts, size_t n,
                                 struct journal_ref *at, struct err *err)
{
    uint8_t head[JOURNAL_RECORD_HEADER];
    struct writer w = writer_of(head, sizeof head);
    h->durable = journal->durable;
    for (size_t i = 1; i <= n; i++) h->size += parts[i].size;
    fields_put(journal_header_fields, h, &w);
    put_u32(&w, crc32c(0, head, sizeof head - 4));
    parts[0] = (struct store_part){head, sizeof head};
    TRY(journal->store->ops->append(journal->store, parts, n + 1, err));
    assert(journal->durable <= journal->size && w.pos == sizeof head);
    if (at) *at = (struct journal_ref){journal->segment, journal->size + sizeof head};
    journal->size += sizeof head + h->size;
    journal->dirty = true;
    return STATUS_OK;
}

enum status journal_append(struct journal *journal, uint16_t type, const struct store_part *parts, size_t n,
                           struct journal_ref *at, struct err *err)
{
    struct store_part all[JOURNAL_PARTS_MAX + 1];
    struct header h = {.type = type};
    if (n > JOURNAL_PARTS_MAX || !journal->open) return err_set(err, STATUS_STATE, "journal record with %zu parts", n);
    for (size_t i = 0; i < n; i++) {
        h.crc = crc32c(h.crc, parts[i].data, parts[i].size);
        all[i + 1] = parts[i];
    }
    return append_record(journal, &h, all, n, at, err);
}

enum status journal_append_known(struct journal *journal, uint16_t type, const struct store_part *head,
                                 const struct store_part *tail, uint32_t crc, struct journal_ref *at, struct err *err)
{
    struct store_part all[] = {{0}, *head, *tail};
    struct header h = {.type = type, .crc = crc32c_join(crc32c(0, head->data, head->size), crc, tail->size)};
    if (!journal->open) return err_set(err, STATUS_STATE, "journal record without a segment");
    return append_record(journal, &h, all, 2, at, err);
}

enum status journal_sync(struct journal *journal, struct err *err)
{
    if (!journal->dirty) return STATUS_OK;
    TRY(journal->store->ops->sync(journal->store, err));
    journal->durable = journal->size;
    TRY(journal_append(journal, JOURNAL_MARK, NULL, 0, NULL, err));
    assert(journal->size == journal->durable + JOURNAL_RECORD_HEADER);
    journal->dirty = false; /* losing the mark is harmless, so it needs no sync */
    return STATUS_OK;
}
