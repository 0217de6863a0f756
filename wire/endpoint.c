#include "wire/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/number.h"
#include "wire/transport.h"

static bool port_is_good(const char *port, bool listening)
{
    if (listening && (!strcmp(port, "*") || !strcmp(port, "0"))) return true;
    uint64_t value;
    return strlen(port) <= 5 && number_whole(port, &value) && value >= 1 && value <= 65535;
}

enum status endpoint_parse(struct endpoint *e, const char *text, bool listening, struct err *err)
{
    static const char scheme[] = "tcp://";
    bool tcp = !strncmp(text, scheme, strlen(scheme));
    const char *host = tcp ? text + strlen(scheme) : text, *colon = strrchr(host, ':');
    int shown = transport_address_shown_length(text);
    if (!tcp || !colon || host[strlen(host) - 1] == ']')
        return err_set(err, STATUS_INVALID, "address %.*s: expected tcp://HOST:PORT", shown, text);
    size_t n = (size_t)(colon - host);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    } else if (memchr(host, ':', n)) {
        return err_set(err, STATUS_INVALID, "address %.*s: write an IPv6 host in brackets, tcp://[HOST]:PORT", shown,
                       text);
    }
    if (!n || n >= sizeof e->host || strcspn(host, "/ \t\r\n;@") < n || (!listening && n == 1 && *host == '*'))
        return err_set(err, STATUS_INVALID, "address %.*s: the host is missing or is not a host name", shown, text);
    if (!port_is_good(colon + 1, listening))
        return err_set(err, STATUS_INVALID, "address %.*s: the port must be a number from 1 to 65535", shown, text);
    memcpy(e->host, host, n);
    e->host[n] = 0;
    snprintf(e->port, sizeof e->port, "%s", strcmp(colon + 1, "0") ? colon + 1 : "*");
    return STATUS_OK;
}

enum status endpoint_advertised(char *out, size_t cap, const char *text, const char *own, struct err *err)
{
    static const char scheme[] = "tcp://";
    struct endpoint parsed;
    const char *host = strncmp(text, scheme, strlen(scheme)) ? text : text + strlen(scheme);
    const char *behind = *host == '[' ? strchr(host, ']') : host, *colon = behind ? strchr(behind, ':') : NULL;
    if (strchr(host, '/')) return err_set(err, STATUS_INVALID, "address %s: expected HOST or HOST:PORT", text);
    bool bare = *host != '[' && colon && strchr(colon + 1, ':'); /* an IPv6 host without brackets cannot carry a port */
    snprintf(out, cap, bare ? "%s[%s]%s" : "%s%s%s", scheme, host, colon && !bare ? "" : strrchr(own, ':'));
    return endpoint_parse(&parsed, out, false, err);
}

static bool address_is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 in6;
    memcpy(&in6, a, sizeof in6);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr) && in6.sin6_addr.s6_addr[12] == 127);
}

enum status endpoint_find(struct endpoint_found *found, const struct endpoint *e, struct err *err)
{
    *found = (struct endpoint_found){.numeric = "*", .ipv6 = true};
    if (!strcmp(e->host, "*")) return STATUS_OK;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(e->host, NULL, &hints, &list);
    if (rc)
        return err_set(err, rc == EAI_AGAIN ? STATUS_AGAIN : STATUS_NOTFOUND, "host %s: %s", e->host,
                       rc == EAI_AGAIN ? "DNS does not answer" : "not found (check the spelling)");
    found->loopback = true;
    for (const struct addrinfo *i = list; i; i = i->ai_next)
        if (!address_is_loopback(i->ai_addr)) found->loopback = false;
    /* getaddrinfo sorts by RFC 6724: the first address is preferred. */
    char text[sizeof found->numeric - 2];
    found->ipv6 = list->ai_family == AF_INET6;
    rc = getnameinfo(list->ai_addr, list->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(list);
    if (rc) return err_set(err, STATUS_NOTFOUND, "host %s: %s", e->host, gai_strerror(rc));
    snprintf(found->numeric, sizeof found->numeric, found->ipv6 ? "[%s]" : "%s", text);
    return STATUS_OK;
}

enum status endpoint_bind_failed(const char *endpoint, int code, const char *text, struct err *err)
{
    enum status status = code == EADDRINUSE ? STATUS_EXISTS : STATUS_IO;
    if (code == EADDRINUSE)
        text = "address already in use, perhaps by another coordinator: stop it or set coordinator.listen";
    if (code == EACCES || code == EADDRNOTAVAIL || code == ENODEV) status = STATUS_INVALID;
    if (code == EACCES) text = "no permission: set a port above 1023";
    if (code == EADDRNOTAVAIL || code == ENODEV)
        text = "this machine does not have that address: set another coordinator.listen (* listens on all)";
    return err_set(err, status, "cannot listen on %s: %s", endpoint, text);
}

static int try_bind(const struct addrinfo *a)
{
    static const int yes = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    int code = bind(fd, a->ai_addr, a->ai_addrlen) ? errno : 0;
    close(fd);
    return code;
}

enum status endpoint_check_own(const char *endpoint, struct err *err)
{
    struct endpoint e;
    struct endpoint_found found;
    TRY(endpoint_parse(&e, endpoint, true, err));
    enum status status = endpoint_find(&found, &e, err);
    if (status != STATUS_OK) return status == STATUS_NOTFOUND ? err->code = STATUS_INVALID : status;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    bool any = !strcmp(e.host, "*");
    if (getaddrinfo(any ? NULL : e.host, strcmp(e.port, "*") ? e.port : "0", &hints, &list)) return STATUS_OK;
    int code = try_bind(list);
    freeaddrinfo(list);
    return !code ? STATUS_OK : endpoint_bind_failed(endpoint, code, strerror(code), err);
}
