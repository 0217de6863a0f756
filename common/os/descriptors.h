/* Open files while other parts of the program may use up the descriptors.
 *
 * A server that accepts connections from strangers calls descriptors_reserve: its soft limit of open files is then
 * lower than its hard limit, so accept fails first. The functions below raise the limit for the moment of an open that
 * fails for lack of a descriptor. Without descriptors_reserve they are plain opens. Any thread may call them. */
#ifndef COMMON_DESCRIPTORS_H
#define COMMON_DESCRIPTORS_H

#include <dirent.h>
#include <stdio.h>
#include <sys/types.h>

/* Set the soft limit of open files: as many as the hard limit allows, at most some ten thousand, less the reserve. */
void descriptors_reserve(void);

/* open, opendir and fopen. Descriptors close on exec. */
int descriptors_open(const char *path, int flags, mode_t mode);
DIR *descriptors_opendir(const char *path);
FILE *descriptors_fopen(const char *path, const char *mode);

#endif
