/* Encoded chunks that several connections share: found by all that names them, and not changed while one sends them. */
#include "common/base/mem.h"
#include "coordinator/engine/state/chunk_cache.h"
#include "tests/lib/test.h"

enum { SIZE = 1000 };

static struct msg_chunk chunk_at(uint64_t offset)
{
    return (struct msg_chunk){
        .kind = OBJECT_UPDATE, .fragment = 3, .key = 5, .offset = offset, .total = 1 << 20, .size = SIZE};
}

static struct chunk_entry *add(struct chunk_cache *c, const struct msg_chunk *chunk, int fill)
{
    struct chunk_entry *e = chunk_cache_replace(c, chunk);
    assert_non_null(e);
    memset(chunk_entry_data(e), fill, chunk->size);
    assert_int_equal(chunk_entry_seal(e, chunk), STATUS_OK);
    return e;
}

TEST(test_chunk_is_found_by_its_names)
{
    struct chunk_cache c;
    static struct msg m;
    assert_int_equal(chunk_cache_init(&c, 10000, SIZE), STATUS_OK);
    assert_int_equal(c.n, 9);
    struct msg_chunk chunk = chunk_at(0);
    assert_null(chunk_cache_find(&c, &chunk));
    add(&c, &chunk, 1);
    const struct chunk_entry *e = chunk_cache_find(&c, &chunk);
    assert_non_null(e);
    assert_int_equal(msg_decode(&m, e->block->data, e->block->size, NULL), STATUS_OK);
    assert_true(m.type == MSG_CHUNK && m.chunk.key == 5 && m.chunk.crc == e->chunk.crc && m.chunk.data[SIZE - 1] == 1);
    for (int i = 0; i < 5; i++) {
        struct msg_chunk other = chunk;
        if (i == 0) other.kind = OBJECT_SNAPSHOT;
        if (i == 1) other.fragment++;
        if (i == 2) other.key++;
        if (i == 3) other.offset++;
        if (i == 4) other.size--;
        assert_null(chunk_cache_find(&c, &other));
    }
    chunk_cache_finish(&c);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_oldest_chunk_is_replaced)
{
    struct chunk_cache c;
    struct msg_chunk chunks[4];
    assert_int_equal(chunk_cache_init(&c, 3 * (SIZE + MSG_CHUNK_HEAD), SIZE), STATUS_OK);
    for (int i = 0; i < 4; i++) chunks[i] = chunk_at((uint64_t)i * SIZE);
    for (int i = 0; i < 3; i++) add(&c, &chunks[i], i);
    assert_non_null(chunk_cache_find(&c, &chunks[0])); /* used again */
    add(&c, &chunks[3], 3);
    for (int i = 0; i < 4; i++) assert_int_equal(chunk_cache_find(&c, &chunks[i]) != NULL, i != 1);
    chunk_cache_finish(&c);
}

TEST(test_block_in_a_queue_stays_unchanged)
{
    struct chunk_cache c;
    assert_int_equal(chunk_cache_init(&c, 0, SIZE), STATUS_OK);
    assert_int_equal(c.n, 1);
    struct msg_chunk a = chunk_at(0), b = chunk_at(SIZE);
    struct wire_block *queued = wire_block_keep(add(&c, &a, 7)->block);
    add(&c, &b, 8);
    assert_int_equal(queued->data[MSG_CHUNK_HEAD], 7);
    assert_null(chunk_cache_find(&c, &a));
    struct wire_block *now = chunk_cache_find(&c, &b)->block;
    wire_block_drop(queued);
    add(&c, &a, 9); /* nothing sends b: its memory is used again */
    assert_ptr_equal(chunk_cache_find(&c, &a)->block, now);
    chunk_cache_finish(&c);
    assert_int_equal(mem_live_bytes(), 0);
}

/* A read that failed leaves no chunk behind. */
TEST(test_unsealed_entry_is_not_found)
{
    struct chunk_cache c;
    struct msg_chunk a = chunk_at(0), none = {0};
    assert_int_equal(chunk_cache_init(&c, 0, SIZE), STATUS_OK);
    assert_non_null(chunk_cache_replace(&c, &a));
    assert_null(chunk_cache_find(&c, &a));
    none.size = SIZE;
    assert_null(chunk_cache_find(&c, &none));
    mem_fail_after(1);
    chunk_cache_finish(&c);
    assert_int_equal(chunk_cache_init(&c, 0, SIZE), STATUS_NOMEM);
    chunk_cache_finish(&c);
}

TEST_MAIN(NULL, NULL)
