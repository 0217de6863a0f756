/* The process that holds a lock file. It writes its number and its start time into the file.
 *
 * A lock may outlive its holder: a killed process takes seconds to free a GPU or much memory, and a process that it
 * forked may have a copy of the descriptor. */
#ifndef COMMON_LOCK_HOLDER_H
#define COMMON_LOCK_HOLDER_H

#include <stdbool.h>

/* Write this process into the lock file that it has locked. A failed write only loses the name. */
void lock_holder_note(int fd);
/* True when the noted process runs, or the file names none. False when it has ended, was killed or is about to end; so
 * it is, too, for a process of another machine or of another container, which cannot be seen. *pid_p: 0: none is noted.
 */
bool lock_holder_runs(int fd, long *pid_p);

#endif
