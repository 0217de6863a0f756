/* RUN/worker-keys: its file, what each key may do, and changes by the verbs while a coordinator runs. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/admission/roster.h"
#include "coordinator/run_dir.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static const uint8_t enrol_key[WIRE_KEY] = {1}, key_a[WIRE_KEY] = {2}, key_b[WIRE_KEY] = {3};

static enum engine_right right_of(struct roster *r, const uint8_t *key, const char *name)
{
    char got[WIRE_NAME_MAX];
    enum engine_right right = roster_right(r, key, got);
    assert_string_equal(got, name);
    assert_int_equal(roster_admits(r, key), right != ENGINE_RIGHT_NONE);
    return right;
}

static void set_revoked(struct listed_worker *w)
{
    w->revoked = true;
}

/* What atoll revoke does. */
static size_t revoke_word(const char *word)
{
    struct worker_list list;
    int lock;
    assert_int_equal(worker_list_lock(tmpdir, &lock, NULL), STATUS_OK);
    assert_int_equal(worker_list_load(&list, tmpdir, NULL), STATUS_OK);
    size_t n = worker_list_each(&list, word, set_revoked);
    assert_int_equal(worker_list_save(&list, tmpdir, NULL), STATUS_OK);
    worker_list_free(&list);
    close(lock);
    return n;
}

static void remove_files(void)
{
    tmpdir_take("worker-keys");
    tmpdir_take("worker-keys.lock");
}

TEST(test_enrolled_workers_are_admitted_and_kept)
{
    struct roster *r;
    struct stat st;
    struct err err = {0};
    mode_t before = umask(0);
    assert_int_equal(roster_open(&r, tmpdir, enrol_key, &err), STATUS_OK);
    assert_int_equal(right_of(r, enrol_key, ""), ENGINE_RIGHT_ENROL);
    assert_int_equal(right_of(r, key_a, ""), ENGINE_RIGHT_NONE);
    assert_int_equal(roster_enrol(r, key_a, "a name with blanks", NULL, &err), STATUS_OK);
    assert_int_equal(roster_enrol(r, key_b, "b", NULL, &err), STATUS_OK);
    assert_int_equal(roster_enrol(r, key_b, "another name", NULL, &err), STATUS_OK); /* the first one stays */
    umask(before);
    assert_int_equal(stat(tmpdir_path("worker-keys"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(right_of(r, key_a, "a name with blanks"), ENGINE_RIGHT_WORKER);
        assert_int_equal(right_of(r, key_b, "b"), ENGINE_RIGHT_WORKER);
        roster_close(r);
        assert_int_equal(roster_open(&r, tmpdir, enrol_key, &err), STATUS_OK);
    }
    roster_close(r);
    remove_files();
    assert_int_equal(mem_live_bytes(), 0);
}

static void nth_key(uint32_t i, uint8_t key[WIRE_KEY], char name[WIRE_NAME_MAX])
{
    memset(key, 7, WIRE_KEY);
    memcpy(key, &i, sizeof i);
    snprintf(name, WIRE_NAME_MAX, "worker-%u", i);
}

/* A long list: each key is found, with its own name and right, and no other. */
TEST(test_each_key_of_a_full_list_is_found)
{
    struct roster *r;
    struct worker_list list = {.n = 0};
    struct err err = {0};
    uint8_t key[WIRE_KEY];
    char name[WIRE_NAME_MAX];
    list.workers = mem_alloc(WORKER_LIST_MAX, sizeof *list.workers);
    for (uint32_t i = 0; i < WORKER_LIST_MAX; i++) {
        struct listed_worker *w = &list.workers[list.n++];
        nth_key(i, w->key, w->name);
        w->revoked = i % 3 == 0;
    }
    assert_int_equal(worker_list_save(&list, tmpdir, &err), STATUS_OK);
    worker_list_free(&list);
    assert_int_equal(roster_open(&r, tmpdir, enrol_key, &err), STATUS_OK);
    for (uint32_t i = 0; i < WORKER_LIST_MAX; i++) {
        nth_key(i, key, name);
        assert_int_equal(right_of(r, key, name), i % 3 ? ENGINE_RIGHT_WORKER : ENGINE_RIGHT_NONE);
        nth_key(i + WORKER_LIST_MAX, key, name);
        assert_int_equal(right_of(r, key, ""), ENGINE_RIGHT_NONE);
    }
    roster_close(r);
    tmpdir_take("worker-keys");
    assert_int_equal(mem_live_bytes(), 0);
}

static enum status count_revoked(void *ctx, const struct listed_worker *w, struct err *err)
{
    (void)err;
    *(int *)ctx += w->revoked;
    return STATUS_OK;
}

TEST(test_changes_are_followed)
{
    struct roster *r;
    struct run_keys keys;
    struct err err = {0};
    int n_revoked = 0;
    assert_int_equal(run_keys_read(tmpdir, &keys, &err), STATUS_OK);
    assert_int_equal(roster_open(&r, tmpdir, keys.enrol_public, &err), STATUS_OK);
    assert_int_equal(roster_enrol(r, key_a, "a", NULL, &err), STATUS_OK);
    assert_int_equal(roster_enrol(r, key_b, "b", NULL, &err), STATUS_OK);
    (void)roster_poll(r);
    assert_false(roster_poll(r));
    char path[1024], away[1024];
    snprintf(path, sizeof path, "%s/worker-keys", tmpdir);
    snprintf(away, sizeof away, "%s/away", tmpdir);
    assert_int_equal(rename(path, away), 0); /* the run folder is being removed: that revokes nobody */
    assert_false(roster_poll(r));
    assert_int_equal(right_of(r, key_a, "a"), ENGINE_RIGHT_WORKER);
    assert_int_equal(rename(away, path), 0);
    assert_int_equal(revoke_word("nobody"), 0);
    assert_int_equal(run_dir_renew_enrolment(tmpdir, &err), STATUS_OK);
    assert_int_equal(revoke_word("a"), 1);
    assert_true(roster_poll(r));
    assert_int_equal(right_of(r, key_a, "a"), ENGINE_RIGHT_NONE);
    assert_int_equal(right_of(r, key_b, "b"), ENGINE_RIGHT_WORKER);
    assert_int_equal(right_of(r, keys.enrol_public, ""), ENGINE_RIGHT_NONE); /* the old join line is void */
    assert_int_equal(run_keys_read(tmpdir, &keys, &err), STATUS_OK);
    assert_int_equal(right_of(r, keys.enrol_public, ""), ENGINE_RIGHT_ENROL);
    assert_int_equal(roster_enrol(r, key_a, "a", NULL, &err), STATUS_REFUSED);
    assert_non_null(strstr(err.msg, "'a' was revoked"));
    assert_int_equal(roster_each(r, count_revoked, &n_revoked, &err), STATUS_OK);
    assert_int_equal(n_revoked, 1);
    assert_int_equal(revoke_word("0300000000000000000000000000000000000000000000000000000000000000"), 1);
    assert_true(roster_poll(r));
    assert_int_equal(right_of(r, key_b, "b"), ENGINE_RIGHT_NONE);
    roster_close(r);
    remove_files();
    tmpdir_take("keys");
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

/* Has a place: keys whose second byte is 1. */
static bool has_place(void *ctx, const uint8_t key[WIRE_KEY])
{
    (void)ctx;
    return key[1] == 1;
}

/* A full list of workers with places; the last one is `other`, if given. */
static void put_full_list(const struct listed_worker *other, uint64_t enrolled_s)
{
    static struct listed_worker workers[WORKER_LIST_MAX];
    struct worker_list list = {workers, WORKER_LIST_MAX};
    for (uint32_t i = 0; i < WORKER_LIST_MAX; i++) {
        workers[i] = (struct listed_worker){.key = {9, 1, (uint8_t)i, (uint8_t)(i >> 8)}, .enrolled_s = enrolled_s + i};
        snprintf(workers[i].name, WIRE_NAME_MAX, "box-%u", i);
    }
    if (other) workers[WORKER_LIST_MAX - 1] = *other;
    assert_int_equal(worker_list_save(&list, tmpdir, NULL), STATUS_OK);
}

TEST(test_a_full_list_loses_the_oldest_key_without_a_place)
{
    static const struct worker_places places = {has_place, NULL};
    const uint64_t now = (uint64_t)time(NULL), long_ago = now - 200000;
    struct listed_worker gone = {.key = {9, 2}, .name = "gone", .enrolled_s = long_ago + 100};
    struct listed_worker revoked = {.key = {9, 1, 0, 99}, .name = "bad", .enrolled_s = long_ago, .revoked = true};
    struct listed_worker recent = {.key = {9, 2}, .name = "recent", .enrolled_s = now - 100};
    const struct {
        const struct listed_worker *other;
        const struct worker_places *places;
        enum status status;
    } cases[] = {{NULL, &places, STATUS_LIMIT},
                 {&gone, &places, STATUS_OK},
                 {&revoked, &places, STATUS_OK},
                 {&recent, &places, STATUS_LIMIT},
                 {&gone, NULL, STATUS_LIMIT}};
    log_set_sink(quiet, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct roster *r;
        struct err err = {0};
        bool added = cases[i].status == STATUS_OK;
        put_full_list(cases[i].other, long_ago);
        assert_int_equal(roster_open(&r, tmpdir, enrol_key, &err), STATUS_OK);
        assert_int_equal(roster_enrol(r, key_a, "a", cases[i].places, &err), cases[i].status);
        assert_int_equal(right_of(r, key_a, added ? "a" : ""), added ? ENGINE_RIGHT_WORKER : ENGINE_RIGHT_NONE);
        if (added) assert_int_equal(right_of(r, cases[i].other->key, ""), ENGINE_RIGHT_NONE);
        if (!added) assert_non_null(strstr(err.msg, "the list of workers is full"));
        assert_int_equal(right_of(r, (uint8_t[WIRE_KEY]){9, 1, 7}, "box-7"), ENGINE_RIGHT_WORKER);
        roster_close(r);
    }
    remove_files();
}

static void count_warning(void *ctx, enum log_level level, const char *line)
{
    (void)line;
    *(uint32_t *)ctx += level == LOG_WARN;
}

TEST(test_a_list_that_fills_up_warns_once)
{
    struct worker_list list = {0};
    struct err err = {0};
    uint32_t warnings = 0;
    log_set_level(LOG_WARN);
    log_set_sink(count_warning, &warnings);
    for (uint32_t i = 0; i < WORKER_LIST_MAX; i++) {
        uint8_t key[WIRE_KEY] = {9, 1, (uint8_t)i, (uint8_t)(i >> 8)};
        assert_int_equal(worker_list_add(&list, key, "box", NULL, &err), STATUS_OK);
        assert_int_equal(warnings, i + 1 >= WORKER_LIST_MAX / 4 * 3);
    }
    log_set_level(LOG_ERROR);
    worker_list_free(&list);
}

TEST(test_damaged_list_is_refused_and_a_running_one_kept)
{
    static const char good[] = "0300000000000000000000000000000000000000000000000000000000000000 enrolled 5 0 b\n";
    static const char *const bad[] = {
        "x\n",
        "0300 enrolled 5 0 b\n",
        "0300000000000000000000000000000000000000000000000000000000000000 maybe 5 0 b\n",
        "0300000000000000000000000000000000000000000000000000000000000000 enrolled 5 0 \n",
        "0300000000000000000000000000000000000000000000000000000000000000 enrolled -1 0 b\n",
        "0300000000000000000000000000000000000000000000000000000000000000 enrolled 5 0 \x1b[\n"};
    struct roster *r;
    struct err err = {0};
    log_set_sink(quiet, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256];
        tmpdir_put("worker-keys", good);
        assert_int_equal(roster_open(&r, tmpdir, enrol_key, &err), STATUS_OK);
        snprintf(text, sizeof text, "%s%s", good, bad[i]);
        tmpdir_put("worker-keys", text);
        assert_false(roster_poll(r));
        assert_int_equal(right_of(r, key_b, "b"), ENGINE_RIGHT_WORKER);
        roster_close(r);
        assert_int_equal(roster_open(&r, tmpdir, enrol_key, &err), STATUS_CORRUPT);
        assert_non_null(strstr(err.msg, "/worker-keys, line 2: expected"));
    }
    tmpdir_take("worker-keys");
    assert_int_equal(mem_live_bytes(), 0);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, tmpdir_make, tmpdir_remove_empty);
}
