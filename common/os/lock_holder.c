#include "common/os/lock_holder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/os/descriptors.h"

enum { NOTE_MAX = 64, STAT_MAX = 1024, PF_EXITING = 4 }; /* PF_EXITING: include/linux/sched.h */

struct process {
    unsigned long long start; /* ticks since the machine's start */
    bool ending;
};

/* proc_pid_stat(5). The name of the process may hold any character, so the fields count from its last parenthesis. */
static bool read_process(long pid, struct process *out)
{
    char path[64], text[STAT_MAX], state;
    unsigned long long flags, pending;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int fd = descriptors_open(path, O_RDONLY, 0);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = '\0';
    const char *fields = strrchr(text, ')');
    /* state, 5 numbers, flags, 12 numbers, start, 8 numbers, pending signals */
    if (!fields || sscanf(fields,
                          ") %c %*s %*s %*s %*s %*s %llu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %*s %*s "
                          "%*s %*s %*s %*s %*s %*s %llu",
                          &state, &flags, &out->start, &pending) != 4)
        return false;
    bool killed = pending & UINT64_C(1) << (SIGKILL - 1);
    out->ending = state == 'Z' || state == 'X' || (flags & PF_EXITING) || killed;
    return true;
}

void lock_holder_note(int fd)
{
    char note[NOTE_MAX];
    struct process self = {0};
    bool known = read_process(getpid(), &self);
    int n = snprintf(note, sizeof note, "%ld %llu\n", (long)getpid(), self.start);
    if (ftruncate(fd, 0) || !known) return;
    ssize_t written = pwrite(fd, note, (size_t)n, 0);
    (void)written; /* a full disk: the file is empty */
}

bool lock_holder_runs(int fd, long *pid_p)
{
    char note[NOTE_MAX];
    struct process holder = {0};
    unsigned long long start;
    long pid;
    *pid_p = 0;
    ssize_t n = pread(fd, note, sizeof note - 1, 0);
    if (n <= 0) return true;
    note[n] = '\0';
    if (sscanf(note, "%ld %llu", &pid, &start) != 2 || pid <= 0) return true;
    *pid_p = pid;
    return read_process(pid, &holder) && holder.start == start && !holder.ending;
}
