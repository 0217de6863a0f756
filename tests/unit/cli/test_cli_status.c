/* atoll status: its output for every answer, for no answer, and for a run folder. ctest: waits=1 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { LOOK_US = 20000, TEXT_MAX = 4096 };

/* A coordinator that gives the same answer to every request except the first ones. */
static struct {
    struct transport *listener;
    pthread_t thread;
    atomic_bool end;
    struct test_access access;
    char address[512];
    uint8_t answer[TEXT_MAX];
    size_t size;
    int unanswered;
    char over[FILEIO_PATH_MAX]; /* this summary appears on a request; empty: none */
} server;

static char out[TEXT_MAX], errors[TEXT_MAX]; /* stdout and stderr of the last call */

static void *serve(void *unused)
{
    (void)unused;
    while (!atomic_load(&server.end)) {
        uint64_t peer;
        enum wire_lane lane;
        const uint8_t *data;
        size_t size;
        struct msg question;
        if (server.listener->ops->recv(server.listener, LOOK_US, &peer, &lane, &data, &size) != STATUS_OK) continue;
        if (msg_decode(&question, data, size, NULL) != STATUS_OK || question.type != MSG_STATUS) continue;
        if (server.over[0] && file_write(server.over, "{\"round\": 8}", 12, NULL) != STATUS_OK) continue;
        if (server.unanswered-- > 0) continue;
        (void)server.listener->ops->send(server.listener, peer, WIRE_CONTROL, server.answer, server.size);
    }
    return NULL;
}

static void begin(const struct msg *answer, int unanswered)
{
    struct err err = {0};
    char bound[128];
    test_access_make(&server.access);
    if (transport_zmq_listen(&server.listener, "tcp://127.0.0.1:*", &server.access.access, bound, sizeof bound, &err) !=
        STATUS_OK)
        fail_msg("%s", err.msg);
    snprintf(server.address, sizeof server.address, "%s", test_access_line(&server.access, bound));
    assert_int_equal(msg_encode(answer, server.answer, sizeof server.answer, &server.size), STATUS_OK);
    server.unanswered = unanswered;
    atomic_store(&server.end, false);
    assert_int_equal(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static void end(void)
{
    atomic_store(&server.end, true);
    pthread_join(server.thread, NULL);
    server.listener->ops->close(server.listener);
    server.listener = NULL;
}

/* Runs `atoll status SUBJECT OPTION`; returns the exit code. */
static int status_of(const char *subject, const char *option)
{
    char words[4][FILEIO_PATH_MAX] = {"status", "", ""}, *argv[] = {words[0], words[1], words[2], NULL};
    /* A line on the command line has a warning of its own. */
    bool line = !strncmp(subject, "tcp://", 6) && strchr(subject + 6, '/');
    if (line) tmpdir_put("line", subject);
    if (line) assert_int_equal(chmod(tmpdir_path("line"), 0600), 0);
    snprintf(words[1], sizeof words[1], "%s", line ? tmpdir_path("line") : subject);
    snprintf(words[2], sizeof words[2], "%s", option);
    FILE *streams[] = {stdout, stderr}, *files[2];
    char *texts[] = {out, errors};
    int true_fd[2];
    /* As at the start of a program; but the stub shares this process, and its warnings are not the command's. */
    log_set_level(server.listener ? LOG_ERROR : LOG_INFO);
    for (int i = 0; i < 2; i++) {
        files[i] = tmpfile();
        assert_non_null(files[i]);
        fflush(streams[i]);
        true_fd[i] = dup(fileno(streams[i]));
        assert_true(true_fd[i] >= 0 && dup2(fileno(files[i]), fileno(streams[i])) >= 0);
    }
    int code = cmd_status(3, argv);
    if (line) tmpdir_take("line");
    for (int i = 0; i < 2; i++) {
        fflush(streams[i]);
        dup2(true_fd[i], fileno(streams[i]));
        close(true_fd[i]);
        rewind(files[i]);
        texts[i][fread(texts[i], 1, TEXT_MAX - 1, files[i])] = 0;
        fclose(files[i]);
    }
    return code;
}

static void expect_error(const char *words)
{
    if (strncmp(errors, "atoll: ", 7) || !strstr(errors, words) || strchr(errors, '\n') != errors + strlen(errors) - 1)
        fail_msg("\"%s\", expected one line with \"%s\"", errors, words);
}

static void fails(const char *subject, const char *option, int code, const char *words)
{
    assert_int_equal(status_of(subject, option), code);
    assert_string_equal(out, "");
    expect_error(words);
}

/* A stopped run: its status on stdout, and the error. */
static void fails_with_status(const char *subject, const char *lines, const char *words)
{
    assert_int_equal(status_of(subject, "--timeout=0.2"), EXIT_FAILED);
    if (!strstr(out, lines)) fail_msg("\"%s\", expected \"%s\"", out, lines);
    expect_error(words);
}

/* Holds "lock" as a coordinator does, or "launch.lock" as atoll launch does. */
static FILE *hold(const char *name)
{
    tmpdir_put(name, "");
    FILE *lock = fopen(tmpdir_path(name), "r");
    assert_true(lock && flock(fileno(lock), LOCK_EX | LOCK_NB) == 0);
    return lock;
}

static FILE *hold_lock(void)
{
    return hold("lock");
}

static void release(FILE *lock)
{
    fclose(lock);
    tmpdir_take("lock");
}

/* The summary of the finished run in the folder, {"round": 8}, with all keys of the status. */
static void expect_finished(void)
{
    assert_non_null(strstr(out, "{\"state\":\"done\",\"run\":"));
    assert_non_null(strstr(out, "\"round\":8,"));
    assert_non_null(strstr(out, "\"eta_s\":0.0,\"waiting_for\":null,"));
}

TEST(test_answer_is_printed)
{
    FILE *lock = hold_lock();
    char json[] = "{\"round\": 7, \"method\": \"diloco\"}";
    begin(&(struct msg){.type = MSG_STATUS_REPLY, .status_reply.json = json}, 2);
    assert_int_equal(status_of(server.address, "--timeout=30"), EXIT_DONE); /* status retries until it gets an answer */
    assert_string_equal(out, "run          diloco\nstate        round 7\n");
    assert_int_equal(status_of(server.address, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\":7,\"method\":\"diloco\"}\n");
    tmpdir_put("address", server.address);
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\":7,\"method\":\"diloco\"}\n");
    tmpdir_put("summary.json", "{\"round\": 8}"); /* the run is about to end: the coordinator's answer has priority */
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\":7,\"method\":\"diloco\"}\n");
    end();
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    expect_finished();
    tmpdir_take("summary.json");
    tmpdir_take("address");
    release(lock);
}

TEST(test_refusal_is_printed)
{
    FILE *lock = hold_lock();
    struct msg refusal = {.type = MSG_REFUSE, .refuse.code = REFUSE_FULL};
    snprintf(refusal.refuse.text, sizeof refusal.refuse.text, "the reason");
    begin(&refusal, 0);
    fails(server.address, "--timeout=30", EXIT_FAILED, "refused: the reason");
    tmpdir_put("address", server.address);
    fails(tmpdir, "--timeout=30", EXIT_FAILED, "refused: the reason"); /* and not "no answer" */
    tmpdir_put("summary.json", "{\"round\": 8}");
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    expect_finished();
    end();
    tmpdir_take("summary.json");
    tmpdir_take("address");
    release(lock);
}

/* The coordinator answers, writes its summary and ends. */
TEST(test_summary_is_printed_if_run_ends)
{
    snprintf(server.over, sizeof server.over, "%s/summary.json", tmpdir);
    begin(&(struct msg){.type = MSG_STATUS}, 1 << 20);
    tmpdir_put("address", server.address);
    tmpdir_put("lock", "");
    if (status_of(tmpdir, "--timeout=0.5") != EXIT_DONE) { /* on a busy machine the question comes too late */
        remove(server.over);
        assert_int_equal(status_of(tmpdir, "--timeout=20"), EXIT_DONE);
    }
    if (errors[0] || !strstr(out, "state        done, round 8\n")) fail_msg("\"%s\" and \"%s\"", out, errors);
    end();
    server.over[0] = 0;
    tmpdir_take("summary.json");
    tmpdir_take("address");
    tmpdir_take("lock");
}

TEST(test_missing_answer_is_reported)
{
    begin(&(struct msg){.type = MSG_STATUS}, 1 << 20);
    fails(server.address, "--timeout=0.2", EXIT_FAILED, "that the firewall opens its port, and that this");
    tmpdir_put("address", server.address);
    tmpdir_put("lock", "");
    fails_with_status(tmpdir, "state        stopped\n",
                      "is stopped, no round is done: continue it with atoll-coordinator --dir");
    tmpdir_put("launch.lock", "");
    tmpdir_put("metrics.jsonl",
               "{\"event\":\"eval\",\"round\":3,\"val_loss\":2.25}\n"
               "{\"event\":\"round\",\"round\":3,\"rounds\":9,\"loss\":2}\n"
               "{\"event\":\"round\",\"round\":4,\"rounds\":9,\"loss\":1.5}\n{\"event\":\"step\",\"ro");
    fails_with_status(tmpdir,
                      "state        stopped, round 4 of 9, 44 %\nloss         train 1.5000, validation 2.2500\n",
                      "is stopped, 4 of 9 rounds are done, loss 1.5000: continue it with atoll launch --dir");
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_FAILED);
    assert_non_null(strstr(out, "{\"state\":\"stopped\",\"run\":"));
    assert_non_null(strstr(out, "\"round\":4,\"rounds\":9,\"percent\":44."));
    assert_non_null(strstr(out, "\"train_loss\":1.5,\"val_loss\":2.25,"));
    tmpdir_take("metrics.jsonl");
    FILE *launch = hold("launch.lock"); /* launch will restart its coordinator */
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED, "atoll launch runs in ");
    fclose(launch);
    FILE *lock = hold_lock();
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED, "did not answer within 200 ms");
    end();
    tmpdir_put("address",
               test_access_line(&server.access, "tcp://127.0.0.1:1")); /* it died after status had read the folder */
    fails(tmpdir, "--timeout=0.5", EXIT_FAILED, "did not answer within 500 ms");
    tmpdir_take("address");
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED, "is starting: try again");
    release(lock);
    tmpdir_take("launch.lock");
}

/* An unreadable file is not reported as missing. For a user that may read every file, a loop of links replaces it. */
TEST(test_unreadable_file_is_reported)
{
    assert_int_equal(symlink("address", tmpdir_path("address")), 0);
    FILE *lock = hold_lock();
    fails(tmpdir, "--json", EXIT_FAILED, "/address: Too many levels of symbolic links");
    release(lock);
    fails(tmpdir_path("address"), "--json", EXIT_FAILED, "/address: Too many levels of symbolic links");
    tmpdir_take("address");
    tmpdir_put("file", "");
    fails(tmpdir_path("file"), "--json", EXIT_USAGE, "/file: the first line is no join line");
    fails(tmpdir_path("file/run"), "--json", EXIT_FAILED, "/file/run: Not a directory");
    tmpdir_take("file");
}

TEST(test_folder_without_run_is_reported)
{
    fails(tmpdir, "--json", EXIT_FAILED, "is not a run folder");
    fails("/nowhere", "--json", EXIT_FAILED, "run folder /nowhere does not exist");
    fails("tcp://127.0.0.1", "--json", EXIT_USAGE, "127.0.0.1");
    fails(tmpdir, "--timeout=0", EXIT_USAGE, "--timeout is 0: give seconds above 0");
    tmpdir_put("summary.json", "{\"round\":");
    fails(tmpdir, "--timeout=1", EXIT_FAILED, "summary.json");
    fails(tmpdir, "--json", EXIT_FAILED, "summary.json is not valid JSON");
    tmpdir_take("summary.json");
}

TEST_MAIN(tmpdir_make, tmpdir_remove_empty)
