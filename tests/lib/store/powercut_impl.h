/* The recording of tests/lib/store/powercut.c, from which powercut_image.c makes disks. */
#ifndef TESTS_LIB_POWERCUT_IMPL_H
#define TESTS_LIB_POWERCUT_IMPL_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { POWERCUT_FILES = 1024, POWERCUT_ROOT = 0, POWERCUT_NONE = -1 };

/* Files and folders are nodes, numbered in the order of their appearance; names refer to them. */
enum powercut_what { WRITE, LENGTH, SYNC, NAME, UNNAME, RENAME };

struct powercut_change {
    enum powercut_what what;
    int node;        /* the changed file or folder */
    size_t at, n;    /* WRITE: offset and size; LENGTH: n */
    uint8_t *data;   /* WRITE: [n] */
    int named;       /* NAME */
    char *name, *to; /* NAME, UNNAME, RENAME; `to`: RENAME */
};

struct powercut_name {
    char *name; /* borrowed from a change */
    int node;
};

/* The names in a folder. */
struct powercut_names {
    struct powercut_name *list;
    size_t n;
};

struct powercut_disk {
    pthread_mutex_t lock;
    bool on;
    char root[PATH_MAX];
    struct powercut_change *changes;
    size_t n_changes, room, first;  /* first: number of changes that created the initial contents */
    struct powercut_names *folders; /* [node] names at present; none for a file */
    bool *is_folder;
    char **targets; /* [node] target of a symbolic link; NULL: not a link */
    int n_nodes;
    int open[POWERCUT_FILES]; /* [descriptor] node + 1 */
    bool failing;
    size_t until; /* calls before the failing one */
};

extern struct powercut_disk powercut_disk;

/* realloc that aborts on failure. */
void *powercut_grown(void *list, size_t n, size_t size);
_Noreturn void powercut_broken(const char *why, const char *what);
/* Apply a change to the names of its folder. */
void powercut_apply(struct powercut_names *names, const struct powercut_change *c);

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *data, size_t n);
int __real_mkdir(const char *path, mode_t mode);

#endif
