/* Progress of long calls: when a terminal and a log get a line, and what it says. */
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "cli/progress.h"
#include "tests/lib/test.h"

enum { QUIET_MS = 200 }; /* no more output is to come */

static int true_stderr, reader; /* reader: the other end of the pipe or terminal that stands for stderr */

static void redirect(bool terminal)
{
    int ends[2];
    fflush(stderr);
    true_stderr = dup(STDERR_FILENO);
    if (terminal) {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        assert_true(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
        ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
    } else {
        assert_int_equal(pipe(ends), 0);
    }
    assert_true(ends[1] >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    close(ends[1]);
    reader = ends[0];
    assert_int_equal(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
}

/* Returns the output so far. A terminal passes it on with a delay. */
static const char *written(void)
{
    static char text[1024];
    size_t n = 0;
    struct pollfd in = {.fd = reader, .events = POLLIN};
    fflush(stderr);
    while (poll(&in, 1, QUIET_MS) > 0) {
        ssize_t got = read(reader, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    text[n] = '\0';
    return text;
}

static void restore(void)
{
    fflush(stderr);
    dup2(true_stderr, STDERR_FILENO);
    close(true_stderr);
    close(reader);
}

/* Lets time pass until the next line. */
static void pass(struct progress *p)
{
    p->next_us = 0;
}

TEST(test_log_gets_a_line_now_and_then)
{
    struct progress p = {0};
    redirect(false);
    progress_begin(&p, 0);
    uint64_t first = p.next_us - p.begun_us;
    progress_show(&p, "planning %d", 1);
    char early[64];
    snprintf(early, sizeof early, "%s", written());
    pass(&p);
    progress_show(&p, "planning %d", 2);
    progress_show(&p, "planning %d", 3);
    char line[64];
    snprintf(line, sizeof line, "%s", written());
    progress_end(&p);
    char end[64];
    snprintf(end, sizeof end, "%s", written());
    restore();
    assert_int_equal(first, PROGRESS_LOG_US);
    assert_string_equal(early, "");
    assert_string_equal(line, "planning 2\n");
    assert_string_equal(end, "");
}

TEST(test_quiet_log_gets_nothing)
{
    struct progress p = {.quiet = true};
    redirect(false);
    progress_begin(&p, 0);
    pass(&p);
    progress_show(&p, "planning");
    progress_show(NULL, "planning");
    char text[64];
    snprintf(text, sizeof text, "%s", written());
    restore();
    assert_string_equal(text, "");
}

TEST(test_terminal_line_is_redrawn_and_erased)
{
    struct progress p = {0};
    char early[64], lines[128], end[64];
    redirect(true);
    progress_begin(&p, 60000000);
    progress_show(&p, "early");
    snprintf(early, sizeof early, "%s", written());
    for (int i = 1; i <= 2; i++) {
        pass(&p);
        progress_show(&p, "line %d \a", i);
    }
    snprintf(lines, sizeof lines, "%s", written());
    progress_end(&p);
    progress_end(&p);
    snprintf(end, sizeof end, "%s", written());
    restore();
    assert_string_equal(early, "");
    assert_string_equal(lines, "\r\033[Kline 1 ?\r\033[Kline 2 ?");
    assert_string_equal(end, "\r\033[K");
}

TEST(test_bytes_have_rate_and_time_left)
{
    struct progress p = {0};
    char text[128];
    redirect(false);
    progress_begin(&p, 0);
    p.begun_us -= 10000000;
    pass(&p);
    progress_show_bytes(&p, "wrote", 1000000000, 100000000000);
    snprintf(text, sizeof text, "%s", written());
    restore();
    assert_string_equal(text, "wrote 1 GB of 100 GB, 100 MB/s, 16 min 30 s left\n");
}

TEST_MAIN(NULL, NULL)
