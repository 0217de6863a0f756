/* What tests/lib/store/powercut.c records and tests/lib/store/powercut_image.c makes disks of. */
#ifndef TESTS_LIB_POWERCUT_IMPL_H
#define TESTS_LIB_POWERCUT_IMPL_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { POWERCUT_FILES = 1024, POWERCUT_ROOT = 0, POWERCUT_NONE = -1 };

/* Files and folders are nodes, numbered as they appear; names lead to them. */
enum powercut_what { WRITE, LENGTH, SYNC, NAME, UNNAME, RENAME };

struct powercut_change {
    enum powercut_what what;
    int node;        /* the file or folder that is changed */
    size_t at, n;    /* WRITE: where, and how much; LENGTH: n */
    uint8_t *data;   /* WRITE: [n] */
    int named;       /* NAME */
    char *name, *to; /* NAME, UNNAME, RENAME; `to`: RENAME */
};

struct powercut_name {
    char *name; /* borrowed from a change */
    int node;
};

/* A folder's names. */
struct powercut_names {
    struct powercut_name *list;
    size_t n;
};

struct powercut_disk {
    pthread_mutex_t lock;
    bool on;
    char root[PATH_MAX];
    struct powercut_change *changes;
    size_t n_changes, room, first;  /* first: those before it made what was there at the beginning */
    struct powercut_names *folders; /* by node, as programs see them; a file has none */
    bool *is_folder;
    int n_nodes;
    int open[POWERCUT_FILES]; /* by descriptor: node + 1 */
    bool failing;
    size_t until; /* calls before the one that fails */
};

extern struct powercut_disk powercut_disk;

/* realloc that always succeeds. */
void *powercut_grown(void *list, size_t n, size_t size);
_Noreturn void powercut_broken(const char *why, const char *what);
/* What a change makes of its folder's names. */
void powercut_apply(struct powercut_names *names, const struct powercut_change *c);

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *data, size_t n);
int __real_mkdir(const char *path, mode_t mode);

#endif
