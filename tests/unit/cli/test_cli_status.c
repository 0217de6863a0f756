/* atoll status: what it makes of each answer, of none, and of a run folder. ctest: waits=1 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "tests/lib/store/tmpdir.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { LOOK_US = 20000, TEXT_MAX = 4096 };

/* A coordinator that answers every question alike, but for the first ones. */
static struct {
    struct transport *listener;
    pthread_t thread;
    atomic_bool end;
    char address[128];
    uint8_t answer[TEXT_MAX];
    size_t size;
    int unanswered;
    char over[FILEIO_PATH_MAX]; /* this summary appears when it is asked; empty: none */
} server;

static char out[TEXT_MAX], said[TEXT_MAX]; /* what the last call wrote to stdout and stderr */

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
    if (transport_zmq_listen(&server.listener, "tcp://127.0.0.1:*", NULL, server.address, sizeof server.address,
                             &err) != STATUS_OK)
        fail_msg("%s", err.msg);
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
}

/* `atoll status SUBJECT OPTION`: the exit code. */
static int status_of(const char *subject, const char *option)
{
    char words[4][FILEIO_PATH_MAX] = {"status", "", ""}, *argv[] = {words[0], words[1], words[2], NULL};
    snprintf(words[1], sizeof words[1], "%s", subject);
    snprintf(words[2], sizeof words[2], "%s", option);
    FILE *streams[] = {stdout, stderr}, *files[2];
    char *texts[] = {out, said};
    int true_fd[2];
    log_set_level(LOG_INFO); /* as a program begins */
    for (int i = 0; i < 2; i++) {
        files[i] = tmpfile();
        assert_non_null(files[i]);
        fflush(streams[i]);
        true_fd[i] = dup(fileno(streams[i]));
        assert_true(true_fd[i] >= 0 && dup2(fileno(files[i]), fileno(streams[i])) >= 0);
    }
    int code = cmd_status(3, argv);
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

static void fails(const char *subject, const char *option, int code, const char *words)
{
    assert_int_equal(status_of(subject, option), code);
    assert_string_equal(out, "");
    if (strncmp(said, "atoll: ", 7) || !strstr(said, words) || strchr(said, '\n') != said + strlen(said) - 1)
        fail_msg("\"%s\", expected one line with \"%s\"", said, words);
}

/* As a coordinator of the folder has "lock", and atoll launch "launch.lock". */
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

static void let_go(FILE *lock)
{
    fclose(lock);
    tmpdir_take("lock");
}

static void test_answered(void **state)
{
    (void)state;
    FILE *lock = hold_lock();
    char json[] = "{\"round\": 7, \"method\": \"diloco\"}";
    begin(&(struct msg){.type = MSG_STATUS_REPLY, .status_reply.json = json}, 2);
    assert_int_equal(status_of(server.address, "--timeout=30"), EXIT_DONE); /* asked again until it is answered */
    assert_non_null(strstr(out, "round              7\n"));
    assert_int_equal(status_of(server.address, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\": 7, \"method\": \"diloco\"}\n");
    tmpdir_put("address", server.address);
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\": 7, \"method\": \"diloco\"}\n");
    tmpdir_put("summary.json", "{\"round\": 8}"); /* it is about to end: what it says goes first */
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\": 7, \"method\": \"diloco\"}\n");
    end();
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\": 8}\n");
    tmpdir_take("summary.json");
    tmpdir_take("address");
    let_go(lock);
}

/* The address of a coordinator that was killed: another run answers there by now. */
static void test_other_run(void **state)
{
    (void)state;
    char json[] = "{\"run\": \"runB\", \"run_id\": \"00112233445566778899aabbccddeeff\", \"round\": 7}";
    begin(&(struct msg){.type = MSG_STATUS_REPLY, .status_reply.json = json}, 0);
    tmpdir_put("address", server.address);
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE); /* a folder of an older version: it does not say */
    tmpdir_put("run_id", "00112233445566778899aabbccddeeff\n");
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    tmpdir_put("run_id", "ff112233445566778899aabbccddeeff\n");
    fails(tmpdir, "--json", EXIT_FAILED, "is not running: its address tcp://127.0.0.1:");
    assert_non_null(strstr(said, "now serves another run, runB"));
    assert_int_equal(status_of(server.address, "--json"), EXIT_DONE);
    tmpdir_put("summary.json", "{\"round\": 8}"); /* it is over: nobody is asked */
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\": 8}\n");
    assert_string_equal(said, "");
    end();
    tmpdir_take("summary.json");
    tmpdir_take("run_id");
    tmpdir_take("address");
}

static void test_refused(void **state)
{
    (void)state;
    FILE *lock = hold_lock();
    struct msg refusal = {.type = MSG_REFUSE, .refuse.code = REFUSE_FULL};
    snprintf(refusal.refuse.text, sizeof refusal.refuse.text, "the reason");
    begin(&refusal, 0);
    fails(server.address, "--timeout=30", EXIT_FAILED, "refused: the reason");
    tmpdir_put("address", server.address);
    fails(tmpdir, "--timeout=30", EXIT_FAILED, "refused: the reason"); /* and not that nobody is there */
    tmpdir_put("summary.json", "{\"round\": 8}");
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_DONE);
    assert_string_equal(out, "{\"round\": 8}\n");
    end();
    tmpdir_take("summary.json");
    tmpdir_take("address");
    let_go(lock);
}

/* It was asked, wrote its summary and ended. */
static void test_ends_meanwhile(void **state)
{
    (void)state;
    snprintf(server.over, sizeof server.over, "%s/summary.json", tmpdir);
    begin(&(struct msg){.type = MSG_STATUS}, 1 << 20);
    tmpdir_put("address", server.address);
    tmpdir_put("lock", "");
    assert_int_equal(status_of(tmpdir, "--timeout=0.5"), EXIT_DONE);
    if (said[0] || !strstr(out, "round") || !strchr(out, '8')) fail_msg("\"%s\" and \"%s\"", out, said);
    end();
    server.over[0] = 0;
    tmpdir_take("summary.json");
    tmpdir_take("address");
    tmpdir_take("lock");
}

static void test_no_answer(void **state)
{
    (void)state;
    begin(&(struct msg){.type = MSG_STATUS}, 1 << 20);
    fails(server.address, "--timeout=0.2", EXIT_FAILED, "its port open in the firewall, and is this");
    tmpdir_put("address", server.address);
    tmpdir_put("lock", "");
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED,
          "is neither running nor finished, no round of it is done: atoll-coordinator with --dir");
    tmpdir_put("launch.lock", "");
    tmpdir_put("metrics.jsonl",
               "{\"event\":\"round\",\"round\":3,\"rounds\":9,\"loss\":2}\n"
               "{\"event\":\"round\",\"round\":4,\"rounds\":9,\"loss\":1.5}\n{\"event\":\"step\",\"ro");
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED,
          "is neither running nor finished, 4 of 9 rounds are done, loss 1.5000: atoll launch with --dir");
    assert_int_equal(status_of(tmpdir, "--json"), EXIT_FAILED);
    assert_string_equal(out, "{\"round\":4,\"rounds\":9,\"loss\":1.5,\"state\":\"stopped\"}\n");
    tmpdir_take("metrics.jsonl");
    FILE *launch = hold("launch.lock"); /* it starts its coordinator again */
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED, "atoll launch is at work in ");
    fclose(launch);
    FILE *lock = hold_lock();
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED, "and does not answer within 0.2 s");
    end();
    tmpdir_put("address", "tcp://127.0.0.1:1"); /* it died when the folder had been looked at */
    fails(tmpdir, "--timeout=0.5", EXIT_FAILED, "and does not answer within 0.5 s");
    tmpdir_take("address");
    fails(tmpdir, "--timeout=0.2", EXIT_FAILED, "is starting: ask again");
    let_go(lock);
    tmpdir_take("launch.lock");
}

/* What cannot be read is not called missing; by a user that may read everything, a loop of links stands for it. */
static void test_not_readable(void **state)
{
    (void)state;
    assert_int_equal(symlink("address", tmpdir_path("address")), 0);
    FILE *lock = hold_lock();
    fails(tmpdir, "--json", EXIT_FAILED, "/address: Too many levels of symbolic links");
    let_go(lock);
    fails(tmpdir_path("address"), "--json", EXIT_FAILED, "/address: Too many levels of symbolic links");
    tmpdir_take("address");
    tmpdir_put("file", "");
    fails(tmpdir_path("file"), "--json", EXIT_FAILED, "/file is a file");
    fails(tmpdir_path("file/run"), "--json", EXIT_FAILED, "/file/run: Not a directory");
    tmpdir_take("file");
}

static void test_no_run(void **state)
{
    (void)state;
    fails(tmpdir, "--json", EXIT_FAILED, "holds no run");
    fails("/nowhere", "--json", EXIT_FAILED, "there is no run folder /nowhere");
    fails("tcp://127.0.0.1", "--json", EXIT_USAGE, "127.0.0.1");
    fails(tmpdir, "--timeout=0", EXIT_USAGE, "--timeout is 0: give seconds above 0");
    tmpdir_put("summary.json", "{\"round\":");
    fails(tmpdir, "--timeout=1", EXIT_FAILED, "summary.json");
    fails(tmpdir, "--json", EXIT_FAILED, "summary.json is not valid JSON");
    tmpdir_take("summary.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answered),      cmocka_unit_test(test_other_run),
                                       cmocka_unit_test(test_refused),       cmocka_unit_test(test_no_answer),
                                       cmocka_unit_test(test_not_readable),  cmocka_unit_test(test_no_run),
                                       cmocka_unit_test(test_ends_meanwhile)};
    return cmocka_run_group_tests(tests, tmpdir_make, tmpdir_remove_empty);
}
