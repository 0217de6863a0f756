/* The socket that the page listens on. */
#ifndef CLI_PAGE_LISTEN_H
#define CLI_PAGE_LISTEN_H

#include <stdbool.h>

#include "common/base/status.h"

enum { PAGE_HOST_MAX = 256, PAGE_ADDRESS_MAX = 320 };

struct page_listener {
    int fd;
    unsigned port;
    bool loopback;                  /* only programs of this machine can connect */
    char host[PAGE_HOST_MAX];       /* as given, without brackets */
    char address[PAGE_ADDRESS_MAX]; /* http://HOST:PORT, for people; HOST is this machine's name if it listens on all */
};

/* Listens on "HOST:PORT"; port 0: any free one. INVALID: no such address, or the port is taken; IO. */
enum status page_listen(struct page_listener *l, const char *where, struct err *err) MUST_CHECK;

#endif
