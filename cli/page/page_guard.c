#include "cli/page/page_guard.h"

#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

void page_guard_init(struct page_guard *guard)
{
    *guard = (struct page_guard){.first = NULL};
    pthread_mutex_init(&guard->lock, NULL);
}

/* The server notices the end of the connection and closes it. */
static void end(const struct page_peer *peer)
{
    (void)shutdown(peer->fd, SHUT_RDWR); /* it may be closed by the other side */
}

static void end_oldest(struct page_guard *guard)
{
    for (struct page_peer *p = guard->first; p; p = p->next) {
        if (p->asked) continue;
        p->asked = true; /* ended once */
        guard->pending--;
        end(p);
        return;
    }
}

struct page_peer *page_guard_open(struct page_guard *guard, int fd)
{
    struct page_peer *peer = fd >= 0 ? mem_alloc(1, sizeof *peer) : NULL, **last;
    if (!peer) return NULL;
    *peer = (struct page_peer){.fd = fd, .since_us = clock_monotonic_us()};
    pthread_mutex_lock(&guard->lock);
    if (guard->pending >= GUARD_PENDING_MAX) end_oldest(guard);
    for (last = &guard->first; *last; last = &(*last)->next) {
    }
    *last = peer;
    guard->pending++;
    pthread_mutex_unlock(&guard->lock);
    return peer;
}

void page_guard_asked(struct page_guard *guard, struct page_peer *peer, bool stream)
{
    if (!peer) return;
    pthread_mutex_lock(&guard->lock);
    if (!peer->asked) guard->pending--;
    peer->asked = true;
    peer->stream = stream;
    peer->since_us = clock_monotonic_us();
    pthread_mutex_unlock(&guard->lock);
}

void page_guard_closed(struct page_guard *guard, struct page_peer *peer)
{
    if (!peer) return;
    pthread_mutex_lock(&guard->lock);
    struct page_peer **at = &guard->first;
    while (*at && *at != peer) at = &(*at)->next;
    if (*at) *at = peer->next;
    if (!peer->asked) guard->pending--;
    pthread_mutex_unlock(&guard->lock);
    mem_free(peer);
}

void page_guard_sweep(struct page_guard *guard)
{
    uint64_t now_us = clock_monotonic_us();
    pthread_mutex_lock(&guard->lock);
    for (struct page_peer *p = guard->first; p; p = p->next) {
        uint64_t limit_us = p->asked ? GUARD_ANSWER_US : GUARD_REQUEST_US;
        if (!p->stream && now_us - p->since_us > limit_us) end(p);
    }
    pthread_mutex_unlock(&guard->lock);
}
