#include "common/os/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/resource.h>

/* WANTED: a connection costs some kilobytes, so more descriptors than this only cost memory in a flood. */
enum { RESERVE = 128, WANTED = 16384 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rlim_t low, high; /* soft limits: usual, and while a file is opened; 0: no reserve */

static bool set_soft(rlim_t soft)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return false;
    limit.rlim_cur = soft;
    return !setrlimit(RLIMIT_NOFILE, &limit);
}

void descriptors_reserve(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    rlim_t all = limit.rlim_cur > WANTED ? limit.rlim_cur : WANTED;
    if (limit.rlim_max < all) all = limit.rlim_max;
    pthread_mutex_lock(&lock);
    high = all;
    low = all - (all / 4 < RESERVE ? all / 4 : RESERVE);
    if (!set_soft(low)) high = low = 0;
    pthread_mutex_unlock(&lock);
}

/* After a failed open. True: the soft limit is raised, and the caller tries again, then calls reserve_end. */
static bool reserve_begin(void)
{
    if (errno != EMFILE || !high) return false;
    pthread_mutex_lock(&lock);
    if (set_soft(high)) return true;
    pthread_mutex_unlock(&lock);
    errno = EMFILE;
    return false;
}

static void reserve_end(void)
{
    int saved = errno;
    (void)set_soft(low); /* a limit that stays high only loses the reserve */
    pthread_mutex_unlock(&lock);
    errno = saved;
}

int descriptors_open(const char *path, int flags, mode_t mode)
{
    int fd = open(path, flags | O_CLOEXEC, mode);
    if (fd >= 0 || !reserve_begin()) return fd;
    fd = open(path, flags | O_CLOEXEC, mode);
    reserve_end();
    return fd;
}

DIR *descriptors_opendir(const char *path)
{
    DIR *dir = opendir(path);
    if (dir || !reserve_begin()) return dir;
    dir = opendir(path);
    reserve_end();
    return dir;
}

FILE *descriptors_fopen(const char *path, const char *mode)
{
    FILE *file = fopen(path, mode);
    if (file || !reserve_begin()) return file;
    file = fopen(path, mode);
    reserve_end();
    return file;
}
