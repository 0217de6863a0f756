/* Models of billions of parameters, as descriptions only: layouts, planned memory, state machines that count
 * bytes, files with holes. Values exceed 32 bits.
 * ctest: labels=asan */
#include <fcntl.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/config/config.h"
#include "common/os/fileio.h"
#include "common/tensor/safetensors.h"
#include "common/tensor/tokens.h"
#include "compress/codec.h"
#include "coordinator/ledger/store.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/round/download.h"
#include "coordinator/round/lease.h"
#include "coordinator/round/upload.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/inner/shard.h"
#include "worker/model/decoder.h"
#include "worker/model/model.h"
#include "worker/outer/outer_memory.h"
#include "worker/replica/batch.h"
#include "worker/sync/sync.h"
#include "worker/train_impl.h"

#define G ((uint64_t)1 << 30)

static struct config config;

/* Makes the layout of a model, split as in a run. */
static void lay_out(struct layout *layout, struct model_config *model, const char *const *settings)
{
    struct config_sources sources;
    struct err err = {0};
    config_defaults(&config, &sources);
    for (; *settings; settings++)
        if (config_set(&config, &sources, *settings, CONFIG_FLAG, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    const struct model_family *family = model_family_find(config.model.family);
    *model = model_config_of(&config);
    layout_init(layout);
    if (family->layout(model, layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (model_split_fragments(&config, layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
}
#define LAY_OUT(layout, model, ...) lay_out(layout, model, (const char *const[]){__VA_ARGS__, NULL})

static void expect_tiled(const struct layout *layout)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        assert_int_equal(layout->tensors[i].offset, at);
        at += layout->tensors[i].count;
    }
    assert_int_equal(at, layout->n_params);
    at = 0;
    for (uint32_t i = 0; i < layout->n_fragments; i++) {
        assert_int_equal(layout->fragments[i].offset, at);
        at += layout->fragments[i].count;
    }
    assert_int_equal(at, layout->n_params);
}

static void expect_round_trip(const struct layout *layout)
{
    struct layout other;
    size_t size = layout_encoded_size(layout);
    uint8_t *bytes = mem_alloc(1, size);
    struct writer w = writer_of(bytes, size);
    layout_encode(layout, &w);
    struct reader r = reader_of(bytes, size);
    layout_init(&other);
    assert_int_equal(layout_decode(&other, &r), STATUS_OK);
    assert_int_equal(layout_hash(&other), layout_hash(layout));
    expect_tiled(&other);
    layout_finish(&other);
    mem_free(bytes);
}

TEST(test_layouts_count_beyond_32_bits)
{
    struct layout layout;
    struct model_config model;
    LAY_OUT(&layout, &model, "model.preset=llama-8b", "data.tokenizer=none");
    assert_int_equal(layout.n_params, 8030261248);
    expect_tiled(&layout);
    expect_round_trip(&layout);
    layout_finish(&layout);
    /* 16 layers of 4 + 3 * 4 squares of 16384; the embedding is 2^24 * 16384. */
    LAY_OUT(&layout, &model, "model.family=llama", "model.n_layer=16", "model.n_embd=16384", "model.n_head=128",
            "model.ffn=65536", "model.vocab_size=16777216", "data.tokenizer=none", "train.fragments=1");
    assert_int_equal(layout.n_params, 64 * G + 256 * G + 33 * 16384);
    assert_int_equal(layout.n_fragments, 1);
    expect_tiled(&layout);
    expect_round_trip(&layout);
    layout_finish(&layout);
    LAY_OUT(&layout, &model, "model.n_layer=2", "model.n_embd=65536", "model.n_head=512", "data.tokenizer=none",
            "model.vocab_size=131072");
    assert_int_equal(layout.n_params, 2 * (12 * 4 * G + 13 * 65536) + (131072 + 128 + 2) * (uint64_t)65536);
    expect_tiled(&layout);
    layout_finish(&layout);
}

/* Activations of a micro-step of 2^18 tokens without recompute. Each layer has 6C + 2K + 2F + F values per token,
 * the log-sum-exps and two norms. Beside the layers: the stream, the final norm, gradients, angles. */
TEST(test_activations_count_beyond_32_bits)
{
    struct layout layout;
    struct model_config model;
    LAY_OUT(&layout, &model, "model.preset=llama-8b", "data.tokenizer=none");
    const struct model_family *family = model_family_find("llama");
    const uint64_t n = 1 << 18, c = 4096, kv = 1024, f = 14336;
    uint64_t layers = 32 * n * (4 * (6 * c + 2 * kv + 3 * f) + 4 * 32 + 2 * 4);
    uint64_t rest = n * 4 * (5 * c + (c + 2 * kv) + f + 1) + 8192 * (uint64_t)128 * 4;
    assert_int_equal(decoder_memory(family, &model, 4, 32, 8192, MODEL_LOSS | MODEL_TRAIN), layers + rest);
    layout_finish(&layout);
}

TEST(test_shards_cover_large_theta)
{
    for (uint32_t ranks = 1; ranks <= 8; ranks += 7) {
        struct shard_map map = shard_map_make(64 * G + 5, ranks, 0);
        uint64_t sum = 0, at = 0;
        for (uint32_t b = 0; b < map.n_buckets; b++)
            for (uint32_t r = 0; r < ranks; r++) {
                struct shard_part part = shard_part_of(&map, r, b);
                if (part.count) assert_int_equal(part.offset, at);
                at += part.count;
                sum += part.count;
                assert_true(part.state + part.count <= shard_floats(&map));
            }
        assert_int_equal(sum, 64 * G + 5);
        assert_true(map.n_buckets <= SHARD_BUCKETS_MAX);
    }
}

/* The memory of the outer path is computed without allocation: one fragment of 320 G parameters, with a second copy
 * of the payload for a byte stage. */
TEST(test_outer_memory_counts_beyond_32_bits)
{
    struct layout layout;
    struct model_config model;
    struct replica_outer outer;
    struct err err = {0};
    uint64_t bytes, theta;
    LAY_OUT(&layout, &model, "model.family=llama", "model.n_layer=16", "model.n_embd=16384", "model.n_head=128",
            "model.ffn=65536", "model.vocab_size=16777216", "data.tokenizer=none", "train.fragments=1",
            "codec.up=fp32+lz4", "codec.down=fp32", "outer.optimizer=sgd");
    theta = 4 * layout.n_params;
    if (outer_state_bytes(&bytes, &config, &layout, 1, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_true(bytes > 5 * theta && bytes < 5 * theta + theta / 64); /* theta, sum, delta, opened, `between` */
    if (outer_memory_bytes(&outer, &config, &layout, 1, false, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_true(outer.host.messages > 3 * theta && outer.host.messages < 3 * theta + theta / 64);
    layout_finish(&layout);
}

/* A program that lends theta and change has Llama 8B in 10 bytes a parameter with int8, and the scales of its blocks.
 */
TEST(test_lent_outer_path_takes_10_bytes_a_parameter)
{
    struct layout layout;
    struct model_config model;
    struct replica_outer outer;
    struct err err = {0};
    LAY_OUT(&layout, &model, "model.family=llama", "model.n_layer=32", "model.n_embd=4096", "model.n_head=32",
            "model.n_kv_head=8", "model.ffn=14336", "model.vocab_size=128256", "data.tokenizer=none",
            "train.method=diloco", "codec.up=int8:256", "codec.down=int8:256");
    assert_true(layout.n_params > 6 * G);
    if (outer_memory_bytes(&outer, &config, &layout, 1, true, &err) != STATUS_OK) fail_msg("%s", err.msg);
    double bytes = (double)(outer.host.anchor + outer.host.residual + outer.host.messages);
    bytes /= (double)layout.n_params;
    if (bytes > 8 + 2 * (1 + 4.0 / 256) + 1e-2) fail_msg("%.4f bytes a parameter", bytes);
    layout_finish(&layout);
}

/* ---- state machines ---------------------------------------------------------------------------------------------- */

/* The coordinator's side of an upload and of a download. */
TEST(test_coordinator_transfers_beyond_32_bits)
{
    struct upload up = {0};
    const struct msg_offer offer = {.bytes = 32 * G, .round = 3};
    struct upload_pool pool = {0};
    upload_start(&up, &pool, &offer, 0);
    up.have = up.upto = 20 * G;
    pool.granted = 0;
    assert_true(upload_extend(&up, &pool) && up.upto == 20 * G + UPLOAD_CREDIT / 4);
    struct msg_chunk chunk = {.key = 3,
                              .offset = 20 * G,
                              .total = 32 * G,
                              .data = (const uint8_t *)"abcd",
                              .size = 4,
                              .crc = crc32c(0, "abcd", 4)};
    assert_int_equal(upload_chunk(&up, &pool, &chunk), STATUS_OK);
    assert_true(up.have == 20 * G + 4 && !upload_complete(&up));
    up.have = up.upto = 32 * G - 4;
    chunk.offset = 32 * G - 4;
    assert_int_equal(upload_chunk(&up, &pool, &chunk), STATUS_OK);
    assert_true(upload_complete(&up));

    struct download download = {0};
    struct download_item item;
    uint64_t size;
    const struct msg_get get = {.kind = OBJECT_SNAPSHOT, .offset = 17 * G, .length = 20 * G};
    assert_true(download_add(&download, &get, 32 * G));
    assert_true(download_next(&download, &item, &size) && item.at == 17 * G && item.end == 32 * G &&
                size == DOWNLOAD_CHUNK);
    download_sent(&download, &item, 15 * G - 1);
    assert_true(download_next(&download, &item, &size) && item.at == 32 * G - 1 && size == 1);
}

/* The worker's side: a delta of 32 GB under credit, and an update of the same size. */
TEST(test_worker_transfers_beyond_32_bits)
{
    static struct sync s;
    struct msg_welcome welcome = {.session = 1, .worker_id = 2, .heartbeat_ms = 1000, .n_fragments = 1, .resume = true};
    const uint64_t bytes[] = {32 * G}, versions[] = {4};
    struct sync_action a;
    sync_init(&s, 0, 1);
    while (sync_poll(&s, 1, &a)) continue; /* HELLO */
    assert_true(sync_on_config(&s, 2));
    sync_configured(&s, false, 1, versions, 3);
    while (sync_poll(&s, 3, &a)) continue; /* JOIN */
    welcome.current[0].version = welcome.snapshot[0].version = 4;
    assert_true(sync_on_welcome(&s, &welcome, 4));
    sync_work_ready(&s, 6, bytes, 5);
    sync_on_credit(&s, &(struct msg_credit){.round = 6, .have = 0, .upto = 1}, 6);
    sync_on_credit(&s, &(struct msg_credit){.round = 6, .have = 21 * G, .upto = 21 * G + 5}, 7);
    bool sent = false;
    for (int i = 0; i < 8 && sync_poll(&s, 8, &a); i++) {
        if (a.type != SYNC_SEND_CHUNK) continue;
        sent = true;
        assert_true(a.offset == 21 * G && a.length == 5);
    }
    assert_true(sent);
    sync_on_credit(&s, &(struct msg_credit){.round = 6, .have = 32 * G, .upto = 32 * G}, 9);
    assert_int_equal(s.f[0].upload, SYNC_UPLOAD_DELIVERED);
    s.f[0].have = s.f[0].requested = 19 * G;
    s.f[0].total = 32 * G;
    s.f[0].get_at = 0;
    sent = false;
    for (int i = 0; i < 8 && sync_poll(&s, 10, &a); i++) {
        if (a.type != SYNC_SEND_GET) continue;
        sent = true;
        assert_true(a.offset == 19 * G && a.length == SYNC_WINDOW_LEAST);
    }
    assert_true(sent);
}

/* Incomplete deltas of 64 workers: no overlap, and all end before ext4's maximum file size. */
TEST(test_spool_ranges_do_not_overlap)
{
    enum { WORKERS = 64 };
    struct layout layout;
    struct model_config model;
    struct err err = {0};
    LAY_OUT(&layout, &model, "model.preset=llama-8b", "data.tokenizer=none", "codec.up=fp32", "codec.down=fp32");
    struct outer_state s = {.config = &config, .layout = &layout};
    s.fragments = mem_alloc(layout.n_fragments, sizeof *s.fragments);
    for (uint32_t f = 0; f < layout.n_fragments; f++)
        if (codec_create_for_fragment(&s.fragments[f].up, "fp32", &layout, f, &err) != STATUS_OK)
            fail_msg("%s", err.msg);
    uint64_t end = 0;
    for (uint32_t slot = 0; slot < WORKERS; slot++)
        for (uint32_t f = 0; f < layout.n_fragments; f++) {
            uint64_t at = outer_state_spool_at(&s, slot, f, SPOOL_ALIGN);
            assert_true(at >= end && at % SPOOL_ALIGN == 0);
            end = at + codec_bound(s.fragments[f].up);
        }
    assert_true(end >= 4 * layout.n_params * WORKERS && end < (uint64_t)1 << 44);
    outer_state_finish(&s);
    layout_finish(&layout);
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

/* Positions in the sample order of a run of 10^13 tokens, its windows, and a worker's counters. */
TEST(test_sample_positions_exceed_32_bits)
{
    struct lease_book book;
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint32_t n;
    lease_book_init(&book);
    for (uint64_t round = 0; round < 3; round++) {
        struct lease_plan plan = lease_plan_start(&book);
        assert_int_equal(lease_plan_take(&plan, 9 * G, ranges, &n), STATUS_OK);
        assert_int_equal(lease_take(&book, 0, round, ranges, n), STATUS_OK);
        assert_true(n == 1 && ranges[0].start == round * 9 * G && ranges[0].count == 9 * G);
    }
    struct lease_plan two = lease_plan_start(&book);
    for (int i = 0; i < 2; i++) assert_int_equal(lease_plan_take(&two, 9 * G, ranges, &n), STATUS_OK);
    assert_true(n == 1 && ranges[0].start == 36 * G);
    assert_int_equal(lease_return(&book, 0, 1), STATUS_OK);
    assert_int_equal(lease_outstanding(&book), 18 * G);
    assert_int_equal(lease_check(&book), STATUS_OK);
    lease_book_finish(&book);

    const struct msg_assign task = {.n_ranges = 2, .ranges = {{9 * G, 5 * G}, {40 * G, 1000}}};
    uint64_t counters[4];
    assert_true(train_fill_counters(&task, 5 * G - 2, counters, 4));
    assert_true(counters[0] == 14 * G - 2 && counters[2] == 40 * G && counters[3] == 40 * G + 1);

    struct batch_source source = {.n_samples = 10 * G + 7, .seq = 1000, .in_order = true};
    assert_int_equal(batch_window(&source, 3 * source.n_samples + 9 * G), 9 * G);
    source.in_order = false;
    uint64_t high = 0;
    for (uint64_t k = 0; k < 64; k++) {
        uint64_t window = batch_window(&source, 5 * source.n_samples + k);
        assert_true(window < source.n_samples);
        high += window > 4 * G;
    }
    assert_true(high > 16);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Makes a sparse file of `size` bytes. */
static int sparse(const char *path, uint64_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    if (ftruncate(fd, (off_t)size)) skip();
    return fd;
}

static void put_at(int fd, uint64_t at, const void *bytes, size_t n)
{
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
}

/* A tensor of 2^33 values behind another one: a checkpoint, read at its end. */
TEST_WITH(test_end_of_large_tensor_is_read, tmpdir_make, tmpdir_remove)
{
    char text[256], path[FILEIO_PATH_MAX];
    const uint64_t shape[2] = {1 << 17, 1 << 16}, one[1] = {16}, size = (8 * G + 16) * 4;
    struct layout layout;
    struct store *store;
    struct err err = {0};
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "a", 1, one, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
    assert_int_equal(layout_add(&layout, "b", 2, shape, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
    assert_int_equal(layout_split(&layout, 0), STATUS_OK);
    tmpdir_put("run/checkpoints/round_000000/config.json", "");
    int n = snprintf(text, sizeof text,
                     "{\"a\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[0,64]},"
                     "\"b\":{\"dtype\":\"F32\",\"shape\":[131072,65536],\"data_offsets\":[64,%llu]}}",
                     (unsigned long long)size);
    const uint64_t length = (uint64_t)n;
    snprintf(path, sizeof path, "%s", tmpdir_path("run/checkpoints/round_000000/model.safetensors"));
    int fd = sparse(path, 8 + length + size);
    const float last[2] = {2.5f, -3.5f};
    put_at(fd, 0, &length, 8);
    put_at(fd, 8, text, length);
    put_at(fd, 8 + length + size - sizeof last, last, sizeof last);
    close(fd);
    if (store_disk_open(&store, tmpdir_path("run"), &err) != STATUS_OK) fail_msg("%s", err.msg);
    float got[2];
    if (store->ops->checkpoint_theta_read(store, 0, &layout, layout.n_params - 2, got, 2, &err) != STATUS_OK)
        fail_msg("%s", err.msg);
    assert_memory_equal(got, last, sizeof last);
    const char word[] = "far";
    char back[sizeof word];
    assert_int_equal(store->ops->spool_write(store, 8192 * G - 2, word, sizeof word, &err), STATUS_OK);
    assert_int_equal(store->ops->spool_read(store, 8192 * G - 2, back, sizeof back, &err), STATUS_OK);
    assert_string_equal(back, word);
    store->ops->close(store);
    layout_finish(&layout);
}

/* The largest shard with tokens of 4 bytes. */
TEST_WITH(test_end_of_largest_shard_is_read, tmpdir_make, tmpdir_remove)
{
    const uint32_t head[3] = {20240801, 7, INT32_MAX}, tail[3] = {70001, 70002, 70003};
    const uint64_t size = TOKENS_HEADER_BYTES + 4 * (uint64_t)INT32_MAX;
    struct tokens tokens = {0};
    struct err err = {0};
    uint32_t window[3];
    int fd = sparse(tmpdir_path("train_000000.bin"), size);
    put_at(fd, 0, head, sizeof head);
    put_at(fd, size - sizeof tail, tail, sizeof tail);
    close(fd);
    if (tokens_open(&tokens, tmpdir_path("train_*.bin"), &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(tokens_samples(&tokens, 2), INT32_MAX / 2);
    uint32_t largest;
    assert_int_equal(tokens_window(&tokens, 2, INT32_MAX / 2 - 1, window, &largest, &err), STATUS_OK);
    assert_int_equal(largest, 70003);
    assert_memory_equal(window, tail, sizeof tail);
    assert_int_equal(tokens_check_window(&tokens, 2, INT32_MAX / 2 - 1, 70003, &err), STATUS_INVALID);
    tokens_close(&tokens);
}

TEST_MAIN(NULL, NULL)
