#include "common/os/fork_close.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

struct entry {
    int fd; /* valid if used */
    bool used;
    dev_t dev;
    ino_t ino;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct entry entries[FORK_CLOSE_MAX];

static bool is_same(const struct entry *e)
{
    struct stat st;
    return !fstat(e->fd, &st) && st.st_dev == e->dev && st.st_ino == e->ino;
}

/* No other thread is inside the list while the process forks. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* Only functions that are safe in a signal handler: other threads of the parent may have held any lock. */
static void in_child(void)
{
    int saved = errno;
    for (int i = 0; i < FORK_CLOSE_MAX; i++) {
        if (entries[i].used && is_same(&entries[i])) close(entries[i].fd);
        entries[i].used = false;
    }
    errno = saved;
    pthread_mutex_unlock(&lock);
}

/* Without memory for the handlers, children keep the descriptors. */
static void install(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child);
}

static struct entry *free_entry(void)
{
    for (int i = 0; i < FORK_CLOSE_MAX; i++)
        if (!entries[i].used) return &entries[i];
    return NULL;
}

static void drop_closed(void)
{
    for (int i = 0; i < FORK_CLOSE_MAX; i++) entries[i].used = is_same(&entries[i]);
}

void fork_close_add(int fd)
{
    struct stat st;
    int saved = errno;
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FORK_CLOSE_MAX; i++)
        if (entries[i].fd == fd) entries[i].used = false;
    if (!free_entry()) drop_closed();
    struct entry *place = free_entry();
    if (place && !fstat(fd, &st)) *place = (struct entry){.fd = fd, .used = true, .dev = st.st_dev, .ino = st.st_ino};
    pthread_mutex_unlock(&lock);
    errno = saved;
}

void fork_close_remove(int fd)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FORK_CLOSE_MAX; i++)
        if (entries[i].fd == fd) entries[i].used = false;
    pthread_mutex_unlock(&lock);
}
