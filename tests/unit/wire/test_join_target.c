/* The coordinator that a user names: join line, file, standard input, environment, run folder. No message shows a key.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/join_target.h"
#include "wire/transport.h"

#define SERVER "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SECRET "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2"
#define LINE "tcp://192.0.2.1:29600/" SERVER "/" SECRET

static struct join_target target;
static char logged[4096];

static void keep(void *ctx, enum log_level level, const char *text)
{
    (void)ctx, (void)level;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", text);
}

/* Reads a copy of `given`; returns the copy. */
static char *reads(const char *given)
{
    static char argument[512];
    struct err err = {0};
    snprintf(argument, sizeof argument, "%s", given);
    logged[0] = 0;
    if (join_target_read(&target, argument, &err) != STATUS_OK) fail_msg("%s: %s", given, err.msg);
    assert_null(strstr(logged, SECRET));
    return argument;
}

static void refuses(const char *given, const char *words)
{
    char argument[512];
    struct err err = {0};
    snprintf(argument, sizeof argument, "%s", given);
    if (join_target_read(&target, argument, &err) != STATUS_INVALID) fail_msg("%s: accepted", given);
    if (!strstr(err.msg, words)) fail_msg("%s: \"%s\"; expected \"%s\"", given, err.msg, words);
    assert_null(strstr(err.msg, "5ec2e75ec2e7"));
}

TEST(test_line_on_command_line_is_hidden)
{
    const char *argument = reads(LINE);
    assert_string_equal(target.line, LINE);
    assert_int_equal(strncmp(argument, "tcp://192.0.2.1:29600/xxxx", 26), 0);
    assert_null(strstr(argument, "5ec2"));
    assert_non_null(strstr(logged, "list of processes"));
    reads("tcp://127.0.0.1:29600/00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"); /* no secret */
    assert_string_equal(logged, "");
}

TEST(test_line_is_read_from_environment)
{
    setenv(JOIN_ENV, LINE, 1);
    assert_int_equal(join_target_read(&target, NULL, NULL), STATUS_OK);
    assert_string_equal(target.line, LINE);
    assert_null(getenv(JOIN_ENV));
    assert_int_equal(join_target_read(&target, NULL, NULL), STATUS_NOTFOUND);
    setenv(JOIN_ENV, LINE, 1);
    reads("folder"); /* the argument wins, and the variable is removed nevertheless */
    assert_string_equal(target.run_dir, "folder");
    assert_null(getenv(JOIN_ENV));
}

/* A library changes neither its argument nor the environment, and logs nothing about the list of processes. */
TEST(test_library_leaves_line_and_environment)
{
    struct err err = {0};
    logged[0] = 0;
    assert_int_equal(join_target_find(&target, LINE, &err), STATUS_OK); /* a constant */
    assert_string_equal(target.line, LINE);
    setenv(JOIN_ENV, LINE, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(join_target_find(&target, NULL, &err), STATUS_OK);
        assert_string_equal(target.line, LINE);
    }
    assert_int_equal(join_target_find(&target, "folder", &err), STATUS_OK);
    assert_string_equal(target.run_dir, "folder");
    assert_string_equal(getenv(JOIN_ENV), LINE);
    setenv(JOIN_ENV, "tcp:192.0.2.1", 1);
    assert_int_equal(join_target_find(&target, NULL, &err), STATUS_INVALID);
    assert_int_equal(strncmp(err.msg, JOIN_ENV ": ", strlen(JOIN_ENV ": ")), 0);
    unsetenv(JOIN_ENV);
    assert_int_equal(join_target_find(&target, NULL, &err), STATUS_NOTFOUND);
    assert_string_equal(logged, "");
}

TEST(test_line_is_read_from_file)
{
    tmpdir_put("join", LINE "\nsecond line\n");
    chmod(tmpdir_path("join"), 0600);
    reads(tmpdir_path("join"));
    assert_string_equal(target.line, LINE);
    assert_string_equal(target.run_dir, "");
    assert_string_equal(logged, "");
    chmod(tmpdir_path("join"), 0644);
    reads(tmpdir_path("join"));
    assert_non_null(strstr(logged, "other users can read the join line"));
    tmpdir_put("join", SECRET "\n");
    refuses(tmpdir_path("join"), "the first line is no join line");
    tmpdir_put("join", "tcp://192.0.2.1:29600/" SERVER "/" SECRET "0\n");
    refuses(tmpdir_path("join"), "the secret must be 64 hexadecimal digits");
    tmpdir_take("join");
}

TEST(test_line_is_read_from_standard_input)
{
    int before = dup(STDIN_FILENO), ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], LINE "\r\n", sizeof LINE + 1), sizeof LINE + 1);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    reads("-");
    assert_string_equal(target.line, LINE);
    refuses("-", "standard input: the first line is no join line");
    dup2(before, STDIN_FILENO);
    close(before);
}

TEST(test_mistyped_line_is_refused)
{
    static const char *const bad[] = {
        "tcp:/192.0.2.1:29600/" SERVER "/" SECRET,
        "tcp;//192.0.2.1:29600/" SERVER "/" SECRET,
        "TCP://192.0.2.1:29600/" SERVER "/" SECRET,
        "192.0.2.1:29600/" SERVER "/" SECRET,
        "tcp//192.0.2.1:29600/" SERVER "/" SECRET,
        "tpc:/host/" SERVER "/" SECRET,
        "http://192.0.2.1:29600",
        "tcp:/host",
        "host:29600",
        "/" SERVER "g/g" SECRET,
        "tcp:" SECRET,
        "",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refuses(bad[i], "is a mistyped join line");
    refuses("tcp://" SECRET, "expected tcp://HOST:PORT");
    refuses("tcp://host:29600" SECRET "/" SERVER, "the port must be a number");
}

TEST(test_missing_folder_is_allowed)
{
    static const char *const names[] = {"a-run", "runs/a:b", "runs/12:30", "/tmp/tcp", "tcp", "runs/" SERVER};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        reads(names[i]);
        assert_string_equal(target.run_dir, names[i]);
        assert_string_equal(target.line, "");
    }
}

int main(int argc, char **argv)
{
    log_set_sink(keep, NULL);
    return test_run(argc, argv, tmpdir_make, tmpdir_remove_empty);
}
