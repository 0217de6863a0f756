/* "tcp://HOST:PORT" taken apart and looked up. */
#ifndef WIRE_ENDPOINT_H
#define WIRE_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct endpoint {
    char host[200]; /* name, IPv4, IPv6 without brackets, or "*" */
    char port[8];   /* "1" .. "65535", or "*" */
};

struct endpoint_found {
    char numeric[64]; /* IPv4, IPv6 in brackets, or "*" */
    bool ipv6;
    bool loopback; /* every address of the host is on this machine */
};

/* INVALID with what is wrong in err. `listening` allows * as host and port. */
enum status endpoint_parse(struct endpoint *e, const char *text, bool listening, struct err *err) MUST_CHECK;
/* What workers elsewhere dial: `text` is HOST, HOST:PORT or tcp://HOST:PORT, an IPv6 host alone or in brackets; a port
 * that is not there is that of `own`, tcp://HOST:PORT. INVALID with what is wrong in err. */
enum status endpoint_advertised(char *out, size_t cap, const char *text, const char *own, struct err *err) MUST_CHECK;
/* Look the host up; takes as long as the name service does. NOTFOUND when there is no such host, AGAIN when the name
 * service does not answer (err is filled in both cases). */
enum status endpoint_find(struct endpoint_found *found, const struct endpoint *e, struct err *err) MUST_CHECK;
/* Why a socket could not be bound, from errno and its text: EXISTS when the port is taken, INVALID where the settings
 * are to blame, else IO. */
enum status endpoint_bind_failed(const char *endpoint, int code, const char *text, struct err *err);
/* Could a coordinator listen there? A look ahead; a port that is taken may be free again until then. */
enum status endpoint_check_own(const char *endpoint, struct err *err) MUST_CHECK;

#endif
