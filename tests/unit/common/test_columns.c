/* Lines that drop whole fields on narrow terminals. */
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/os/columns.h"
#include "tests/lib/test.h"

static void fits(const char *line, unsigned width, const char *shown)
{
    size_t n = columns_fit(line, strlen(line), width);
    if (n != strlen(shown) || memcmp(line, shown, n)) fail_msg("%u columns: '%.*s' of '%s'", width, (int)n, line, line);
}

TEST(test_narrow_terminal_drops_whole_fields)
{
    const char *line = "round  9/10  loss 1.3783  val      -            up   2.0 MB  in   1.9 s";
    fits(line, 0, line);
    fits(line, 71, line);
    fits(line, 70, "round  9/10  loss 1.3783  val      -            up   2.0 MB");
    fits(line, 59, "round  9/10  loss 1.3783  val      -            up   2.0 MB");
    fits(line, 58, "round  9/10  loss 1.3783  val      -");
    fits(line, 36, "round  9/10  loss 1.3783  val      -");
    fits(line, 35, "round  9/10  loss 1.3783");
    fits(line, 23, "round  9/10");
    fits(line, 11, "round  9/10");
    fits(line, 1, "round  9/10"); /* the first field is shown on any terminal */
}

TEST(test_line_without_fields_stays)
{
    fits("", 10, "");
    fits("   ", 1, "");
    fits("one  two  ", 8, "one  two");
    fits("one long sentence", 5, "one long sentence");
    fits("numbers  1  2  3", 8, "numbers  1  2  3");
}

TEST(test_columns_variable_overrides_terminal_width)
{
    int master, slave, pipes[2];
    struct winsize size = {.ws_row = 24, .ws_col = 77};
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &size), 0);
    assert_int_equal(pipe(pipes), 0);
    unsetenv("COLUMNS");
    assert_int_equal(columns_of(slave), 77);
    assert_int_equal(columns_of(pipes[1]), 0);
    setenv("COLUMNS", "60", 1);
    assert_int_equal(columns_of(slave), 60);
    assert_int_equal(columns_of(pipes[1]), 0);
    static const char *const odd[] = {"", "0", "wide", "60x", "-1", "99999999999999999999"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        setenv("COLUMNS", odd[i], 1);
        assert_int_equal(columns_of(slave), 77);
    }
    for (int i = 0; i < 2; i++) close(pipes[i]);
    close(slave);
    close(master);
}

TEST_MAIN(NULL, NULL)
