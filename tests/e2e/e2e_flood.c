/* e2e_flood FOLDER COUNT SECONDS: opens COUNT TCP connections to the address in FOLDER/address (IPv4) and sends
 * nothing.
 *
 * It keeps them open for SECONDS, prints how many the other side closed, and ends. A process without enough descriptors
 * starts others: each takes at most PER_PROCESS connections. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PER_PROCESS = 10000, BATCH = 50, PAUSE_MS = 10 };

static bool read_address(const char *folder, struct sockaddr_in *to)
{
    char path[4096], host[64];
    unsigned short port;
    snprintf(path, sizeof path, "%s/address", folder);
    FILE *f = fopen(path, "r");
    bool good = f && fscanf(f, "tcp://%63[0-9.]:%hu", host, &port) == 2;
    if (f) fclose(f);
    *to = (struct sockaddr_in){.sin_family = AF_INET};
    if (!good || inet_pton(AF_INET, host, &to->sin_addr) != 1) return false;
    to->sin_port = htons(port);
    return true;
}

/* Starts to connect. */
static int dial(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (!connect(fd, (const struct sockaddr *)to, sizeof *to) || errno == EINPROGRESS) return fd;
    close(fd);
    return -1;
}

static bool was_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) == 1;
}

static int flood(const struct sockaddr_in *to, int count, int seconds)
{
    struct rlimit limit;
    if (!getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    int *fds = calloc((size_t)count, sizeof *fds), opened = 0, closed = 0;
    if (!fds) return 1;
    for (int i = 0; i < count; i++) {
        int fd = dial(to);
        if (fd >= 0) fds[opened++] = fd;
        if (i % BATCH == BATCH - 1) poll(NULL, 0, PAUSE_MS); /* the other side can accept them without overflow */
    }
    poll(NULL, 0, seconds * 1000);
    for (int i = 0; i < opened; i++) closed += was_closed(fds[i]);
    printf("opened %d connections, %d were closed\n", opened, closed);
    free(fds);
    return opened < count;
}

int main(int argc, char **argv)
{
    struct sockaddr_in to;
    if (argc != 4 || !read_address(argv[1], &to)) {
        fprintf(stderr, "usage: e2e_flood FOLDER COUNT SECONDS\n");
        return 2;
    }
    int left = atoi(argv[2]), failed = 0, status;
    for (; left > PER_PROCESS; left -= PER_PROCESS)
        if (!fork()) return flood(&to, PER_PROCESS, atoi(argv[3]));
    failed = flood(&to, left, atoi(argv[3]));
    while (wait(&status) > 0) failed |= status;
    return failed != 0;
}
