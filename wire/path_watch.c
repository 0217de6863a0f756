#include "wire/path_watch.h"

bool path_watch(struct path_watch *w, bool waits, uint64_t bytes, uint64_t now_us)
{
    bool same = waits && w->waited && bytes == w->seen; /* on their way since the last call */
    w->waited = waits;
    w->seen = bytes;
    waits = same;
    bool gap = now_us - w->heard_us > PATH_GAP_US || (!waits && now_us - w->waits_us > PATH_GAP_US);
    if (bytes < w->bytes) w->bytes = bytes; /* another connection */
    if (gap || bytes - w->bytes > PATH_SMALL) {
        w->bytes = bytes;
        w->since_us = now_us;
        w->stuck = false;
    }
    w->heard_us = now_us;
    if (waits) w->waits_us = now_us;
    w->stuck = w->stuck || (waits && now_us - w->since_us >= PATH_STUCK_US);
    return w->stuck;
}

bool path_watch_unknown(struct path_watch *w, uint64_t now_us)
{
    if (w->stuck) w->heard_us = w->waits_us = now_us;
    return w->stuck;
}
