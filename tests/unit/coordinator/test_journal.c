/* The journal:
 * - every truncation leaves a prefix; torn and unordered tails are cut,
 * - damage before durable records is refused,
 * - a failed append leaves no bytes,
 * - the format is pinned. */

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/rigs/golden.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

enum { RECORDS_MAX = 64 };

struct seen {
    uint16_t type[RECORDS_MAX];
    uint8_t first[RECORDS_MAX];
    size_t size[RECORDS_MAX];
    struct journal_ref at[RECORDS_MAX];
    int n, fail_at;
};

static enum status note(void *ctx, const struct journal_record *record, struct err *err)
{
    struct seen *seen = ctx;
    if (seen->fail_at && seen->n + 1 == seen->fail_at) return err_set(err, STATUS_MISMATCH, "the test fails here");
    if (seen->n == RECORDS_MAX) return STATUS_LIMIT;
    seen->type[seen->n] = record->type;
    seen->first[seen->n] = record->size ? record->body[0] : 0;
    seen->size[seen->n] = record->size;
    seen->at[seen->n++] = record->at;
    return STATUS_OK;
}

static void append(struct journal *j, uint16_t type, uint8_t fill, size_t size)
{
    uint8_t body[700];
    struct store_part parts[2] = {{body, size / 2}, {body + size / 2, size - size / 2}};
    struct journal_ref at;
    memset(body, fill, sizeof body);
    assert_int_equal(journal_append(j, type, parts, 2, &at, NULL), STATUS_OK);
    uint8_t back[700];
    assert_int_equal(j->store->ops->segment_read(j->store, at.segment, at.offset, back, size, NULL), STATUS_OK);
    assert_memory_equal(back, body, size); /* the reference points to the body */
}

/* A record whose last part has a known checksum has the bytes of any other. */
TEST(test_known_checksum_gives_same_record)
{
    uint8_t bytes[2][400], body[300];
    for (size_t i = 0; i < sizeof body; i++) body[i] = (uint8_t)(i * 7);
    const struct store_part parts[2] = {{body, 68}, {body + 68, sizeof body - 68}};
    size_t size[2];
    for (int known = 0; known < 2; known++) {
        struct store *store;
        struct journal j = {0};
        struct journal_ref at;
        assert_int_equal(store_mem_create(&store), STATUS_OK);
        assert_int_equal(journal_begin(&j, store, 0, NULL), STATUS_OK);
        uint32_t crc = crc32c(0, parts[1].data, parts[1].size);
        enum status status = known ? journal_append_known(&j, 5, &parts[0], &parts[1], crc, &at, NULL)
                                   : journal_append(&j, 5, parts, 2, &at, NULL);
        assert_int_equal(status, STATUS_OK);
        const uint8_t *segment = store_mem_segment(store, 0, &size[known], NULL);
        assert_true(size[known] <= sizeof bytes[known] && at.offset == size[known] - sizeof body);
        memcpy(bytes[known], segment, size[known]);
        store_mem_destroy(store);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(bytes[0], bytes[1], size[0]);
    struct journal closed = {0};
    assert_int_equal(journal_append_known(&closed, 5, &parts[0], &parts[1], 0, NULL, NULL), STATUS_STATE);
}

/* Segment 0: three records, sync, three more; segment 1: two records, not synced. */
static void sample(struct store *store, struct journal *j)
{
    *j = (struct journal){0};
    assert_int_equal(journal_begin(j, store, 0, NULL), STATUS_OK);
    for (uint8_t i = 1; i <= 3; i++) append(j, i, (uint8_t)(0xa0 + i), 10u * i);
    assert_int_equal(journal_sync(j, NULL), STATUS_OK);
    for (uint8_t i = 4; i <= 6; i++) append(j, i, (uint8_t)(0xa0 + i), 10u * i);
    assert_int_equal(journal_begin(j, store, 1, NULL), STATUS_OK);
    append(j, 7, 0xa7, 600);
    append(j, 8, 0xa8, 0);
}

static struct store *new_store(void)
{
    struct store *store;
    assert_int_equal(store_mem_create(&store), STATUS_OK);
    return store;
}

static struct journal_tail tail; /* of the last recovery */
static struct seen behind[1];    /* the records in it */

static enum status note_lost(void *ctx, const struct journal_record *record, struct err *err)
{
    (void)ctx;
    return note(behind, record, err);
}

static enum status recover(struct store *store, struct journal *j, struct seen *seen, struct err *err)
{
    memset(seen, 0, sizeof *seen);
    memset(behind, 0, sizeof *behind);
    tail = (struct journal_tail){.lost = note_lost};
    return journal_recover(j, store, 0, note, &tail, seen, err);
}

TEST(test_records_are_read_back)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct seen seen;
    sample(store, &j);
    assert_int_equal(recover(store, &j, &seen, NULL), STATUS_OK);
    assert_int_equal(seen.n, 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(seen.type[i], i + 1);
        assert_int_equal(seen.at[i].segment, i < 6 ? 0 : 1);
        if (i < 7) assert_int_equal(seen.first[i], 0xa1 + i);
    }
    append(&j, 9, 0xa9, 5); /* continues at the end */
    assert_int_equal(recover(store, &j, &seen, NULL), STATUS_OK);
    assert_int_equal(seen.n, 9);
    assert_int_equal(seen.at[8].segment, 1);
    store_mem_destroy(store);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_empty_store_has_no_records)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct seen seen;
    assert_int_equal(recover(store, &j, &seen, NULL), STATUS_OK);
    assert_false(j.open);
    assert_int_not_equal(journal_append(&j, 1, NULL, 0, NULL, NULL), STATUS_OK);
    store_mem_destroy(store);
}

/* Cuts the last segment at every byte: the longest prefix of whole records stays, and appending continues. */
TEST(test_truncated_segment_leaves_prefix)
{
    struct store *whole = new_store(), *store;
    struct journal j = {0};
    struct seen seen;
    size_t size, after;
    sample(whole, &j);
    append(&j, 9, 0xa9, 40);
    assert_non_null(store_mem_segment(whole, 1, &size, NULL));
    for (size_t cut = 0; cut <= size; cut++) {
        assert_int_equal(store_mem_copy(&store, whole), STATUS_OK);
        store_mem_cut(store, 1, cut);
        assert_int_equal(recover(store, &j, &seen, NULL), STATUS_OK);
        size_t ends[] = {JOURNAL_SEGMENT_HEADER + 632, JOURNAL_SEGMENT_HEADER + 664, size};
        int expect = 6;
        for (int i = 0; i < 3; i++) expect += cut >= ends[i];
        assert_int_equal(seen.n, expect);
        assert_non_null(store_mem_segment(store, 1, &after, NULL));
        assert_int_equal(after, expect == 6 ? JOURNAL_SEGMENT_HEADER : ends[expect - 7]);
        append(&j, 10, 0xaa, 3);
        assert_int_equal(recover(store, &j, &seen, NULL), STATUS_OK);
        assert_int_equal(seen.n, expect + 1);
        store_mem_destroy(store);
    }
    store_mem_destroy(whole);
}

/* Damage in synced bytes before later records is refused. Behind them, the tail is cut. */
TEST(test_damage_before_durable_records_is_refused)
{
    struct store *whole = new_store(), *store;
    struct journal j = {0};
    struct seen seen;
    size_t size;
    assert_int_equal(journal_begin(&j, whole, 0, NULL), STATUS_OK);
    append(&j, 1, 0xa1, 20);
    append(&j, 2, 0xa2, 20);
    size_t safe = j.size;
    assert_int_equal(journal_sync(&j, NULL), STATUS_OK);
    append(&j, 3, 0xa3, 20);
    append(&j, 4, 0xa4, 20);
    assert_non_null(store_mem_segment(whole, 0, &size, NULL));
    for (size_t at = 0; at < size; at++) {
        struct err err = {0};
        assert_int_equal(store_mem_copy(&store, whole), STATUS_OK);
        store_mem_segment(store, 0, &size, NULL)[at] ^= 0x10;
        enum status status = recover(store, &j, &seen, &err);
        if (at < safe) {
            assert_int_equal(status, STATUS_CORRUPT);
            assert_non_null(strstr(err.msg, "journal/00000000.log is damaged at byte"));
        } else {
            /* Whole records behind the mark or the third record: no crash cut a record there. */
            bool fourth = at >= size - JOURNAL_RECORD_HEADER - 20, mark = at < safe + JOURNAL_RECORD_HEADER;
            assert_int_equal(status, STATUS_OK);
            assert_int_equal(seen.n, fourth ? 3 : 2);
            assert_int_equal(tail.aside[0] != 0, !fourth);
            assert_int_equal(tail.end.records, mark ? 2 : fourth ? 0 : 1);
            assert_int_equal(behind->n, tail.end.records);
            if (!fourth) {
                assert_int_equal(tail.segment, 0);
                assert_true(tail.end.good >= safe && tail.size == size);
                assert_int_equal(behind->type[behind->n - 1], 4);
            }
        }
        store_mem_destroy(store);
    }
    store_mem_destroy(whole);
}

/* Bytes that the disk cannot read are damaged bytes, wherever they are. */
TEST(test_unreadable_bytes_are_damage)
{
    struct store *whole = new_store(), *store;
    struct journal j = {0};
    struct seen seen;
    size_t size;
    assert_int_equal(journal_begin(&j, whole, 0, NULL), STATUS_OK);
    for (uint8_t i = 1; i <= 4; i++) append(&j, i, i, 600);
    size_t safe = j.size;
    assert_int_equal(journal_sync(&j, NULL), STATUS_OK);
    for (uint8_t i = 5; i <= 20; i++) append(&j, i, i, 600);
    assert_non_null(store_mem_segment(whole, 0, &size, NULL));
    for (size_t at = 0; at < size; at += 4096) {
        struct err err = {0};
        assert_int_equal(store_mem_copy(&store, whole), STATUS_OK);
        store_mem_spoil(store, 0, at, at + 4096);
        enum status status = recover(store, &j, &seen, &err);
        if (at < safe) {
            assert_int_equal(status, STATUS_CORRUPT);
            assert_non_null(strstr(err.msg, "journal/00000000.log is damaged at byte"));
            assert_non_null(strstr(err.msg, ", which the disk cannot read, before records that were synced"));
            assert_true(seen.n < 4);
        } else {
            if (status != STATUS_OK) fail_msg("%s", err.msg);
            assert_true(tail.aside[0] && tail.end.unreadable && tail.end.good <= at && tail.size == size);
            assert_true(behind->n == (int)tail.end.records && seen.n + behind->n >= 20 - 8);
            append(&j, 30, 0xaa, 3); /* the segment has its good records, and continues */
            int before = seen.n;
            assert_int_equal(recover(store, &j, &seen, NULL), STATUS_OK);
            assert_int_equal(seen.n, before + 1);
        }
        store_mem_destroy(store);
    }
    store_mem_destroy(whole);
}

struct counted {
    const uint8_t *bytes;
    uint64_t read;
};

static enum status read_counted(const struct journal_source *source, uint64_t offset, void *dst, size_t size,
                                struct err *err)
{
    struct counted *c = source->ctx;
    (void)err;
    memcpy(dst, c->bytes + offset, size);
    c->read += size;
    return STATUS_OK;
}

/* The body of a damaged record consists of headers of long records: the search behind it stays short. */
TEST(test_search_behind_damage_is_bounded)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct journal_end end;
    size_t size;
    enum { FAKES = 4000, BODY = FAKES * JOURNAL_RECORD_HEADER };
    uint8_t *body = mem_alloc(1, BODY);
    assert_non_null(body);
    for (size_t i = 0; i < FAKES; i++) {
        struct writer w = writer_of(body + i * JOURNAL_RECORD_HEADER, JOURNAL_RECORD_HEADER);
        put_u32(&w, 0x4c4e524a);
        put_u32(&w, 3);
        put_u64(&w, BODY - (i + 1) * JOURNAL_RECORD_HEADER);
        put_u64(&w, 0);
        put_u32(&w, 1); /* a wrong checksum */
        put_u32(&w, crc32c(0, body + i * JOURNAL_RECORD_HEADER, JOURNAL_RECORD_HEADER - 4));
    }
    struct store_part part = {body, BODY};
    assert_int_equal(journal_begin(&j, store, 0, NULL), STATUS_OK);
    assert_int_equal(journal_append(&j, 1, &part, 1, NULL, NULL), STATUS_OK);
    uint8_t *bytes = store_mem_segment(store, 0, &size, NULL);
    bytes[JOURNAL_SEGMENT_HEADER + 1] ^= 1;
    struct counted counted = {.bytes = bytes};
    struct journal_source source = {.read = read_counted, .ctx = &counted, .size = size, .last = true};
    struct seen seen = {0};
    assert_int_equal(journal_scan(&source, &end, note, &seen, NULL), STATUS_OK);
    assert_int_equal(end.good, JOURNAL_SEGMENT_HEADER);
    assert_true(counted.read < 10 * size);
    mem_free(body);
    store_mem_destroy(store);
}

/* A mark follows the sync: damage of the last synced record is detected although no record follows. */
TEST(test_damage_of_last_synced_record_is_refused)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct seen seen;
    size_t size;
    assert_int_equal(journal_begin(&j, store, 0, NULL), STATUS_OK);
    append(&j, 1, 0xa1, 20);
    uint64_t end = j.size;
    assert_int_equal(journal_sync(&j, NULL), STATUS_OK);
    store_mem_segment(store, 0, &size, NULL)[end - 1] ^= 1;
    assert_int_equal(recover(store, &j, &seen, NULL), STATUS_CORRUPT);
    store_mem_destroy(store);
}

/* An older segment is whole or damaged: it was synced before the next one began. */
TEST(test_truncated_older_segment_is_refused)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct seen seen;
    struct err err = {0};
    size_t size;
    sample(store, &j);
    assert_non_null(store_mem_segment(store, 0, &size, NULL));
    store_mem_cut(store, 0, size - 1);
    assert_int_equal(recover(store, &j, &seen, &err), STATUS_CORRUPT);
    store_mem_destroy(store);

    store = new_store();
    sample(store, &j);
    assert_int_equal(store->ops->segment_remove(store, 0, NULL), STATUS_OK);
    assert_int_equal(recover(store, &j, &seen, &err), STATUS_CORRUPT); /* replay starts at segment 0 */
    memset(&seen, 0, sizeof seen);
    assert_int_equal(journal_recover(&j, store, 1, note, &tail, &seen, &err), STATUS_OK);
    assert_int_equal(seen.n, 2);
    store_mem_destroy(store);
}

TEST(test_failed_append_leaves_no_bytes)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct seen seen;
    struct err err = {0};
    uint8_t body[100] = {1};
    struct store_part part = {body, sizeof body};
    sample(store, &j);
    store_mem_set_room(store, 120);
    assert_int_equal(journal_append(&j, 9, &part, 1, NULL, &err), STATUS_IO);
    assert_non_null(strstr(err.msg, "No space left"));
    store_mem_set_room(store, UINT64_MAX);
    assert_int_equal(recover(store, &j, &seen, &err), STATUS_OK);
    assert_int_equal(seen.n, 8);
    store_mem_destroy(store);
}

TEST(test_visitor_error_stops_recovery)
{
    struct store *store = new_store();
    struct journal j = {0};
    struct seen seen = {.fail_at = 4};
    struct err err = {0};
    sample(store, &j);
    assert_int_equal(journal_recover(&j, store, 0, note, &tail, &seen, &err), STATUS_MISMATCH);
    assert_string_equal(err.msg, "the test fails here");
    assert_int_equal(seen.n, 3);
    store_mem_destroy(store);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_journal_matches_golden_file)
{
    struct store *store = new_store();
    struct journal j = {0};
    size_t size;
    assert_int_equal(journal_begin(&j, store, 7, NULL), STATUS_OK);
    append(&j, 1, 0x11, 5);
    assert_int_equal(journal_sync(&j, NULL), STATUS_OK);
    append(&j, 9, 0x22, 12);
    const uint8_t *bytes = store_mem_segment(store, 7, &size, NULL);
    golden_check("journal_v2/segment", bytes, size);
    store_mem_destroy(store);
}

static enum status read_golden(const struct journal_source *source, uint64_t offset, void *dst, size_t size,
                               struct err *err)
{
    (void)err;
    memcpy(dst, (const uint8_t *)source->ctx + offset, size);
    return STATUS_OK;
}

/* A segment of another format is refused by name, at any position; a damaged header is only damage. */
TEST(test_segment_of_other_format_is_refused)
{
    uint8_t bytes[1024];
    struct journal_end end;
    struct seen seen = {0};
    struct journal_source source = {.read = read_golden, .ctx = bytes, .segment = 7};
    source.size = golden_read("journal_v2/segment", bytes, sizeof bytes);
    bytes[6] = '1';
    struct writer w = writer_of(bytes + 16, 4);
    put_u32(&w, crc32c(0, bytes, 16));
    for (int last = 0; last < 2; last++) {
        struct err err = {0};
        source.last = last;
        assert_int_equal(journal_scan(&source, &end, note, &seen, &err), STATUS_UNSUPPORTED);
        assert_string_equal(err.msg,
                            "journal/00000007.log has format 1, this program reads 2: continue with the release "
                            "that began the run, or start a new run from a checkpoint (model.init_from)");
    }
    bytes[20] ^= 1;
    assert_int_equal(journal_scan(&source, &end, note, &seen, NULL), STATUS_CORRUPT);
    assert_int_equal(seen.n, 0);
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

/* A MODEL record of an older release ends before the list. */
TEST(test_model_record_without_list_is_read)
{
    struct record_model m = {.layout = (const uint8_t *)"abc", .layout_size = 3, .model_config = "{}", .n_hashes = 1};
    struct record_model got = {0};
    uint8_t old[256], new[256];
    m.model_config_size = 2;
    struct writer w = writer_of(old, sizeof old);
    record_encode(RECORD_MODEL, &m, &w);
    assert_int_equal(record_decode(RECORD_MODEL, &got, old, w.pos), STATUS_OK);
    assert_null(got.frozen);
    size_t before = w.pos;
    m.frozen = (const uint8_t *)"xyz";
    m.frozen_size = 3;
    m.frozen_whole = true;
    w = writer_of(new, sizeof new);
    record_encode(RECORD_MODEL, &m, &w);
    assert_int_equal(record_decode(RECORD_MODEL, &got, new, w.pos), STATUS_OK);
    assert_true(got.frozen_whole && got.frozen_size == 3 && !memcmp(got.frozen, "xyz", 3));
    for (size_t cut = before + 1; cut < w.pos; cut++)
        assert_int_equal(record_decode(RECORD_MODEL, &got, new, cut), STATUS_CORRUPT);
    new[before] = 2; /* neither true nor false */
    assert_int_equal(record_decode(RECORD_MODEL, &got, new, w.pos), STATUS_CORRUPT);
}

int main(int argc, char **argv)
{
    log_set_sink(quiet, NULL);
    return test_run(argc, argv, NULL, NULL);
}
