/* The table of sessions: what is found by an index equals a search, and slots of the spool are the lowest free ones. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/engine/state/session.h"
#include "tests/lib/test.h"

enum { CAP = 130, FRAGMENTS = 2, STEPS = 20000 };

static struct session_table table;

static void open_table(void)
{
    assert_int_equal(session_table_init(&table, CAP, FRAGMENTS), STATUS_OK);
}

static void close_table(void)
{
    session_table_finish(&table);
    assert_int_equal(mem_live_bytes(), 0);
}

static struct session *search(uint64_t bulk, uint32_t member)
{
    for (struct session *s = NULL; (s = session_next(&table, s));)
        if (s->bulk == bulk || s->member == member) return s;
    return NULL;
}

/* One random change. */
static void change(uint64_t i)
{
    uint64_t draw = rng_u64(7, 0, i), number = rng_u64(7, 1, i) % 300;
    struct session *s = &table.sessions[draw % CAP];
    if (!s->id) {
        s = session_add(&table, rng_u64(7, 2, i));
        assert_non_null(s);
    } else if (draw >> 32 & 1) {
        if (!search(number, SESSION_NO_MEMBER - 1)) session_bind(&table, s, number);
    } else if (draw >> 33 & 1) {
        session_bind(&table, s, SESSION_NO_PEER);
    } else if (draw >> 34 & 1) {
        if (s->member == SESSION_NO_MEMBER && !search(SESSION_NO_PEER - 1, (uint32_t)number))
            session_seat(&table, s, (uint32_t)number);
    } else if (draw >> 35 & 1) {
        session_remove(&table, s);
    }
}

TEST(test_index_finds_what_a_search_finds)
{
    open_table();
    assert_null(session_by_id(&table, 0));
    assert_null(session_by_member(&table, SESSION_NO_MEMBER));
    for (uint64_t i = 0; i < STEPS; i++) {
        change(i);
        uint64_t number = i % 300;
        assert_ptr_equal(session_by_bulk(&table, number), search(number, SESSION_NO_MEMBER - 1));
        assert_ptr_equal(session_by_member(&table, (uint32_t)number), search(SESSION_NO_PEER - 1, (uint32_t)number));
        const struct session *s = &table.sessions[i % CAP];
        if (s->id) assert_ptr_equal(session_by_id(&table, s->id), s);
        assert_null(session_by_id(&table, s->id ^ UINT64_C(1) << 40)); /* an earlier session of this slot */
    }
    close_table();
}

TEST(test_session_of_an_empty_table_is_not_found)
{
    static const struct session_table empty;
    assert_null(session_by_id(&empty, 12345));
    assert_null(session_by_member(&empty, 3));
    assert_null(session_by_bulk(&empty, 3));
    assert_null(session_next_to_serve(&empty, NULL));
}

TEST(test_upload_takes_lowest_free_slot)
{
    struct session *s[CAP];
    struct msg_offer offer = {.fragment = 1, .bytes = 100};
    open_table();
    for (uint32_t i = 0; i < CAP; i++) s[i] = session_add(&table, i);
    assert_true(session_table_full(&table));
    for (uint32_t i = 0; i < CAP; i++) assert_int_equal(session_upload(&table, s[i], &offer)->slot, i);
    offer.round = 1;
    assert_int_equal(session_upload(&table, s[70], &offer)->slot, 70); /* started again: in its own slot */
    session_upload_drop(&table, 1, &s[66]->uploads[1]);
    session_upload_drop(&table, 1, &s[3]->uploads[1]);
    session_upload_drop(&table, 1, &s[3]->uploads[1]); /* no effect: nothing runs */
    session_remove(&table, s[128]);
    assert_int_equal(session_upload(&table, s[66], &offer)->slot, 3);
    assert_int_equal(session_upload(&table, s[3], &offer)->slot, 66);
    s[128] = session_add(&table, 5);
    assert_int_equal(session_upload(&table, s[128], &offer)->slot, 128);
    offer.fragment = 0;
    assert_int_equal(session_upload(&table, s[99], &offer)->slot, 0); /* each fragment has its own slots */
    close_table();
}

TEST(test_sessions_to_serve_come_in_order)
{
    open_table();
    for (uint32_t i = 0; i < CAP; i++) assert_non_null(session_add(&table, i));
    assert_null(session_next_to_serve(&table, NULL));
    static const uint32_t some[] = {0, 1, 63, 64, 127, 129};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) session_serve(&table, &table.sessions[some[i]], true);
    struct session *s = NULL;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        s = session_next_to_serve(&table, s);
        assert_ptr_equal(s, &table.sessions[some[i]]);
        if (i == 2) session_serve(&table, s, false); /* while it goes on */
    }
    assert_null(session_next_to_serve(&table, s));
    session_remove(&table, &table.sessions[0]);
    session_serve(&table, &table.sessions[1], false);
    assert_ptr_equal(session_next_to_serve(&table, NULL), &table.sessions[64]);
    close_table();
}

TEST_MAIN(NULL, NULL)
