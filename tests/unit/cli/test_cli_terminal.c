/* The output of `atoll launch`: whole lines while the reader takes them. A slow reader does not delay it, and the
 * number of missing lines is shown.
 * A pipe replaces standard output; a blocking write would never return. */
#include <fcntl.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "tests/lib/test.h"

enum { LINES = 10000, GOT_MAX = 1 << 20 }; /* lines: more than any pipe holds */

static int reader, kept = -1;
static char got[GOT_MAX];

static int setup(void **state)
{
    int ends[2];
    (void)state;
    fflush(stdout);
    if (pipe(ends) || fcntl(ends[0], F_SETFL, O_NONBLOCK)) return -1;
    reader = ends[0];
    kept = dup(STDOUT_FILENO);
    return dup2(ends[1], STDOUT_FILENO) < 0 || close(ends[1]);
}

static int teardown(void **state)
{
    (void)state;
    return dup2(kept, STDOUT_FILENO) < 0;
}

static const char *read_pipe(void)
{
    size_t used = 0;
    for (ssize_t n; (n = read(reader, got + used, sizeof got - 1 - used)) > 0;) used += (size_t)n;
    got[used] = 0;
    return got;
}

static void line(const char *text)
{
    terminal_line("[w0] ", text, strlen(text));
}

TEST_WITH(test_slow_reader_loses_whole_lines, setup, teardown)
{
    unsigned long missing = 0;
    int shown = 0;
    line("first");
    assert_string_equal(read_pipe(), "[w0] first\n");
    for (int i = 0; i < LINES; i++) line("more than the pipe holds");
    for (const char *at = read_pipe(); (at = strstr(at, "pipe holds\n")); at++) shown++;
    assert_true(shown > 10 && shown < LINES);
    line("next");
    const char *note = strstr(read_pipe(), "launch: ");
    assert_non_null(note);
    assert_int_equal(sscanf(note, "launch: dropped %lu lines because the reader was too slow", &missing), 1);
    assert_int_equal(missing, LINES - shown);
    assert_string_equal(strchr(note, '\n'), "\n[w0] next\n");
    line("last");
    assert_string_equal(read_pipe(), "[w0] last\n");
}

TEST_MAIN(NULL, NULL)
