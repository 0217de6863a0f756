/* The coordinator's files in the run folder: lock, keys, address, config.yaml. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/os/fileio.h"
#include "coordinator/run_dir.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static int held = -1; /* the lock as another process holds it */

static void holds(const char *name, const char *want)
{
    void *text;
    size_t size;
    assert_int_equal(file_read(tmpdir_path(name), 4096, &text, &size, NULL), STATUS_OK);
    assert_string_equal(text, want);
    mem_free(text);
}

static unsigned mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(tmpdir_path(name), &st), 0);
    return st.st_mode & 0777;
}

/* --- lock --------------------------------------------------------------------------------------------------------- */

static void hold(int how)
{
    held = open(tmpdir_path("lock"), O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
    assert_true(held >= 0 && flock(held, how | LOCK_NB) == 0);
}

static void release(int unused)
{
    (void)unused;
    close(held);
    held = -1;
}

TEST(test_second_lock_is_refused)
{
    struct err err = {0};
    char expected[80];
    int fd = -1, other = -1;
    snprintf(expected, sizeof expected, "another coordinator serves %s", tmpdir);
    assert_int_equal(run_dir_lock(tmpdir, &fd, &err), STATUS_OK);
    assert_int_equal(run_dir_lock(tmpdir, &other, &err), STATUS_EXISTS);
    assert_non_null(strstr(err.msg, expected));
    close(fd);
    assert_int_equal(run_dir_lock(tmpdir, &fd, &err), STATUS_OK);
    close(fd);
    tmpdir_take("lock");
}

/* `atoll status` takes the lock for a moment; a signal releases it while the coordinator waits. */
TEST(test_lock_waits_for_status)
{
    struct err err = {0};
    int fd = -1;
    struct itimerval soon = {.it_value.tv_usec = 20000};
    assert_int_not_equal(signal(SIGALRM, release), SIG_ERR);
    hold(LOCK_SH);
    assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
    if (run_dir_lock(tmpdir, &fd, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(held, -1);
    close(fd);
    hold(LOCK_SH); /* longer than any status call */
    assert_int_equal(run_dir_lock(tmpdir, &fd, &err), STATUS_EXISTS);
    release(0);
    tmpdir_take("lock");
}

TEST(test_lock_creates_folder)
{
    struct err err = {0};
    int fd = -1;
    tmpdir_put("file", "");
    assert_int_not_equal(run_dir_lock(tmpdir_path("file/run"), &fd, &err), STATUS_OK);
    assert_non_null(strstr(err.msg, "file"));
    /* Creates the folder with its parents. */
    if (run_dir_lock(tmpdir_path("new/run"), &fd, &err) != STATUS_OK) fail_msg("%s", err.msg);
    close(fd);
    tmpdir_take("new/run/lock");
    assert_int_equal(rmdir(tmpdir_path("new/run")), 0);
    assert_int_equal(rmdir(tmpdir_path("new")), 0);
    tmpdir_take("file");
}

TEST(test_run_id_is_written_as_hex)
{
    static const uint8_t id[WIRE_UUID] = {0x01, 0xfe, [15] = 0xa0};
    assert_int_equal(run_dir_write_id(tmpdir, id, NULL), STATUS_OK);
    holds("run_id", "01fe00000000000000000000000000a0\n");
    tmpdir_take("run_id");
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

TEST(test_keys_are_made_once)
{
    struct run_keys made, read;
    struct err err = {0};
    memset(&made, 0, sizeof made);
    memset(&read, 0, sizeof read);
    assert_int_equal(run_keys_read(tmpdir, &made, &err), STATUS_OK);
    assert_int_equal(mode_of("keys"), 0600);
    assert_int_equal(run_keys_read(tmpdir, &read, &err), STATUS_OK);
    assert_memory_equal(&made, &read, sizeof made);
    tmpdir_take("keys");
    assert_int_equal(run_keys_read(tmpdir, &read, &err), STATUS_OK);
    assert_memory_not_equal(&made, &read, sizeof made);
}

/* The file of the keys test: one byte changed, one line missing, one byte added. The file is not overwritten. */
TEST(test_invalid_keys_are_refused_and_kept)
{
    struct run_keys keys;
    char bad[512];
    void *good;
    size_t size;
    assert_int_equal(file_read(tmpdir_path("keys"), sizeof bad - 2, &good, &size, NULL), STATUS_OK);
    assert_int_equal(size, 4 * 65);
    for (int i = 0; i < 5; i++) {
        struct err err = {0};
        snprintf(bad, sizeof bad, "%s", (const char *)good);
        if (i == 0) bad[70] = 'g';
        if (i == 1) bad[65 + 64] = ' ';
        if (i == 2) bad[3 * 65] = 0;
        if (i == 3) memcpy(bad + size, "0", 2);
        if (i == 4) bad[0] = ' ';
        tmpdir_put("keys", bad);
        assert_int_equal(run_keys_read(tmpdir, &keys, &err), i == 3 ? STATUS_LIMIT : STATUS_CORRUPT);
        assert_non_null(strstr(err.msg, "/keys"));
        holds("keys", bad);
    }
    mem_free(good);
    tmpdir_take("keys");
}

/* --- address ------------------------------------------------------------------------------------------------------ */

static const char *line_for(const char *bound, const char *advertise, const struct run_keys *keys)
{
    static char line[1024];
    struct err err = {0};
    if (run_dir_write_address(tmpdir, bound, advertise, keys, line, sizeof line, &err) != STATUS_OK)
        fail_msg("%s", err.msg);
    return line;
}

TEST(test_address_is_written_and_printed)
{
    struct run_keys keys;
    char line[1024], text[2048], *port;
    char tail[160] = "/";
    assert_int_equal(run_keys_read(tmpdir, &keys, NULL), STATUS_OK);
    number_hex_text(keys.server_public, WIRE_KEY, tail + 1);
    tail[65] = '/';
    number_hex_text(keys.enrol_secret, WIRE_KEY, tail + 66);
    snprintf(text, sizeof text, "tcp://127.0.0.1:29600%s\n", tail);
    line_for("tcp://127.0.0.1:29600", "auto", &keys);
    holds("address", text); /* loopback has keys, too */
    assert_int_equal(mode_of("address"), 0600);
    snprintf(text, sizeof text, "tcp://127.0.0.1:29600%s\ntcp://example.org:29600%s\n", tail, tail);
    line_for("tcp://127.0.0.1:29600", "example.org", &keys);
    holds("address", text); /* local address first */
    snprintf(text, sizeof text, "tcp://example.org:81%s", tail);
    assert_string_equal(line_for("tcp://127.0.0.1:29600", "example.org:81", &keys), text);

    snprintf(line, sizeof line, "%s", line_for("tcp://0.0.0.0:29600", "auto", &keys));
    assert_int_equal(mode_of("address"), 0600); /* a user with read access can join */
    assert_int_equal(strncmp(line, "tcp://", 6), 0);
    assert_null(strstr(line, "0.0.0.0")); /* this address cannot be dialled */
    port = strstr(line, ":29600/");
    assert_non_null(port);
    assert_int_equal(strlen(port), strlen(":29600") + 2 * 65);
    snprintf(text, sizeof text, "%s\n", line);
    holds("address", text);
    struct transport_address a;
    assert_int_equal(transport_address_parse(&a, line, NULL), STATUS_OK);
    assert_memory_equal(a.server_key, keys.server_public, sizeof a.server_key);
    assert_memory_equal(a.secret, keys.enrol_secret, sizeof a.secret);
    assert_null(strstr(line_for("tcp://[::]:29600", "auto", &keys), "[::]"));
    holds("endpoint", "tcp://[::]:29600");
    tmpdir_take("endpoint");
    run_dir_forget(tmpdir, "address");
    assert_false(file_exists(tmpdir_path("address")));
    tmpdir_take("keys");
}

/* A new enrolment key: the coordinator's own stays, and every join line has the new secret. */
TEST(test_enrolment_key_is_renewed)
{
    struct run_keys before, after;
    struct transport_address a;
    struct err err = {0};
    char *line;
    void *data;
    size_t size;
    assert_int_equal(run_keys_read(tmpdir, &before, NULL), STATUS_OK);
    assert_int_equal(run_dir_renew_enrolment(tmpdir, &err), STATUS_OK); /* without an address: the run is stopped */
    assert_false(file_exists(tmpdir_path("address")));
    assert_int_equal(run_keys_read(tmpdir, &after, NULL), STATUS_OK);
    assert_memory_equal(before.server_secret, after.server_secret, WIRE_KEY);
    assert_memory_not_equal(before.enrol_secret, after.enrol_secret, WIRE_KEY);
    line_for("tcp://127.0.0.1:29600", "example.org", &after);
    assert_int_equal(run_dir_renew_enrolment(tmpdir, &err), STATUS_OK);
    assert_int_equal(run_keys_read(tmpdir, &after, NULL), STATUS_OK);
    assert_int_equal(mode_of("address"), 0600);
    assert_int_equal(mode_of("keys"), 0600);
    assert_int_equal(file_read(tmpdir_path("address"), 4096, &data, &size, NULL), STATUS_OK);
    line = strtok(data, "\n");
    for (int i = 0; i < 2; i++, line = strtok(NULL, "\n")) {
        assert_non_null(line);
        assert_int_equal(transport_address_parse(&a, line, NULL), STATUS_OK);
        assert_string_equal(a.endpoint, i ? "tcp://example.org:29600" : "tcp://127.0.0.1:29600");
        assert_memory_equal(a.secret, after.enrol_secret, WIRE_KEY);
    }
    assert_null(line);
    mem_free(data);
    tmpdir_take("address");
    tmpdir_take("endpoint");
    tmpdir_take("keys");
}

TEST(test_invalid_advertise_is_refused)
{
    char line[1024];
    struct err err = {0};
    struct run_keys keys = {.enrol_public = {0}};
    assert_int_equal(run_dir_write_address(tmpdir, "tcp://127.0.0.1:1", "a b:c", &keys, line, sizeof line, &err),
                     STATUS_INVALID);
    assert_string_not_equal(err.msg, "");
    assert_false(file_exists(tmpdir_path("address")));
}

/* A failed first start leaves what was there before, and a later one everything. */
TEST(test_failed_start_is_undone)
{
    static const char *const made[] = {"lock", "config.yaml", "endpoint", "metrics.jsonl", "run_id", "journal/1.log"};
    struct run_dir_before before;
    run_dir_look(&before, tmpdir_path("new/run"));
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        char name[64];
        snprintf(name, sizeof name, "new/run/%s", made[i]);
        tmpdir_put(name, "");
    }
    run_dir_undo(&before, tmpdir_path("new/run"));
    assert_false(file_exists(tmpdir_path("new")));

    tmpdir_put("keys", "mine");
    run_dir_look(&before, tmpdir);
    tmpdir_put("lock", "");
    tmpdir_put("journal/1.log", "");
    run_dir_undo(&before, tmpdir);
    assert_false(file_exists(tmpdir_path("journal")));
    assert_false(file_exists(tmpdir_path("lock")));
    tmpdir_take("keys");

    tmpdir_put("journal/1.log", "a run");
    run_dir_look(&before, tmpdir);
    tmpdir_put("run_id", "");
    run_dir_undo(&before, tmpdir);
    tmpdir_take("run_id");
    tmpdir_take("journal/1.log");
    assert_int_equal(rmdir(tmpdir_path("journal")), 0);
}

/* A restarted coordinator listens at the address that its workers know. */
TEST(test_restart_keeps_endpoint)
{
    static const struct {
        const char *endpoint, *listen, *want;
    } cases[] = {
        {NULL, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"},
        {"tcp://127.0.0.1:4711", "tcp://127.0.0.1:*", "tcp://127.0.0.1:4711"},
        {"tcp://127.0.0.1:4711\n", "tcp://0.0.0.0:*", "tcp://0.0.0.0:4711"},
        {"tcp://127.0.0.1:4711\ntcp://example.org:81\n", "tcp://127.0.0.1:*", "tcp://127.0.0.1:4711"},
        {"tcp://[::1]:4711\n", "tcp://[::1]:*", "tcp://[::1]:4711"},
        {"tcp://127.0.0.1:4711\n", "tcp://127.0.0.1:29600", "tcp://127.0.0.1:29600"},
        {"nonsense\n", "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"},
        {"", "tcp://127.0.0.1:*", "tcp://127.0.0.1:*"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[256];
        if (cases[i].endpoint) tmpdir_put("endpoint", cases[i].endpoint);
        run_dir_last_endpoint(tmpdir, cases[i].listen, out, sizeof out);
        assert_string_equal(out, cases[i].want);
    }
    tmpdir_take("endpoint");
}

TEST_MAIN(tmpdir_make, tmpdir_remove_empty)
