/* Descriptors that the child of a fork closes at once.
 *
 * A library lives in a program that may fork. A child that keeps a lock's descriptor keeps the lock, and one that keeps
 * a connection keeps it open after the death of its parent.
 *
 * - The child closes a descriptor only if it is still the same file or socket (device and inode), so never one that the
 *   program opened under its number.
 * - Programs that are started (exec, posix_spawn) need no list: all descriptors of this project close on exec.
 * - Any thread may call these functions. They leave errno as it is. */
#ifndef COMMON_FORK_CLOSE_H
#define COMMON_FORK_CLOSE_H

/* More open ones than this are not closed. */
enum { FORK_CLOSE_MAX = 256 };

/* The children of later forks close fd. Does nothing if fd is not open. */
void fork_close_add(int fd);
/* Call it before fd is closed. The inode number of a socket is not used again: a closed socket may stay in the list,
 * and its place is free at the next fork_close_add. */
void fork_close_remove(int fd);

#endif
