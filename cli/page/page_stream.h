/* The streams of events (text/event-stream) to browsers. One lock guards the run that they show, too.
 *
 * - A new stream gets the message "full", then each "tick". A stream that missed a tick gets "full" again.
 * - Each message is built once for all streams. A stream that has nothing to send is suspended. */
#ifndef CLI_PAGE_STREAM_H
#define CLI_PAGE_STREAM_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/page/page_messages.h"
#include "cli/page/page_run.h"

enum { PAGE_STREAMS_MAX = 64 };

struct page_stream;

struct page_hub {
    pthread_mutex_t lock; /* guards all of this */
    struct page_run run;
    struct page_text *tick, *full; /* of this number; NULL: not built */
    uint64_t number;               /* of the newest tick, from 1 */
    uint64_t shown;                /* events of the run that the newest tick had sent */
    struct page_stream *streams;
    unsigned n_streams;
    bool ending;
};

void page_hub_init(struct page_hub *hub);
/* The run changed: all streams get a tick. The caller holds the lock. */
void page_hub_tick(struct page_hub *hub);
/* Ends all streams; new ones are refused. */
void page_hub_end(struct page_hub *hub);
/* After the server stopped. */
void page_hub_finish(struct page_hub *hub);
/* A response for a new stream of this connection. NULL: too many streams, or no memory. */
struct MHD_Response *page_stream_open(struct page_hub *hub, struct MHD_Connection *connection);

#endif
