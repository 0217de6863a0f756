#include "cli/page/page_listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 128 };

/* Splits "HOST:PORT" or "[HOST]:PORT". */
static bool split(const char *where, char host[PAGE_HOST_MAX], const char **port_p)
{
    const char *colon = strrchr(where, ':');
    size_t n = colon ? (size_t)(colon - where) : 0;
    *port_p = colon ? colon + 1 : "";
    if (n > 2 && *where == '[' && where[n - 1] == ']') {
        where++;
        n -= 2;
    }
    if (!n || n >= PAGE_HOST_MAX) return false;
    memcpy(host, where, n);
    host[n] = 0;
    return **port_p && !(*port_p)[strspn(*port_p, "0123456789")] && strtoul(*port_p, NULL, 10) <= UINT16_MAX;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static bool is_everywhere(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) return !((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr;
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &size)) return 0;
    return ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                        : ((struct sockaddr_in6 *)&a)->sin6_port);
}

static void name_address(struct page_listener *l, const struct sockaddr *a)
{
    char name[PAGE_HOST_MAX];
    snprintf(name, sizeof name, "%s", l->host);
    if (is_everywhere(a) && gethostname(name, sizeof name)) snprintf(name, sizeof name, "%s", l->host);
    name[sizeof name - 1] = 0;
    bool v6 = strchr(name, ':') != NULL;
    snprintf(l->address, sizeof l->address, "http://%s%s%s:%u", v6 ? "[" : "", name, v6 ? "]" : "", l->port);
}

enum status page_listen(struct page_listener *l, const char *where, struct err *err)
{
    const char *port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_PASSIVE}, *list;
    int one = 1;
    *l = (struct page_listener){.fd = -1};
    if (!split(where, l->host, &port))
        return err_set(err, STATUS_INVALID, "--listen %.200s: write HOST:PORT, for example 127.0.0.1:9600", where);
    int failed = getaddrinfo(l->host, port, &hints, &list);
    if (failed) return err_set(err, STATUS_INVALID, "--listen %.200s: %s", where, gai_strerror(failed));
    l->fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = l->fd >= 0 && !setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
                 !bind(l->fd, list->ai_addr, list->ai_addrlen) && !listen(l->fd, BACKLOG);
    int error = errno;
    l->loopback = is_loopback(list->ai_addr);
    if (bound) {
        l->port = port_of(l->fd);
        name_address(l, list->ai_addr);
    }
    freeaddrinfo(list);
    if (bound) return STATUS_OK;
    if (l->fd >= 0) close(l->fd);
    if (error == EADDRINUSE)
        return err_set(err, STATUS_INVALID, "another program listens on %.200s: choose another port with --listen",
                       where);
    return err_set(err, STATUS_IO, "cannot listen on %.200s: %s", where, strerror(error));
}
