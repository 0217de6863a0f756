/* Preloaded into workers by `./run bench saves`: the files of saved states (state.*) are written at BENCH_DISK_RATE
 * bytes a second by each process, as on a slow disk whose cache is full. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void pause_for(int fd, size_t size)
{
    char link[64], path[512];
    const char *rate = getenv("BENCH_DISK_RATE");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (!rate || n <= 0 || size < 4096) return;
    path[n] = 0;
    if (strstr(path, "/state.")) usleep((useconds_t)(1e6 * (double)size / atof(rate)));
}

ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t (*next)(int, const void *, size_t) = NULL;
    *(void **)(void *)&next = dlsym(RTLD_NEXT, "write"); /* POSIX: a function's address in an object pointer */
    pause_for(fd, size);
    return next(fd, data, size);
}
