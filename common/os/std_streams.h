/* Standard input, output and error of a program: safe start, reported write errors. */
#ifndef COMMON_STD_STREAMS_H
#define COMMON_STD_STREAMS_H

#include <stdbool.h>

/* Call it first in main.
 *
 * - A closed descriptor of 0 to 2 is opened on /dev/null. Otherwise the next opened file would get its number, and
 *   printed lines would go into that file. Writes to such a standard output fail, so that a lost result is an error.
 * - SIGPIPE is ignored: a reader (`| head`) may end before the program.
 * - SIGXFSZ is ignored: a file beyond `ulimit -f` is a failed write. */
void std_streams_open(void);
/* True when SIGHUP (a closed terminal) should end this program, that is when it does not run under nohup. */
bool std_streams_hang_up(void);
/* Call it last in a main whose standard output is its result. Returns `code`; or EXIT_FAILED with one line on stderr
 * when `code` is EXIT_DONE and a write to the output failed. A reader that ended is not a failure. */
int std_streams_close(int code);

#endif
