/* Connections of the page. A viewer cannot take the places of the others:
 *
 * - A request must arrive within GUARD_REQUEST_US of its connection, however slowly its bytes come.
 * - At most GUARD_PENDING_MAX connections may be without a request: one more closes the oldest of them.
 * - An answer that is not a stream must be taken within GUARD_ANSWER_US. */
#ifndef CLI_PAGE_GUARD_H
#define CLI_PAGE_GUARD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { GUARD_PENDING_MAX = 32, GUARD_REQUEST_US = 10000000, GUARD_ANSWER_US = 60000000 };

struct page_peer {
    struct page_peer *next; /* a newer one */
    int fd;
    uint64_t since_us; /* opened, or since the request arrived */
    bool asked, stream;
};

struct page_guard {
    pthread_mutex_t lock;
    struct page_peer *first; /* oldest */
    unsigned pending;
};

void page_guard_init(struct page_guard *guard);
/* A connection opened. NULL: no memory, or its socket is unknown; the connection then has no limits. */
struct page_peer *page_guard_open(struct page_guard *guard, int fd);
/* Its request arrived; `stream`: the answer has no end. */
void page_guard_asked(struct page_guard *guard, struct page_peer *peer, bool stream);
/* It was closed; its descriptor is still open. */
void page_guard_closed(struct page_guard *guard, struct page_peer *peer);
/* Closes connections that are late. Any thread. */
void page_guard_sweep(struct page_guard *guard);

#endif
