#include "coordinator/ledger/journal.h"

#include <assert.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"

static const char segment_magic[8] = {'A', 'T', 'O', 'L', 'L', 'J', JOURNAL_FORMAT, '\n'};
static const uint32_t record_magic = 0x4c4e524a; /* "JRNL" */

enum { FORMAT_AT = 6, SCAN_WINDOW = 1 << 20 };

struct header {
    uint16_t type;
    uint64_t size, durable;
    uint32_t crc;
};

/* False: the bytes are not a valid record header. */
static bool header_decode(struct header *h, const uint8_t data[JOURNAL_RECORD_HEADER])
{
    struct reader r = reader_of(data, JOURNAL_RECORD_HEADER);
    uint32_t magic = get_u32(&r);
    h->type = get_u16(&r);
    uint16_t zero = get_u16(&r);
    h->size = get_u64(&r);
    h->durable = get_u64(&r);
    h->crc = get_u32(&r);
    return magic == record_magic && !zero && get_u32(&r) == crc32c(0, data, JOURNAL_RECORD_HEADER - 4);
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

/* Finds the next valid record header from byte *at on; END: there is none. Its body may be damaged. */
static enum status find_header(const struct journal_source *source, uint64_t *at, uint8_t *window, struct header *h,
                               struct err *err)
{
    for (uint64_t from = *at; from + JOURNAL_RECORD_HEADER <= source->size;) {
        uint64_t left = source->size - from;
        size_t n = left < SCAN_WINDOW ? (size_t)left : SCAN_WINDOW;
        TRY(source->read(source->ctx, from, window, n, err));
        for (size_t i = 0; i + JOURNAL_RECORD_HEADER <= n; i++) {
            if (window[i] != (record_magic & 0xff) || !header_decode(h, window + i)) continue;
            *at = from + i;
            return STATUS_OK;
        }
        from += n - (JOURNAL_RECORD_HEADER - 1);
    }
    return STATUS_END;
}

/* Searches the bytes after `at` for a record that calls the byte at `at` durable. A header has its own checksum, so a
 * header is enough. */
static enum status was_durable(const struct journal_source *source, uint64_t at, bool *yes_p, struct err *err)
{
    uint8_t *window = mem_alloc(1, SCAN_WINDOW);
    enum status status = window ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory to search the journal");
    struct header h;
    *yes_p = false;
    for (uint64_t from = at + 1; status == STATUS_OK && !*yes_p; from++) {
        status = find_header(source, &from, window, &h, err);
        *yes_p = status == STATUS_OK && h.durable > at;
    }
    mem_free(window);
    return status == STATUS_END ? STATUS_OK : status;
}

struct scan {
    const struct journal_source *source;
    uint8_t *body;
    size_t cap;
    struct header header;
};

/* Reads the record at `at` into scan->body. OK, END if the record is incomplete or damaged, or a failure. */
static enum status scan_record(struct scan *scan, uint64_t at, struct err *err)
{
    const struct journal_source *source = scan->source;
    uint8_t head[JOURNAL_RECORD_HEADER];
    if (source->size - at < sizeof head) return STATUS_END;
    TRY(source->read(source->ctx, at, head, sizeof head, err));
    if (!header_decode(&scan->header, head) || scan->header.size > source->size - at - sizeof head) return STATUS_END;
    size_t size = scan->header.size;
    if (size > scan->cap) {
        mem_free(scan->body);
        scan->cap = 0;
        scan->body = mem_alloc(1, size);
        if (!scan->body) return err_set(err, STATUS_NOMEM, "no memory for a journal record of %zu bytes", size);
        scan->cap = size;
    }
    if (size) TRY(source->read(source->ctx, at + sizeof head, scan->body, size, err));
    return crc32c(0, scan->body, size) == scan->header.crc ? STATUS_OK : STATUS_END;
}

enum status journal_scan(const struct journal_source *source, uint64_t *good_p, journal_visit_fn visit, void *ctx,
                         struct err *err)
{
    uint8_t expect[JOURNAL_SEGMENT_HEADER], head[JOURNAL_SEGMENT_HEADER] = {0};
    struct scan scan = {.source = source};
    enum status status = STATUS_OK;
    uint64_t at = 0;
    segment_header(expect, source->segment, JOURNAL_FORMAT);
    if (source->size >= sizeof head) TRY(source->read(source->ctx, 0, head, sizeof head, err));
    TRY(check_format(head, source->segment, err));
    if (!memcmp(head, expect, sizeof head)) {
        at = sizeof head;
        while (at < source->size && (status = scan_record(&scan, at, err)) == STATUS_OK) {
            struct journal_ref ref = {source->segment, at + JOURNAL_RECORD_HEADER};
            if (scan.header.type != JOURNAL_MARK)
                TRY_GOTO(visit(ctx, scan.header.type, ref, scan.body, scan.header.size, err), done);
            at += JOURNAL_RECORD_HEADER + scan.header.size;
            assert(at <= source->size);
        }
        if (status != STATUS_OK && status != STATUS_END) goto done;
    }
    *good_p = at;
    status = STATUS_OK;
    if (at == source->size && at) goto done;
    bool bad = !source->last;
    if (!bad) TRY_GOTO(was_durable(source, at, &bad, err), done);
    if (bad)
        status = err_set(err, STATUS_CORRUPT,
                         "journal/%08llu.log is damaged at byte %llu, before records that were synced: restore "
                         "it from a copy, or run atoll repair RUN, which keeps all rounds before the damage",
                         (unsigned long long)source->segment, (unsigned long long)at);
done:
    mem_free(scan.body);
    return status;
}

enum status journal_salvage(const struct journal_source *source, uint64_t from, journal_visit_fn visit, void *ctx,
                            struct err *err)
{
    struct scan scan = {.source = source};
    struct header h;
    uint8_t *window = mem_alloc(1, SCAN_WINDOW);
    enum status status = window ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory to search the journal");
    for (uint64_t at = from;
         status == STATUS_OK && (status = find_header(source, &at, window, &h, err)) == STATUS_OK;) {
        struct journal_ref ref = {source->segment, at + JOURNAL_RECORD_HEADER};
        status = scan_record(&scan, at, err);
        at += status == STATUS_OK ? JOURNAL_RECORD_HEADER + h.size : 1;
        if (status == STATUS_OK && h.type != JOURNAL_MARK) status = visit(ctx, h.type, ref, scan.body, h.size, err);
        if (status == STATUS_END) status = STATUS_OK; /* the body is damaged: search on */
    }
    mem_free(scan.body);
    mem_free(window);
    return status == STATUS_END ? STATUS_OK : status;
}

static enum status store_read(void *ctx, uint64_t offset, void *dst, size_t size, struct err *err)
{
    const struct journal_segment_at *s = ctx;
    return s->store->ops->segment_read(s->store, s->segment, offset, dst, size, err);
}

enum status journal_source_of(struct journal_source *source, struct journal_segment_at *at, struct store *store,
                              uint64_t segment, bool last, struct err *err)
{
    *at = (struct journal_segment_at){store, segment};
    *source = (struct journal_source){.read = store_read, .ctx = at, .segment = segment, .last = last};
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

static enum status recover_segment(struct journal *j, uint64_t segment, bool last, journal_visit_fn visit, void *ctx,
                                   struct err *err)
{
    struct journal_segment_at where;
    struct journal_source source;
    uint64_t good;
    TRY(journal_source_of(&source, &where, j->store, segment, last, err));
    TRY(journal_scan(&source, &good, visit, ctx, err));
    assert(good <= source.size);
    if (!last) return STATUS_OK;
    if (good < source.size)
        log_warn("journal/%08llu.log: removed the last %llu bytes after byte %llu: the crash left an incomplete record",
                 (unsigned long long)segment, (unsigned long long)(source.size - good), (unsigned long long)good);
    TRY(j->store->ops->segment_continue(j->store, segment, good, err));
    *j = (struct journal){.store = j->store, .segment = segment, .size = good, .durable = good, .open = true};
    return good ? STATUS_OK : begin_header(j, err); /* 0: the crash lost the segment's header, too */
}

enum status journal_missing(uint64_t segment, struct err *err)
{
    const char *instead = segment ? "run atoll repair RUN, which keeps all rounds before it"
                                  : "start a new run from a checkpoint (model.init_from)"; /* no round is before it */
    return err_set(err, STATUS_CORRUPT, "journal/%08llu.log is missing: restore it from a copy, or %s",
                   (unsigned long long)segment, instead);
}

enum status journal_recover(struct journal *journal, struct store *store, uint64_t first, journal_visit_fn visit,
                            void *ctx, struct err *err)
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
            status = recover_segment(journal, list[i], i + 1 == n, visit, ctx, err);
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

enum status journal_append(struct journal *journal, uint16_t type, const struct store_part *parts, size_t n,
                           struct journal_ref *at, struct err *err)
{
    struct store_part all[JOURNAL_PARTS_MAX + 1];
    uint8_t head[JOURNAL_RECORD_HEADER];
    uint32_t crc = 0;
    uint64_t size = 0;
    if (n > JOURNAL_PARTS_MAX || !journal->open) return err_set(err, STATUS_STATE, "journal record with %zu parts", n);
    for (size_t i = 0; i < n; i++) {
        crc = crc32c(crc, parts[i].data, parts[i].size);
        size += parts[i].size;
        all[i + 1] = parts[i];
    }
    struct writer w = writer_of(head, sizeof head);
    put_u32(&w, record_magic);
    put_u16(&w, type);
    put_u16(&w, 0);
    put_u64(&w, size);
    put_u64(&w, journal->durable);
    put_u32(&w, crc);
    put_u32(&w, crc32c(0, head, sizeof head - 4));
    all[0] = (struct store_part){head, sizeof head};
    TRY(journal->store->ops->append(journal->store, all, n + 1, err));
    assert(journal->durable <= journal->size && w.pos == sizeof head);
    if (at) *at = (struct journal_ref){journal->segment, journal->size + sizeof head};
    journal->size += sizeof head + size;
    journal->dirty = true;
    return STATUS_OK;
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
