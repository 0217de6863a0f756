/* e2e_tun RTT_MS LOSS_PERCENT [BYTES]: a long path between two network namespaces without names.
 *
 *   - The namespace 1 has the address 10.99.0.1, the namespace 2 has 10.99.0.2. Each has a TUN device, and this program
 *     carries the packets: half of RTT_MS each way, some of them lost. TCP of the kernel sees all of it.
 *   - Packets above BYTES are dropped without a word, from the first SIGUSR1 to the next. 0, the default: none are.
 *   - It prints one line when the path is ready. The namespaces go with the last process in them; this one dies with
 * the process that started it. Exit code 77: the system permits no namespaces or no TUN devices.
 *
 * e2e_tun in PID NUMBER COMMAND...: runs COMMAND in the namespace of the e2e_tun with this process id. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MTU = 1500, SKIPPED = 77, FIRST_FD = 100 /* of the namespaces: FIRST_FD + NUMBER */ };

struct packet {
    struct packet *next;
    uint64_t due_ns;
    size_t size;
    uint8_t bytes[MTU];
};

/* Packets on their way to `to`. */
struct way {
    int from, to;
    struct packet *first, *last;
};

static volatile sig_atomic_t dropping;

static void on_signal(int number)
{
    (void)number;
    dropping = !dropping;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void skip(const char *what)
{
    printf("skipped: %s: %s\n", what, strerror(errno));
    exit(SKIPPED);
}

static void raise_device(int fd, struct ifreq *r)
{
    if (ioctl(fd, SIOCGIFFLAGS, r)) skip("interface");
    r->ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(fd, SIOCSIFFLAGS, r)) skip("interface");
}

/* Makes a namespace with a TUN device and stays in it. Returns the device. */
static int make_end(int number)
{
    struct ifreq r = {.ifr_name = "path"}, loopback = {.ifr_name = "lo"};
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(0x0a630000u + (unsigned)number)}};
    if (unshare(CLONE_NEWNET)) skip("network namespace");
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (own < 0 || dup2(own, FIRST_FD + number) < 0) skip("network namespace");
    close(own);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    r.ifr_flags = IFF_TUN | IFF_NO_PI;
    if (device < 0 || ioctl(device, TUNSETIFF, &r)) skip("TUN device");
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(&r.ifr_addr, &a, sizeof a);
    if (s < 0 || ioctl(s, SIOCSIFADDR, &r)) skip("address");
    a.sin_addr.s_addr = htonl(0xffffff00u);
    memcpy(&r.ifr_netmask, &a, sizeof a);
    if (ioctl(s, SIOCSIFNETMASK, &r)) skip("address");
    raise_device(s, &r);
    raise_device(s, &loopback);
    close(s);
    return device;
}

static bool is_lost(double share)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (double)(x >> 11) * 0x1p-53 < share;
}

/* Takes all packets that one end has sent. */
static void take(struct way *w, uint64_t delay_ns, double loss, size_t bytes_max)
{
    for (;;) {
        struct packet *p = malloc(sizeof *p);
        ssize_t n = p ? read(w->from, p->bytes, sizeof p->bytes) : -1;
        if (n <= 0 || is_lost(loss) || (dropping && bytes_max && (size_t)n > bytes_max)) {
            free(p);
            if (n <= 0) return;
            continue;
        }
        p->size = (size_t)n;
        p->due_ns = now_ns() + delay_ns;
        p->next = NULL;
        *(w->first ? &w->last->next : &w->first) = p;
        w->last = p;
    }
}

/* Delivers what is due. Returns the time until the next packet is, in ns. */
static uint64_t deliver(struct way *w)
{
    while (w->first) {
        struct packet *p = w->first;
        uint64_t now = now_ns();
        if (p->due_ns > now) return p->due_ns - now;
        if (write(w->to, p->bytes, p->size) < 0 && errno != EAGAIN && errno != EIO) perror("e2e_tun");
        w->first = p->next;
        free(p);
    }
    return 1000000000u;
}

static int enter(char **args)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", atoi(args[0]), FIRST_FD + atoi(args[1]));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) {
        perror(path);
        return 1;
    }
    execvp(args[2], args + 2);
    perror(args[2]);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 4 && !strcmp(argv[1], "in")) return enter(argv + 2);
    if (argc < 3) {
        fprintf(stderr, "usage: e2e_tun RTT_MS LOSS_PERCENT [BYTES]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGUSR1, on_signal);
    uint64_t delay_ns = (uint64_t)(atof(argv[1]) * 0.5e6);
    double loss = atof(argv[2]) / 100;
    size_t bytes_max = argc > 3 ? (size_t)atoi(argv[3]) : 0;
    int a = make_end(1), b = make_end(2);
    struct way ways[2] = {{.from = a, .to = b}, {.from = b, .to = a}};
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        uint64_t there = deliver(&ways[0]), back = deliver(&ways[1]), wait = there < back ? there : back;
        struct pollfd both[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
        ppoll(both, 2,
              &(struct timespec){.tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u)}, NULL);
        for (int i = 0; i < 2; i++) take(&ways[i], delay_ns, loss, bytes_max);
    }
}
