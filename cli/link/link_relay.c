#include "cli/link/link_relay.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "cli/link/link_line.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/units.h"
#include "common/os/interrupt.h"

enum {
    PIECES_A_TURN = 64,        /* reads before each delivery */
    IDLE_US = 200 * 1000,      /* interval to check for a signal, which may arrive just before the wait */
    LATE_MAX_US = 1000 * 1000, /* a piece that waited longer in the socket counts as arrived so long ago */
    SOCKET_BUFFER = 256 << 10  /* the kernel's buffers are queues too: keep them short */
};

struct piece {
    struct piece *next;
    uint64_t due_us;
    size_t size, sent;
    bool end, reset; /* the sender closed; it reset the connection */
    uint8_t data[];
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

/* Times are link times: the monotonic clock without the stalls, so that a stall delays all bytes alike. */
struct relay {
    struct relay_options o;
    struct sockaddr_storage near, far;
    socklen_t near_size, far_size;
    int epoll, listener, timer;
    struct connection *connections, *turn; /* turn: reads first next time */
    struct line lines[2];                  /* up, down */
    uint64_t spec_us;                      /* monotonic time at which the spec became valid */
    uint64_t command_until_us;             /* monotonic time at which the stall of a command ends */
    uint64_t stalled_us;                   /* length of all past stalls */
    uint64_t since_us, until_us;           /* of the current stall, monotonic; until_us 0: none */
    uint64_t resumed_us;                   /* link time of the last stall */
    double flip_bytes;                     /* mean distance of flipped bits; 0: none */
    uint64_t flip_drawn;                   /* number of random values used for flips */
    char command[LINK_SPEC_MAX + 16];
    size_t command_size;
    bool quit;
    struct {
        _Atomic uint64_t flips, connections, up, down;
    } totals; /* another thread may read them */
};

/* Resolves HOST:PORT; an IPv6 host stands in brackets. */
static bool address_parse(struct sockaddr_storage *a, socklen_t *size, const char *text)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    if (!n || n >= sizeof host || strlen(colon + 1) > 5) return false;
    if (*text == '[' && text[n - 1] == ']') text++, n -= 2;
    memcpy(host, text, n);
    host[n] = 0;
    if (getaddrinfo(host, colon + 1, &hints, &list)) return false;
    *size = list->ai_addrlen;
    memcpy(a, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return true;
}

static void set_int(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof value)) log_debug("relay: setsockopt %d: %s", name, strerror(errno));
}

static int watch(struct relay *r, int fd, uint32_t events, void *what)
{
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = events, .data.ptr = what});
}

static enum status start_listening(struct relay *r, struct err *err)
{
    struct sockaddr *near = (struct sockaddr *)&r->near;
    r->listener = socket(near->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (r->listener >= 0) {
        set_int(r->listener, SOL_SOCKET, SO_REUSEADDR, 1);
        set_int(r->listener, SOL_SOCKET, SO_RCVBUF, SOCKET_BUFFER);
        if (!bind(r->listener, near, r->near_size) && !listen(r->listener, 64) &&
            !getsockname(r->listener, near, &r->near_size) && !watch(r, r->listener, EPOLLIN, &r->listener))
            return STATUS_OK;
        int saved = errno;
        close(r->listener);
        r->listener = -1;
        errno = saved;
    }
    return err_set(err, STATUS_IO, "cannot listen on %s: %s", r->o.listen, strerror(errno));
}

static void flow_drop(struct relay *r, struct connection *c, int direction)
{
    for (struct piece *p = c->flows[direction].first, *next; p; p = next) {
        next = p->next;
        r->lines[direction].in_transit -= p->size;
        mem_free(p);
    }
    c->flows[direction] = (struct flow){0};
}

static void connection_free(struct relay *r, struct connection *c, bool reset)
{
    for (int i = 0; i < 2; i++) {
        flow_drop(r, c, i);
        struct linger hard = {.l_onoff = 1};
        if (reset) setsockopt(c->sides[i].fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(c->sides[i].fd);
    }
    mem_free(c);
}

static void connections_cut(struct relay *r)
{
    while (r->connections) {
        struct connection *c = r->connections;
        r->connections = c->next;
        connection_free(r, c, true);
    }
    r->turn = NULL;
}

static void socket_prepare(int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1); /* the delay counts from arrival */
}

static void accept_one(struct relay *r)
{
    int near = accept4(r->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (near < 0) return;
    int far = socket(((struct sockaddr *)&r->far)->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct connection *c = mem_alloc(1, sizeof *c);
    if (far >= 0 && c) {
        set_int(far, SOL_SOCKET, SO_RCVBUF, SOCKET_BUFFER);
        socket_prepare(near);
        socket_prepare(far);
        *c = (struct connection){.next = r->connections, .sides = {{c, near, false, true}, {c, far, false, false}}};
        uint32_t events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        if ((!connect(far, (struct sockaddr *)&r->far, r->far_size) || errno == EINPROGRESS) &&
            !watch(r, near, events, &c->sides[0]) && !watch(r, far, events, &c->sides[1])) {
            r->connections = c;
            r->totals.connections++;
            return;
        }
    }
    mem_free(c);
    close(near);
    if (far >= 0) close(far);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static uint64_t link_time(const struct relay *r, uint64_t now_us)
{
    return (r->until_us ? r->since_us : now_us) - r->stalled_us;
}

/* Returns the end of the outage or of the commanded stall that holds at now_us, and its start; 0: none. */
static uint64_t stall_at(const struct relay *r, uint64_t now_us, uint64_t *since_us)
{
    uint64_t until = r->command_until_us > now_us ? r->command_until_us : 0;
    *since_us = now_us;
    for (size_t i = 0; i < r->o.spec.n_outages; i++) {
        uint64_t start = r->spec_us + (uint64_t)(r->o.spec.outages[i].start_s * 1e6);
        uint64_t end = start + (uint64_t)(r->o.spec.outages[i].seconds * 1e6);
        if (now_us < start || now_us >= end) continue;
        *since_us = start;
        if (end > until) until = end;
    }
    return until;
}

/* Begins or ends a stall. Returns whether bytes move now. */
static bool update_stall(struct relay *r, uint64_t now_us)
{
    uint64_t since, until = stall_at(r, now_us, &since);
    if (until && !r->until_us) {
        r->since_us = since > r->resumed_us + r->stalled_us ? since : r->resumed_us + r->stalled_us;
        log_info("stalled");
    } else if (!until && r->until_us) {
        uint64_t end = r->until_us < now_us ? r->until_us : now_us; /* `go` ends a stall early */
        r->resumed_us = r->since_us - r->stalled_us;
        r->stalled_us += end - r->since_us;
        log_info("moving again after %s", units_duration((double)(end - r->since_us) / 1e6).text);
    }
    r->until_us = until;
    return !until;
}

/* Returns the link time at which the kernel received the last byte of a message. */
static uint64_t arrival_of(const struct relay *r, struct msghdr *message)
{
    struct timespec stamp, wall;
    uint64_t arrival = link_time(r, clock_monotonic_us());
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
        memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
        clock_gettime(CLOCK_REALTIME, &wall);
        double age_us = (double)(wall.tv_sec - stamp.tv_sec) * 1e6 + (double)(wall.tv_nsec - stamp.tv_nsec) / 1e3;
        if (age_us > 0) arrival -= (uint64_t)fmin(age_us, LATE_MAX_US);
    }
    return arrival > r->resumed_us ? arrival : r->resumed_us;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* Flips bits of data[size]: each byte has the same chance. */
static void flip_bits(struct relay *r, uint8_t *data, size_t size)
{
    if (r->flip_bytes <= 0) return;
    for (size_t at = 0;; at++) {
        double draw = rng_uniform(2, RNG_LINK, r->flip_drawn++);
        at += (size_t)(-log(draw > 1e-12 ? draw : 1e-12) * r->flip_bytes);
        if (at >= size) return;
        data[at] ^= (uint8_t)(1u << (rng_u64(3, RNG_LINK, r->flip_drawn) & 7));
        r->totals.flips++;
    }
}

/* Moves one piece from the sender to the line; false if there is none. */
static bool read_piece(struct relay *r, struct connection *c, int direction)
{
    struct side *from = &c->sides[direction];
    struct flow *f = &c->flows[direction];
    struct line *line = &r->lines[direction];
    if (c->dead || f->ended || !from->readable) return false;
    uint8_t data[LINE_PIECE_MAX];
    union {
        char bytes[256];
        struct cmsghdr align;
    } extra;
    struct iovec part = {data, line_piece(line)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = extra.bytes, .msg_controllen = sizeof extra.bytes};
    ssize_t n = recvmsg(from->fd, &message, 0);
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
    flip_bits(r, p->data, size);
    p->size = size;
    p->end = f->ended = n <= 0;
    p->reset = n < 0;
    double due = line_accept(line, arrival_of(r, &message), size);
    p->due_us = f->due_us = due > (double)f->due_us ? (uint64_t)due : f->due_us;
    *(f->last ? &f->last->next : &f->first) = p;
    f->last = p;
    return true;
}

/* Connections take turns, one piece each, until the queue is full or no connection has data. */
static void read_all(struct relay *r, int direction, uint64_t link_us)
{
    int idle = 0, n = 0;
    for (struct connection *c = r->connections; c; c = c->next) n++;
    for (int i = 0; i < PIECES_A_TURN && idle < n && line_wait_us(&r->lines[direction], link_us) <= 0; i++) {
        r->turn = r->turn && r->turn->next ? r->turn->next : r->connections;
        idle = read_piece(r, r->turn, direction) ? 0 : idle + 1;
    }
}

static void deliver(struct relay *r, struct connection *c, int direction, uint64_t link_us)
{
    struct flow *f = &c->flows[direction];
    struct side *to = &c->sides[!direction];
    while (!c->dead && to->writable && f->first && f->first->due_us <= link_us) {
        struct piece *p = f->first;
        if (!p->end) {
            ssize_t n = send(to->fd, p->data + p->sent, p->size - p->sent, MSG_NOSIGNAL);
            if (n < 0) {
                to->writable = false;
                if (errno == EAGAIN || errno == EINTR) return;
                flow_drop(r, c, direction); /* the receiver is gone; the other direction continues */
                f->ended = true;
                c->dead = ++c->delivered_ends == 2;
                return;
            }
            p->sent += (size_t)n;
            *(direction ? &r->totals.down : &r->totals.up) += (uint64_t)n;
            if (p->sent < p->size) continue;
        } else {
            if (!p->reset) shutdown(to->fd, SHUT_WR);
            c->dead = ++c->delivered_ends == 2 || p->reset;
            c->reset = p->reset;
        }
        r->lines[direction].in_transit -= p->size;
        f->first = p->next;
        if (!f->first) f->last = NULL;
        mem_free(p);
    }
}

static void bury_dead(struct relay *r)
{
    for (struct connection **link = &r->connections; *link;) {
        struct connection *c = *link;
        if (!c->dead) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        if (r->turn == c) r->turn = NULL;
        connection_free(r, c, c->reset || c->delivered_ends < 2);
    }
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

/* Pieces under way keep their time. */
static void use_spec(struct relay *r, const struct link_spec *spec, uint64_t now_us)
{
    r->o.spec = *spec;
    r->spec_us = now_us;
    for (int d = 0; d < 2; d++) {
        struct line *line = &r->lines[d];
        line->rate_mbit = d ? spec->down_mbit : spec->up_mbit;
        line->delay_ms = spec->delay_ms;
        line->jitter_ms = spec->jitter_ms;
        line->seed = (uint64_t)d;
        line->free_us = 0;
    }
}

static void obey_link(struct relay *r, const char *text)
{
    struct link_spec spec;
    struct err err;
    if (link_spec_parse(&spec, text, &err) == STATUS_OK)
        use_spec(r, &spec, clock_monotonic_us());
    else
        log_warn("relay: %s", err.msg);
}

static void obey(struct relay *r, const char *line)
{
    char word[16] = "";
    double value = NAN;
    int n = sscanf(line, "%15s %lf", word, &value);
    bool number = n == 2 && isfinite(value) && value >= 0 && value < 1e9;
    if (!strcmp(word, "link")) {
        obey_link(r, line + strcspn(line, " "));
    } else if (!strcmp(word, "flip") && number) {
        r->flip_bytes = value;
    } else if (!strcmp(word, "stall")) {
        r->command_until_us = number ? clock_monotonic_us() + (uint64_t)(value * 1e6) : UINT64_MAX;
    } else if (!strcmp(word, "go")) {
        r->command_until_us = 0;
    } else if (!strcmp(word, "cut")) {
        connections_cut(r);
    } else if (!strcmp(word, "down") && r->listener >= 0) {
        close(r->listener);
        r->listener = -1;
        connections_cut(r);
    } else if (!strcmp(word, "up") && r->listener < 0) {
        struct err err;
        if (start_listening(r, &err) != STATUS_OK) log_warn("relay: %s", err.msg);
    } else if (!strcmp(word, "quit")) {
        r->quit = true;
    } else if (word[0]) {
        log_warn("relay: unknown command: %s", line);
    }
}

static void read_commands(struct relay *r)
{
    ssize_t n = read(r->o.control_fd, r->command + r->command_size, sizeof r->command - 1 - r->command_size);
    if (n == 0) epoll_ctl(r->epoll, EPOLL_CTL_DEL, r->o.control_fd, NULL); /* no more commands; the relay continues */
    if (n <= 0) return;
    r->command_size += (size_t)n;
    r->command[r->command_size] = 0;
    char *start = r->command;
    for (char *end; (end = strchr(start, '\n')); start = end + 1) {
        *end = 0;
        obey(r, start);
    }
    r->command_size -= (size_t)(start - r->command);
    memmove(r->command, start, r->command_size + 1);
    if (r->command_size == sizeof r->command - 1) r->command_size = 0;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* Sets the timer to the next action that needs no event. */
static void set_timer(struct relay *r, uint64_t now_us)
{
    uint64_t link_us = link_time(r, now_us);
    double wait = IDLE_US;
    for (int d = 0; d < 2 && !r->until_us; d++) {
        bool waiting = false;
        for (struct connection *c = r->connections; c; c = c->next) {
            waiting |= c->sides[d].readable && !c->flows[d].ended;
            if (c->flows[d].first && c->sides[!d].writable)
                wait = fmin(wait, (double)c->flows[d].first->due_us - (double)link_us);
        }
        if (waiting) wait = fmin(wait, line_wait_us(&r->lines[d], link_us));
    }
    if (r->until_us) wait = fmin(wait, (double)r->until_us - (double)now_us);
    uint64_t us = now_us + (wait > 1 ? (uint64_t)wait : 1);
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000}};
    timerfd_settime(r->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void handle(struct relay *r, const struct epoll_event *event)
{
    void *what = event->data.ptr;
    uint64_t expirations;
    if (what == &r->listener) {
        accept_one(r);
    } else if (what == &r->timer) {
        if (read(r->timer, &expirations, sizeof expirations) < 0) return;
    } else if (what == &r->command) {
        read_commands(r);
    } else {
        struct side *side = what;
        if (event->events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) side->readable = true;
        if (event->events & EPOLLOUT) side->writable = true;
    }
}

static void move_bytes(struct relay *r, uint64_t now_us)
{
    for (int d = 0; d < 2; d++) {
        read_all(r, d, link_time(r, now_us));
        for (struct connection *c = r->connections; c; c = c->next) deliver(r, c, d, link_time(r, now_us));
    }
    bury_dead(r);
}

enum status relay_run(struct relay *r, struct err *err)
{
    prctl(PR_SET_TIMERSLACK, 1);
    const struct link_spec spec = r->o.spec;
    use_spec(r, &spec, clock_monotonic_us());
    while (!r->quit && interrupt_check(NULL) == STATUS_OK) {
        uint64_t now_us = clock_monotonic_us();
        if (update_stall(r, now_us)) move_bytes(r, now_us);
        set_timer(r, now_us);
        /* One event at a time: a command may close the connection of a later event in the same batch. */
        struct epoll_event event;
        int n = epoll_wait(r->epoll, &event, 1, -1);
        if (n < 0 && errno != EINTR) return err_set(err, STATUS_IO, "epoll: %s", strerror(errno));
        if (n == 1) handle(r, &event);
    }
    return STATUS_OK;
}

struct relay_totals relay_totals(const struct relay *r)
{
    return (struct relay_totals){
        .flips = r->totals.flips, .connections = r->totals.connections, .up = r->totals.up, .down = r->totals.down};
}

void relay_destroy(struct relay *r)
{
    if (!r) return;
    connections_cut(r);
    if (r->listener >= 0) close(r->listener);
    if (r->timer >= 0) close(r->timer);
    if (r->epoll >= 0) close(r->epoll);
    mem_free(r);
}

static void write_address(const struct relay *r, char address[RELAY_ADDRESS_MAX])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getnameinfo((const struct sockaddr *)&r->near, r->near_size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV))
        assert(!"the address of a listening socket is numeric");
    const char *form = r->near.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s";
    snprintf(address, RELAY_ADDRESS_MAX, form, host, port);
}

enum status relay_create(struct relay **relay_p, const struct relay_options *options, char address[RELAY_ADDRESS_MAX],
                         struct err *err)
{
    struct relay *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(err, STATUS_NOMEM, "out of memory");
    r->o = *options;
    r->listener = -1;
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    enum status status = STATUS_INVALID;
    if (!address_parse(&r->near, &r->near_size, options->listen))
        err_set(err, status, "%s: expected HOST:PORT of this machine to listen on", options->listen);
    else if (!address_parse(&r->far, &r->far_size, options->to))
        err_set(err, status, "%s: expected HOST:PORT to connect to", options->to);
    else if (r->epoll < 0 || r->timer < 0 || watch(r, r->timer, EPOLLIN, &r->timer) ||
             (options->control_fd >= 0 && watch(r, options->control_fd, EPOLLIN, &r->command)))
        status = err_set(err, STATUS_IO, "cannot set up: %s", strerror(errno));
    else
        status = start_listening(r, err);
    if (status != STATUS_OK) {
        relay_destroy(r);
        return status;
    }
    write_address(r, address);
    *relay_p = r;
    return STATUS_OK;
}
