/* Allocation: zeroed, aligned, counted, fails on demand; arenas return the blocks that they were sized for. */

#include "common/base/mem.h"
#include "tests/lib/test.h"

TEST(test_alloc_is_zeroed_aligned_and_counted)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 9 << 20}; /* the last size takes the huge-page path */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = mem_alloc(sizes[i], 1);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % MEM_ALIGN, 0);
        assert_int_equal(mem_live_bytes(), sizes[i]);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(p[k], 0);
        memset(p, 0xaa, sizes[i]);
        mem_free(p);
        assert_int_equal(mem_live_bytes(), 0);
    }
    mem_free(NULL);
}

TEST(test_overflowing_size_is_refused)
{
    assert_null(mem_alloc(SIZE_MAX / 2, 3));
    assert_null(mem_alloc(SIZE_MAX, 1));
    assert_null(mem_alloc(SIZE_MAX - 63, 1));
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_resize_keeps_contents)
{
    unsigned char *p = mem_resize(NULL, 0, 10);
    assert_non_null(p);
    memset(p, 1, 10);
    p = mem_resize(p, 10, 100);
    assert_non_null(p);
    for (int i = 0; i < 100; i++) assert_int_equal(p[i], i < 10);
    mem_fail_after(1);
    assert_null(mem_resize(p, 100, 200));
    assert_int_equal(p[9], 1); /* the old block is unchanged */
    p = mem_resize(p, 100, 5);
    assert_non_null(p);
    assert_int_equal(mem_live_bytes(), 5);
    assert_int_equal(p[4], 1);
    mem_free(p);
    char *copy = mem_strdup("atoll");
    assert_string_equal(copy, "atoll");
    mem_free(copy);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_nth_allocation_fails_on_demand)
{
    mem_fail_after(3);
    void *a = mem_alloc(1, 8), *b = mem_alloc(1, 8), *c = mem_alloc(1, 8), *d = mem_alloc(1, 8);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c); /* only the third allocation fails */
    assert_non_null(d);
    mem_free(a);
    mem_free(b);
    mem_free(d);
    mem_fail_after(1);
    struct arena arena;
    assert_int_equal(arena_init(&arena, 100), STATUS_NOMEM);
    mem_fail_after(2);
    mem_fail_after(0); /* off again */
    a = mem_alloc(1, 1);
    b = mem_alloc(1, 1);
    assert_non_null(a);
    assert_non_null(b);
    mem_free(a);
    mem_free(b);
}

TEST(test_arena_returns_measured_blocks)
{
    struct arena arena;
    size_t need = arena_need(3, 4) + arena_need(65, 1) + arena_need(0, 8);
    assert_int_equal(need, 64 + 128);
    assert_int_equal(arena_init(&arena, need), STATUS_OK);
    unsigned char *a = arena_take(&arena, 3, 4), *b = arena_take(&arena, 65, 1);
    assert_non_null(a);
    assert_int_equal((uintptr_t)a % MEM_ALIGN, 0);
    assert_ptr_equal(b, a + 64);
    assert_null(arena_take(&arena, 1, 1));
    assert_null(arena_take(&arena, SIZE_MAX, 2));
    assert_null(arena_take(&arena, SIZE_MAX, 1));
    arena_finish(&arena);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
