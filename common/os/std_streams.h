/* Standard input, output and error as a program that writes files needs them. */
#ifndef COMMON_STD_STREAMS_H
#define COMMON_STD_STREAMS_H

#include <stdbool.h>

/* First thing in a main. A descriptor of 0 to 2 that whoever started the program had closed becomes /dev/null: the next
 * file opened would get its number, and every line printed would land in that file. Nothing can be written to
 * such a standard output, so a result that is lost is no success. And SIGPIPE is ignored: who reads along (`| head`)
 * may end before the program does; and SIGXFSZ: a file larger than `ulimit -f` allows is a write that fails. */
void std_streams_open(void);
/* SIGHUP is to end this program: the terminal was closed, and nobody said nohup. */
bool std_streams_hang_up(void);
/* Last thing in a main whose output is its result: `code`, or EXIT_FAILED with one line on stderr when it was to be
 * EXIT_DONE and not all of the output could be written. A reader that ended is no failure. */
int std_streams_close(int code);

#endif
