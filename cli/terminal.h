/* Prints lines and one progress bar on the standard output of `atoll launch`, for all its children. A reader that stops
 * reading (a pager, a paused terminal) does not block launch: after 0.2 s lines are dropped until it reads again, and
 * then one line gives their number. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* Returns true if standard output is a terminal that can redraw a line. */
bool terminal_interactive(void);
/* Prints one line above the bar. A line of a round is cut after the last field that fits the width. */
void terminal_line(const char *prefix, const char *text, size_t size);
/* Draws or replaces the bar; does nothing without a terminal. */
void terminal_bar(const char *text, size_t size);
/* Removes the bar. */
void terminal_bar_clear(void);

#endif
