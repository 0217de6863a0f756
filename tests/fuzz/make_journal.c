/* Seed inputs of fuzz_journal and fuzz_format, from a run of the engine. */
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "coordinator/ledger/store.h"
#include "tests/fuzz/make_corpus.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"
#include "worker/outer/worker_state.h"

static struct rig rig;

static void put_of(const char *fuzzer, const char *name, uint8_t mode, const uint8_t *data, size_t size)
{
    corpus_put(fuzzer, name, &mode, 1, data, size);
}

static void put(const char *name, uint8_t mode, const uint8_t *data, size_t size)
{
    put_of("journal", name, mode, data, size);
}

struct records {
    uint8_t bytes[65536];
    size_t n;
};

static enum status keep(void *ctx, const struct journal_record *record, struct err *err)
{
    struct records *out = ctx;
    const size_t size = record->size;
    (void)err;
    if (out->n + 4 + size > sizeof out->bytes || size > 65535) return STATUS_LIMIT;
    struct writer w = writer_of(out->bytes + out->n, 4 + size);
    put_u16(&w, record->type);
    put_u16(&w, (uint16_t)size);
    put_bytes(&w, record->body, size);
    out->n += w.pos;
    put_of("format", record_name(record->type), (uint8_t)record->type, record->body, size);
    return STATUS_OK;
}

static void make_state(void)
{
    static struct saved_state state = {.n_fragments = 1, .in_round = true, .task = {.steps = 2, .n_ranges = 1}};
    static uint8_t head[SAVED_HEAD_MAX];
    struct writer w = writer_of(head, sizeof head);
    fields_put(saved_state_parts[1].fields, &state, &w);
    put_of("format", "worker_state", 97, head, w.pos);
}

/* Uses the settings of the fuzzer, so that recovery recomputes the same bytes. */
TEST(make)
{
    static struct records records;
    const char *settings[] = {"train.fragments=2", "codec.down=int8:16", "coordinator.min_workers=2",
                              "checkpoint.every=0", NULL};
    struct journal j;
    size_t size;
    rig_open(&rig, settings);
    rig.workers[0].blind = true; /* the second worker's JOIN gives a VAL record */
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    for (int round = 0; round < 2; round++) {
        rig_assigned(&rig, 0);
        rig_assigned(&rig, 1);
        rig_deliver_all(&rig, 2, 1);
        char name[32];
        const uint8_t *bytes = store_mem_segment(rig.store, 1, &size, NULL);
        snprintf(name, sizeof name, "segment_%d", round);
        put(name, 0, bytes, size);
    }
    struct msg leave = {.type = MSG_LEAVE, .leave.session = rig.workers[1].session};
    rig_say(&rig, rig.workers[1].control, &leave);
    uint8_t *first = store_mem_segment(rig.store, 0, &size, NULL);
    put("segment_run", 0, first, size);
    struct journal_tail tail = {.lost = keep};
    if (journal_recover(&j, rig.store, 0, keep, &tail, &records, NULL) != STATUS_OK) fail();
    put("records", 1, records.bytes, records.n);
    uint64_t state_size;
    uint8_t head[65536];
    if (rig.store->ops->checkpoint_state_size(rig.store, 0, &state_size, NULL) != STATUS_OK ||
        state_size > sizeof head ||
        rig.store->ops->checkpoint_state_read(rig.store, 0, 0, head, state_size, NULL) != STATUS_OK)
        fail();
    struct reader r = reader_of(head + 8, 8);
    size = get_u64(&r);
    put("checkpoint", 2, head + 24, size);
    put_of("format", "checkpoint", 64, head + 24, size);
    make_state();
    rig_close(&rig);
}

void corpus_make_journal(void)
{
    if (test_run(0, NULL, NULL, NULL) != 0) corpus_die("the run of the engine failed");
}
