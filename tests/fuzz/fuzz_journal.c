/* The input of recovery: a damaged journal or checkpoint is refused with one line. The first byte selects the input:
 * 0  the rest is a segment, byte for byte;
 * 1  the rest is records (u16 type, u16 length, body ...); the fuzzer writes correct headers, so that the input gets
 * past the checksums;
 * 2  the rest is the head of a checkpoint's state, with a correct prefix. */
#include <stdint.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/ledger.h"
#include "tests/fuzz/fuzz_check.h"
#include "tests/lib/store/store_mem.h"

enum { PARAMS_MAX = 1 << 14, WORKERS_MAX = 1 << 12 };

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void configure(struct config *config)
{
    static const char *const settings[] = {"train.max_steps=6",   "train.sync_every=2", "train.batch_size=1",
                                           "model.block_size=8",  "codec.up=fp32",      "codec.down=int8:16",
                                           "inner.warmup_steps=1"};
    struct config_sources sources;
    log_set_sink(quiet, NULL);
    config_defaults(config, &sources);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        FUZZ_CHECK(config_set(config, &sources, settings[i], CONFIG_FLAG, NULL) == STATUS_OK);
    FUZZ_CHECK(config_resolve(config, &sources, NULL) == STATUS_OK);
}

/* A large model is legal but makes the fuzzer slow. */
static bool too_large(const uint8_t *body, size_t size)
{
    struct record_model model = {0};
    struct layout layout;
    if (record_decode(RECORD_MODEL, &model, body, size) != STATUS_OK) return false;
    struct reader r = reader_of(model.layout, model.layout_size);
    layout_init(&layout);
    bool large = layout_decode(&layout, &r) == STATUS_OK && layout.n_params > PARAMS_MAX;
    layout_finish(&layout);
    return large;
}

struct memory {
    const uint8_t *data;
    size_t size;
};

static enum status read_memory(const struct journal_source *source, uint64_t offset, void *dst, size_t size,
                               struct err *err)
{
    const struct memory *m = source->ctx;
    (void)err;
    FUZZ_CHECK(offset <= m->size && size <= m->size - offset); /* recovery never reads past the end */
    memcpy(dst, m->data + offset, size);
    return STATUS_OK;
}

static enum status visit(void *ctx, const struct journal_record *record, struct err *err)
{
    struct ledger *l = ctx;
    if (record->type == RECORD_MODEL && too_large(record->body, record->size)) return STATUS_LIMIT;
    enum status status = ledger_replay(l, record, err);
    if (status == STATUS_OK && l->modelled) FUZZ_CHECK(lease_check(&l->round.leases) == STATUS_OK);
    if (status == STATUS_OK && l->modelled && l->round.members.n > WORKERS_MAX) return STATUS_LIMIT;
    return status;
}

/* Checks the framing only: the other modes decode the records. */
static enum status touch(void *ctx, const struct journal_record *record, struct err *err)
{
    uint32_t *sum = ctx;
    (void)err;
    FUZZ_CHECK(record->type != JOURNAL_MARK);
    FUZZ_CHECK(record->at.offset >= JOURNAL_SEGMENT_HEADER + JOURNAL_RECORD_HEADER);
    *sum += crc32c(0, record->body, record->size);
    return STATUS_OK;
}

static void fuzz_segment(const uint8_t *data, size_t size)
{
    uint32_t sum = 0;
    for (int last = 0; last < 2; last++) {
        struct memory memory = {data, size};
        struct journal_source source = {.read = read_memory, .ctx = &memory, .size = size, .last = last};
        struct err err = {0};
        struct journal_end end;
        enum status status = journal_scan(&source, &end, touch, &sum, &err);
        if (status == STATUS_OK) FUZZ_CHECK(end.good <= size && (last || end.good == size));
        if (status == STATUS_OK) FUZZ_CHECK(end.damaged == (end.records > 0)); /* all bytes are readable */
        if (status != STATUS_OK) FUZZ_CHECK(err.msg[0] && !strchr(err.msg, '\n'));
        if (status == STATUS_OK) break;
    }
}

static void fuzz_records(struct ledger *l, struct store *store, const uint8_t *data, size_t size)
{
    struct reader r = reader_of(data, size);
    FUZZ_CHECK(journal_begin(&l->journal, store, 0, NULL) == STATUS_OK);
    while (reader_left(&r) >= 4) {
        uint16_t type = get_u16(&r);
        size_t length = get_u16(&r);
        if (length > reader_left(&r)) length = reader_left(&r);
        const uint8_t *body = get_bytes(&r, length);
        struct store_part part = {body, length};
        struct journal_record record = {.type = type, .body = body, .size = length};
        struct err err = {0};
        FUZZ_CHECK(journal_append(&l->journal, type, &part, 1, &record.at, NULL) == STATUS_OK);
        enum status status = visit(l, &record, &err);
        if (status == STATUS_OK) continue;
        FUZZ_CHECK(status == STATUS_LIMIT || (err.msg[0] && !strchr(err.msg, '\n')));
        return;
    }
}

static void fuzz_snapshot(struct ledger *l, struct store *store, const uint8_t *data, size_t size)
{
    const uint64_t shape[1] = {8};
    uint8_t prefix[24];
    float theta[8] = {0};
    struct layout layout;
    struct checkpoint_info info;
    struct err err = {0};
    struct writer w = writer_of(prefix, sizeof prefix);
    put_bytes(&w, "ATOLLS4\n", 8);
    put_u64(&w, size);
    put_u32(&w, crc32c(0, data, size));
    put_u32(&w, 0);
    layout_init(&layout);
    FUZZ_CHECK(layout_add(&layout, "t", 1, shape, LAYOUT_INIT_ONES, 0, false) == STATUS_OK);
    struct store_part parts[2] = {{prefix, sizeof prefix}, {data, size}};
    struct store_checkpoint snapshot = {
        .layout = &layout, .theta = theta, .config_json = "{}", .state = parts, .n_state = 2};
    FUZZ_CHECK(store->ops->checkpoint_write(store, &snapshot, NULL) == STATUS_OK);
    layout_finish(&layout);
    enum status status = checkpoint_load(l, store, 0, &info, &err);
    if (status != STATUS_OK) FUZZ_CHECK(err.msg[0] && !strchr(err.msg, '\n'));
}

/* Corrects the hash of the configuration, or every input would stop there. Rejects a large model before recovery
 * allocates memory. */
static bool prepare_snapshot(struct ledger *l, uint8_t *data, size_t size)
{
    struct reader r = reader_of(data, size);
    static struct checkpoint_head head;
    fields_read(checkpoint_head_fields, &head, &r);
    if (r.bad) return true;
    head.run.config_hash = config_run_hash(l->config);
    struct writer w = writer_of(data, size);
    fields_put(checkpoint_head_fields, &head, &w);
    FUZZ_CHECK(!w.bad && w.pos == r.pos);
    return !too_large(head.model, head.model_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct config config;
    static bool ready;
    struct ledger ledger;
    struct store *store;
    if (!ready) configure(&config);
    ready = true;
    if (!size || data[0] > 2) return 0;
    size_t before = mem_live_bytes();
    FUZZ_CHECK(store_mem_create(&store) == STATUS_OK);
    FUZZ_CHECK(ledger_init(&ledger, &config, NULL, NULL) == STATUS_OK);
    ledger.journal.store = store;
    if (data[0] == 0) fuzz_segment(data + 1, size - 1);
    if (data[0] == 1) fuzz_records(&ledger, store, data + 1, size - 1);
    if (data[0] == 2) {
        uint8_t *copy = mem_alloc(1, size - 1);
        FUZZ_CHECK(copy);
        memcpy(copy, data + 1, size - 1);
        if (prepare_snapshot(&ledger, copy, size - 1)) fuzz_snapshot(&ledger, store, copy, size - 1);
        mem_free(copy);
    }
    ledger_finish(&ledger);
    store_mem_destroy(store);
    FUZZ_CHECK(mem_live_bytes() == before);
    return 0;
}
