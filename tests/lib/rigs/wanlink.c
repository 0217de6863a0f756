#include "tests/lib/rigs/wanlink.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    PIECE_MAX = 65536,        /* bytes per read; less on a slow line, so that connections take turns */
    PIECE_MIN = 1448,         /* a TCP segment */
    PIECE_US = 5000,          /* time of one piece on the line */
    PIECES_A_TURN = 64,       /* reads before each delivery */
    IDLE_US = 200 * 1000,     /* interval to check `stop`: a signal may arrive just before the wait */
    QUEUED_MAX = 64 << 20,    /* bytes in transit in one direction */
    SOCKET_BUFFER = 256 << 10 /* the kernel's buffers are queues too: keep them short */
};

struct piece {
    struct piece *next;
    uint64_t due_us;
    size_t size, sent;
    bool end, reset; /* the sender closed; it reset the connection */
    uint8_t data[];
};

/* One direction of the link. */
struct line {
    double free_us; /* time at which the last scheduled byte leaves the line */
    uint64_t queued, delivered;
    uint64_t drawn; /* number of jitter values used */
};

/* One direction of one connection. */
struct flow {
    struct piece *first, *last;
    uint64_t due_us; /* of the last piece */
    bool ended;      /* the relay reads no more from the sender */
};

struct side {
    struct connection *connection;
    int fd;
    bool readable, writable;
};

struct connection {
    struct connection *next;
    struct side sides[2]; /* near (the dialler), far */
    struct flow flows[2]; /* from near to far, from far to near */
    int delivered_ends;   /* closed directions */
    bool dead, reset;
};

struct wanlink {
    struct wanlink_options o;
    struct sockaddr_in near, far;
    int epoll, listener, timer;
    struct connection *connections, *turn; /* turn: reads first next time */
    struct line lines[2];
    uint64_t stalled_until_us, accepted;
    uint64_t flip_drawn; /* number of random values used for flips */
    char command[128];
    size_t command_size;
    bool quit;
    struct {
        _Atomic uint64_t flips, connections, up, down;
    } totals; /* another thread may read them */
};

static bool address_parse(struct sockaddr_in *a, const char *text)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof host) return false;
    memcpy(host, text, (size_t)(colon - text));
    host[colon - text] = 0;
    long port = strtol(colon + 1, NULL, 10);
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return port >= 0 && port <= 65535 &&
           inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &a->sin_addr);
}

static void set_int(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof value))
        log_debug("wanlink: setsockopt %d: %s", name, strerror(errno));
}

static int watch(struct wanlink *w, int fd, uint32_t events, void *what)
{
    return epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = events, .data.ptr = what});
}

static enum status start_listening(struct wanlink *w, struct err *err)
{
    socklen_t size = sizeof w->near;
    w->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (w->listener >= 0) {
        set_int(w->listener, SOL_SOCKET, SO_REUSEADDR, 1);
        set_int(w->listener, SOL_SOCKET, SO_RCVBUF, SOCKET_BUFFER);
        if (!bind(w->listener, (struct sockaddr *)&w->near, sizeof w->near) && !listen(w->listener, 64) &&
            !getsockname(w->listener, (struct sockaddr *)&w->near, &size) &&
            !watch(w, w->listener, EPOLLIN, &w->listener))
            return STATUS_OK;
        int saved = errno;
        close(w->listener);
        w->listener = -1;
        errno = saved;
    }
    return err_set(err, STATUS_IO, "cannot listen on %s: %s", w->o.listen, strerror(errno));
}

static void flow_drop(struct wanlink *w, struct connection *c, int direction)
{
    for (struct piece *p = c->flows[direction].first, *next; p; p = next) {
        next = p->next;
        w->lines[direction].queued -= p->size;
        mem_free(p);
    }
    c->flows[direction] = (struct flow){0};
}

static void connection_free(struct wanlink *w, struct connection *c, bool reset)
{
    for (int i = 0; i < 2; i++) {
        flow_drop(w, c, i);
        struct linger hard = {.l_onoff = 1};
        if (reset) setsockopt(c->sides[i].fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(c->sides[i].fd);
    }
    mem_free(c);
}

static void connections_cut(struct wanlink *w)
{
    while (w->connections) {
        struct connection *c = w->connections;
        w->connections = c->next;
        connection_free(w, c, true);
    }
    w->turn = NULL;
}

static void accept_one(struct wanlink *w)
{
    int near = accept4(w->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (near < 0) return;
    int far = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct connection *c = mem_alloc(1, sizeof *c);
    if (far >= 0 && c) {
        set_int(far, SOL_SOCKET, SO_RCVBUF, SOCKET_BUFFER);
        set_int(far, IPPROTO_TCP, TCP_NODELAY, 1);
        set_int(near, IPPROTO_TCP, TCP_NODELAY, 1);
        *c = (struct connection){.next = w->connections, .sides = {{c, near, false, true}, {c, far, false, false}}};
        uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        if ((!connect(far, (struct sockaddr *)&w->far, sizeof w->far) || errno == EINPROGRESS) &&
            !watch(w, near, events, &c->sides[0]) && !watch(w, far, events, &c->sides[1])) {
            w->connections = c;
            w->totals.connections++;
            return;
        }
    }
    mem_free(c);
    close(near);
    if (far >= 0) close(far);
}

static bool stalled(const struct wanlink *w, uint64_t now_us)
{
    return now_us < w->stalled_until_us;
}

/* Returns the time until the queue before the line has room; 0: now. */
static double line_wait_us(const struct wanlink *w, int direction, uint64_t now_us)
{
    if (w->lines[direction].queued > QUEUED_MAX) return 1000;
    double wait = w->lines[direction].free_us - (double)now_us - w->o.queue_ms * 1000;
    return wait > 0 ? wait : 0;
}

static void schedule(struct wanlink *w, struct flow *f, int direction, struct piece *p, uint64_t now_us)
{
    struct line *line = &w->lines[direction];
    double start = line->free_us > (double)now_us ? line->free_us : (double)now_us;
    line->free_us = w->o.rate_mbit > 0 ? start + (double)p->size * 8 / w->o.rate_mbit : start;
    double jitter = w->o.jitter_ms * rng_uniform(1, RNG_TEST, line->drawn++ * 2 + (uint64_t)direction);
    p->due_us = (uint64_t)(line->free_us + 1000 * (w->o.delay_ms + jitter));
    if (p->due_us < f->due_us) p->due_us = f->due_us;
    f->due_us = p->due_us;
    line->queued += p->size;
    *(f->last ? &f->last->next : &f->first) = p;
    f->last = p;
}

/* Flips bits of data[size]: each byte has the same chance. */
static void flip_bits(struct wanlink *w, uint8_t *data, size_t size)
{
    if (w->o.flip_bytes <= 0) return;
    for (size_t at = 0;; at++) {
        double draw = rng_uniform(2, RNG_TEST, w->flip_drawn++);
        at += (size_t)(-log(draw > 1e-12 ? draw : 1e-12) * w->o.flip_bytes);
        if (at >= size) return;
        data[at] ^= (uint8_t)(1u << (rng_u64(3, RNG_TEST, w->flip_drawn) & 7));
        w->totals.flips++;
    }
}

/* Moves one piece from the sender to the line; false if there is none. */
static bool read_piece(struct wanlink *w, struct connection *c, int direction, uint64_t now_us)
{
    struct side *from = &c->sides[direction];
    struct flow *f = &c->flows[direction];
    if (c->dead || f->ended || !from->readable) return false;
    double fair = w->o.rate_mbit > 0 ? w->o.rate_mbit / 8 * PIECE_US : PIECE_MAX;
    size_t want = fair > PIECE_MAX ? PIECE_MAX : fair < PIECE_MIN ? PIECE_MIN : (size_t)fair;
    uint8_t data[PIECE_MAX];
    ssize_t n = recv(from->fd, data, want, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        from->readable = false;
        return false;
    }
    /* A reset is queued like data: earlier bytes arrive first. */
    size_t size = n > 0 ? (size_t)n : 0;
    struct piece *p = mem_alloc(1, sizeof *p + size);
    if (!p) {
        c->dead = true;
        return false;
    }
    memcpy(p->data, data, size);
    flip_bits(w, p->data, size);
    p->size = size;
    p->end = f->ended = n <= 0;
    p->reset = n < 0;
    schedule(w, f, direction, p, now_us);
    return true;
}

/* Connections take turns, one piece each, until the queue is full or no connection has data. */
static void read_all(struct wanlink *w, int direction, uint64_t now_us)
{
    int idle = 0, n = 0;
    for (struct connection *c = w->connections; c; c = c->next) n++;
    for (int i = 0; i < PIECES_A_TURN && idle < n && line_wait_us(w, direction, now_us) <= 0; i++) {
        w->turn = w->turn && w->turn->next ? w->turn->next : w->connections;
        idle = read_piece(w, w->turn, direction, now_us) ? 0 : idle + 1;
    }
}

static void deliver(struct wanlink *w, struct connection *c, int direction, uint64_t now_us)
{
    struct flow *f = &c->flows[direction];
    struct side *to = &c->sides[!direction];
    while (!c->dead && to->writable && f->first && f->first->due_us <= now_us) {
        struct piece *p = f->first;
        if (!p->end) {
            ssize_t n = send(to->fd, p->data + p->sent, p->size - p->sent, MSG_NOSIGNAL);
            if (n < 0) {
                to->writable = false;
                if (errno == EAGAIN || errno == EINTR) return;
                flow_drop(w, c, direction); /* the receiver is gone; the other direction continues */
                f->ended = true;
                c->dead = ++c->delivered_ends == 2;
                return;
            }
            p->sent += (size_t)n;
            *(direction ? &w->totals.down : &w->totals.up) += (uint64_t)n;
            if (p->sent < p->size) continue;
        } else {
            if (!p->reset) shutdown(to->fd, SHUT_WR);
            c->dead = ++c->delivered_ends == 2 || p->reset;
            c->reset = p->reset;
        }
        w->lines[direction].queued -= p->size;
        f->first = p->next;
        if (!f->first) f->last = NULL;
        mem_free(p);
    }
}

static void bury_dead(struct wanlink *w)
{
    for (struct connection **link = &w->connections; *link;) {
        struct connection *c = *link;
        if (!c->dead) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        if (w->turn == c) w->turn = NULL;
        connection_free(w, c, c->reset || c->delivered_ends < 2);
    }
}

static void obey(struct wanlink *w, const char *line)
{
    char word[16] = "";
    double value = NAN;
    int n = sscanf(line, "%15s %lf", word, &value);
    bool number = n == 2 && isfinite(value) && value >= 0;
    if (!strcmp(word, "rate") && number) {
        w->o.rate_mbit = value;
        for (int i = 0; i < 2; i++) w->lines[i].free_us = 0; /* scheduled pieces keep their time */
    } else if (!strcmp(word, "delay") && number) {
        w->o.delay_ms = value;
    } else if (!strcmp(word, "jitter") && number) {
        w->o.jitter_ms = value;
    } else if (!strcmp(word, "flip") && number) {
        w->o.flip_bytes = value;
    } else if (!strcmp(word, "stall")) {
        w->stalled_until_us = number ? clock_monotonic_us() + (uint64_t)(value * 1e6) : UINT64_MAX;
    } else if (!strcmp(word, "go")) {
        w->stalled_until_us = 0;
    } else if (!strcmp(word, "cut")) {
        connections_cut(w);
    } else if (!strcmp(word, "down") && w->listener >= 0) {
        close(w->listener);
        w->listener = -1;
        connections_cut(w);
    } else if (!strcmp(word, "up") && w->listener < 0) {
        struct err err;
        if (start_listening(w, &err) != STATUS_OK) log_warn("wanlink: %s", err.msg);
    } else if (!strcmp(word, "quit")) {
        w->quit = true;
    } else if (word[0]) {
        log_warn("wanlink: unknown command: %s", line);
    }
}

static void read_commands(struct wanlink *w)
{
    ssize_t n = read(w->o.control_fd, w->command + w->command_size, sizeof w->command - 1 - w->command_size);
    if (n == 0) epoll_ctl(w->epoll, EPOLL_CTL_DEL, w->o.control_fd, NULL); /* no more commands; the relay continues */
    if (n <= 0) return;
    w->command_size += (size_t)n;
    w->command[w->command_size] = 0;
    char *start = w->command;
    for (char *end; (end = strchr(start, '\n')); start = end + 1) {
        *end = 0;
        obey(w, start);
    }
    w->command_size -= (size_t)(start - w->command);
    memmove(w->command, start, w->command_size + 1);
    if (w->command_size == sizeof w->command - 1) w->command_size = 0;
}

/* Sets the timer to the next action that needs no event. */
static void set_timer(struct wanlink *w, uint64_t now_us)
{
    double next = (double)now_us + IDLE_US;
    for (int d = 0; d < 2; d++) {
        bool waiting = false;
        for (struct connection *c = w->connections; c; c = c->next) {
            waiting |= c->sides[d].readable && !c->flows[d].ended;
            if (c->flows[d].first && c->sides[!d].writable) next = fmin(next, (double)c->flows[d].first->due_us);
        }
        if (waiting) next = fmin(next, (double)now_us + line_wait_us(w, d, now_us));
    }
    if (stalled(w, now_us)) next = fmin((double)w->stalled_until_us, (double)now_us + IDLE_US);
    uint64_t us = next > (double)now_us + 1 ? (uint64_t)next : now_us + 1;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000}};
    timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void handle(struct wanlink *w, const struct epoll_event *event)
{
    void *what = event->data.ptr;
    uint64_t expirations;
    if (what == &w->listener) {
        accept_one(w);
    } else if (what == &w->timer) {
        if (read(w->timer, &expirations, sizeof expirations) < 0) return;
    } else if (what == &w->command) {
        read_commands(w);
    } else {
        struct side *side = what;
        if (event->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) side->readable = true;
        if (event->events & EPOLLOUT) side->writable = true;
    }
}

enum status wanlink_run(struct wanlink *w, struct err *err)
{
    while (!w->quit && !(w->o.stop && *w->o.stop)) {
        uint64_t now_us = clock_monotonic_us();
        for (int d = 0; d < 2 && !stalled(w, now_us); d++) {
            read_all(w, d, now_us);
            for (struct connection *c = w->connections; c; c = c->next) deliver(w, c, d, now_us);
        }
        if (!stalled(w, now_us)) bury_dead(w);
        set_timer(w, now_us);
        /* One event at a time: a command may close the connection of a later event in the same batch. */
        struct epoll_event event;
        int n = epoll_wait(w->epoll, &event, 1, -1);
        if (n < 0 && errno != EINTR) return err_set(err, STATUS_IO, "epoll: %s", strerror(errno));
        if (n == 1) handle(w, &event);
    }
    return STATUS_OK;
}

struct wanlink_totals wanlink_totals(const struct wanlink *w)
{
    return (struct wanlink_totals){
        .flips = w->totals.flips, .connections = w->totals.connections, .up = w->totals.up, .down = w->totals.down};
}

void wanlink_destroy(struct wanlink *w)
{
    if (!w) return;
    connections_cut(w);
    if (w->listener >= 0) close(w->listener);
    if (w->timer >= 0) close(w->timer);
    if (w->epoll >= 0) close(w->epoll);
    mem_free(w);
}

enum status wanlink_create(struct wanlink **w_p, const struct wanlink_options *options, uint16_t *port_p,
                           struct err *err)
{
    struct wanlink *w = mem_alloc(1, sizeof *w);
    if (!w) return err_set(err, STATUS_NOMEM, "out of memory");
    w->o = *options;
    w->listener = -1;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    enum status status = STATUS_INVALID;
    if (!address_parse(&w->near, options->listen))
        err_set(err, status, "%s: expected an IPv4 HOST:PORT to listen on", options->listen);
    else if (!address_parse(&w->far, options->to) || !w->far.sin_port)
        err_set(err, status, "%s: expected an IPv4 HOST:PORT to connect to", options->to);
    else if (w->epoll < 0 || w->timer < 0 || watch(w, w->timer, EPOLLIN, &w->timer) ||
             (options->control_fd >= 0 && watch(w, options->control_fd, EPOLLIN, &w->command)))
        status = err_set(err, STATUS_IO, "cannot set up: %s", strerror(errno));
    else
        status = start_listening(w, err);
    if (status != STATUS_OK) {
        wanlink_destroy(w);
        return status;
    }
    *port_p = ntohs(w->near.sin_port);
    *w_p = w;
    return STATUS_OK;
}
