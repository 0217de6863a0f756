/* Lines and one progress bar on the standard output of `atoll launch`, several children sharing it. A reader that takes
 * nothing (a pager, a terminal that stands still) holds nobody up: after a fifth of a second its lines are dropped
 * until it takes some again, and then one line says how many. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* Standard output is a terminal that can redraw a line. */
bool terminal_interactive(void);
/* One line, above the bar if there is one: whole, but for a round's line, which shows the fields that fit. */
void terminal_line(const char *prefix, const char *text, size_t size);
/* Draw or replace the bar; without a terminal, nothing. */
void terminal_bar(const char *text, size_t size);
/* Remove the bar. */
void terminal_bar_clear(void);

#endif
