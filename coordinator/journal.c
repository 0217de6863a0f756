#include "coordinator/journal.h"

#include <string.h>

#include "common/bytes.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/mem.h"

static const char segment_magic[8] = {'A', 'T', 'O', 'L', 'L', 'J', '1', '\n'};
static const uint32_t record_magic = 0x4c4e524a; /* "JRNL" */

struct header {
    uint16_t type;
    uint64_t size, durable;
    uint32_t crc;
};

/* False when these are not the first bytes of a record. */
static bool header_decode(struct header *h, const uint8_t *data, size_t size)
{
    if (size < JOURNAL_RECORD_HEADER) return false;
    struct reader r = reader_of(data, JOURNAL_RECORD_HEADER);
    uint32_t magic = get_u32(&r);
    h->type = get_u16(&r);
    uint16_t zero = get_u16(&r);
    h->size = get_u64(&r);
    h->durable = get_u64(&r);
    h->crc = get_u32(&r);
    return magic == record_magic && !zero && get_u32(&r) == crc32c(0, data, JOURNAL_RECORD_HEADER - 4);
}

/* A whole record at data: its header and length. */
static bool record_whole(struct header *h, const uint8_t *data, size_t size)
{
    return header_decode(h, data, size) && h->size <= size - JOURNAL_RECORD_HEADER &&
           crc32c(0, data + JOURNAL_RECORD_HEADER, h->size) == h->crc;
}

static void segment_header(uint8_t out[JOURNAL_SEGMENT_HEADER], uint64_t segment)
{
    struct writer w = writer_of(out, JOURNAL_SEGMENT_HEADER);
    put_bytes(&w, segment_magic, sizeof segment_magic);
    put_u64(&w, segment);
    put_u32(&w, crc32c(0, out, 16));
    put_u32(&w, 0);
}

/* Does any whole record behind `at` know the byte at `at` to be durable? */
static bool was_durable(const uint8_t *data, size_t size, size_t at)
{
    const uint8_t first = record_magic & 0xff;
    for (size_t i = at + 1; i < size; i++) {
        const uint8_t *hit = memchr(data + i, first, size - i);
        if (!hit) return false;
        i = (size_t)(hit - data);
        struct header h;
        if (record_whole(&h, hit, size - i) && h.durable > at) return true;
    }
    return false;
}

enum status journal_scan(uint64_t segment, const uint8_t *data, size_t size, bool last, size_t *good_p,
                         journal_visit_fn visit, void *ctx, struct err *err)
{
    uint8_t head[JOURNAL_SEGMENT_HEADER];
    segment_header(head, segment);
    size_t at = 0;
    if (size >= sizeof head && !memcmp(head, data, sizeof head)) {
        at = sizeof head;
        struct header h;
        while (at < size && record_whole(&h, data + at, size - at)) {
            const uint8_t *body = data + at + JOURNAL_RECORD_HEADER;
            struct journal_ref ref = {segment, at + JOURNAL_RECORD_HEADER};
            if (h.type != JOURNAL_MARK) TRY(visit(ctx, h.type, ref, body, h.size, err));
            at += JOURNAL_RECORD_HEADER + h.size;
        }
    }
    *good_p = at;
    if (at == size && at) return STATUS_OK;
    if (!last || was_durable(data, size, at))
        return err_set(err, STATUS_CORRUPT,
                       "journal segment %llu is damaged at byte %zu, in front of records that were safe: restore it "
                       "from a copy, or start from a checkpoint in a new run folder",
                       (unsigned long long)segment, at);
    return STATUS_OK;
}

struct recovery {
    struct journal *journal;
    journal_visit_fn visit;
    void *ctx;
};

static enum status recover_segment(struct recovery *rec, uint64_t segment, bool last, struct err *err)
{
    struct journal *j = rec->journal;
    uint64_t size;
    size_t good;
    TRY(j->store->ops->segment_size(j->store, segment, &size, err));
    uint8_t *data = mem_alloc(1, size);
    if (!data) return err_set(err, STATUS_NOMEM, "no memory to read %llu bytes of journal", (unsigned long long)size);
    enum status status;
    TRY_GOTO(j->store->ops->segment_read(j->store, segment, 0, data, size, err), done);
    TRY_GOTO(journal_scan(segment, data, size, last, &good, rec->visit, rec->ctx, err), done);
    if (!last) goto done;
    if (good < size)
        log_warn("journal segment %llu: %llu bytes behind byte %zu were not written completely before the crash, they "
                 "are dropped", (unsigned long long)segment, (unsigned long long)(size - good), good);
    TRY_GOTO(j->store->ops->segment_continue(j->store, segment, good, err), done);
    *j = (struct journal){.store = j->store, .segment = segment, .size = good, .durable = good, .open = true};
    if (!good) { /* not even its header had reached the disk */
        uint8_t head[JOURNAL_SEGMENT_HEADER];
        segment_header(head, segment);
        struct store_part part = {head, sizeof head};
        TRY_GOTO(j->store->ops->append(j->store, &part, 1, err), done);
        j->size = sizeof head;
        j->dirty = true;
    }
done:
    mem_free(data);
    return status;
}

enum status journal_recover(struct journal *journal, struct store *store, uint64_t first, journal_visit_fn visit,
                            void *ctx, struct err *err)
{
    uint64_t list[STORE_LIST_MAX];
    size_t n;
    *journal = (struct journal){.store = store};
    struct recovery rec = {journal, visit, ctx};
    TRY(store->ops->segment_list(store, list, STORE_LIST_MAX, &n, err));
    uint64_t expect = first;
    for (size_t i = 0; i < n; i++) {
        if (list[i] < first) continue;
        if (list[i] != expect++)
            return err_set(err, STATUS_CORRUPT, "journal segment %llu is missing: restore it from a copy",
                           (unsigned long long)(expect - 1));
        TRY(recover_segment(&rec, list[i], i + 1 == n, err));
    }
    return STATUS_OK;
}

enum status journal_begin(struct journal *journal, struct store *store, uint64_t segment, struct err *err)
{
    if (journal->open) TRY(journal_sync(journal, err));
    *journal = (struct journal){.store = store, .segment = segment};
    uint8_t head[JOURNAL_SEGMENT_HEADER];
    segment_header(head, segment);
    struct store_part part = {head, sizeof head};
    TRY(store->ops->segment_begin(store, segment, err));
    TRY(store->ops->append(store, &part, 1, err));
    journal->size = sizeof head;
    journal->open = true;
    journal->dirty = true;
    return STATUS_OK;
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
    journal->dirty = false; /* the mark itself needs no sync */
    return STATUS_OK;
}
