/* Endpoints "tcp://HOST:PORT": parse, resolve, check that a coordinator can listen on one. Nothing is allocated. */
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

/* INVALID with the reason in err. `listening` allows * as host and port. */
enum status endpoint_parse(struct endpoint *e, const char *text, bool listening, struct err *err) MUST_CHECK;
/* Write the endpoint that remote workers dial to out[cap]. `text` is HOST, HOST:PORT or tcp://HOST:PORT; an IPv6 host
 * may stand alone or in brackets. Without a port in `text`, the port of `own` (tcp://HOST:PORT) is used. INVALID with
 * the reason in err. */
enum status endpoint_advertised(char *out, size_t cap, const char *text, const char *own, struct err *err) MUST_CHECK;
/* Resolve the host; blocks as long as DNS takes. NOTFOUND: no such host; AGAIN: DNS does not answer. err is filled in
 * both cases. On AGAIN *found is a usable default: host "*", IPv6. */
enum status endpoint_find(struct endpoint_found *found, const struct endpoint *e, struct err *err) MUST_CHECK;
/* Fill err for a failed bind from errno (`code`) and its text. EXISTS: the port is taken; INVALID: the settings are
 * wrong; otherwise IO. Returns the status. */
enum status endpoint_bind_failed(const char *endpoint, int code, const char *text, struct err *err);
/* Check early whether a coordinator can listen on `endpoint`. The errors of endpoint_bind_failed. */
enum status endpoint_check_own(const char *endpoint, struct err *err) MUST_CHECK;

#endif
