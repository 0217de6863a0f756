/* The web server of the page (libmicrohttpd): one thread answers all requests.
 *
 *   /             the page                            /healthz      200 while the data is current, else 503
 *   /events       what the page shows, as it changes  /status.json  the object of atoll status --json
 *   /metrics      for Prometheus
 *
 * - Only GET and HEAD. A request has at most PAGE_MEMORY bytes. Other limits: cli/page/page_guard.h.
 * - Each answer but /events ends its connection. */
#ifndef CLI_PAGE_SERVER_H
#define CLI_PAGE_SERVER_H

#include "cli/page/page_access.h"
#include "cli/page/page_guard.h"
#include "cli/page/page_stream.h"

enum { PAGE_MEMORY = 24576, PAGE_CONNECTIONS_MAX = 160, PAGE_IDLE_S = 30 };

struct page_server {
    struct MHD_Daemon *daemon;
    const struct page_access *access; /* borrowed */
    struct page_hub *hub;             /* borrowed */
    struct page_guard guard;
};

/* Answers requests on a socket that listens, which the server closes. IO. */
enum status page_server_start(struct page_server *server, int fd, const struct page_access *access,
                              struct page_hub *hub, struct err *err) MUST_CHECK;
/* Closes connections that are late: call it about once a second. */
void page_server_sweep(struct page_server *server);
/* Ends the streams and waits for the thread. */
void page_server_stop(struct page_server *server);

#endif
