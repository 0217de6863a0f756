#include "common/os/std_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/status.h"

void std_streams_open(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) /* open returns the lowest free number */
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDOUT_FILENO ? O_RDONLY : O_RDWR) < 0) break;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

bool std_streams_hang_up(void)
{
    struct sigaction now;
    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler != SIG_IGN;
}

static bool reader_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && (out.revents & POLLERR);
}

int std_streams_close(int code)
{
    bool failed = ferror(stdout) != 0;
    if (failed) putchar('\n'); /* errno of the failed write is lost: another write sets it again */
    errno = 0;
    if (fflush(stdout) == 0 && !failed) return code;
    int error = errno;
    if (code != EXIT_DONE || reader_gone()) return code;
    fprintf(stderr, "atoll: cannot write the output: %s\n",
            error == EBADF ? "standard output is closed"
            : error        ? strerror(error)
                           : "a write failed");
    return EXIT_FAILED;
}
