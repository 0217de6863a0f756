#include "cli/page/page_stream.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

enum { BLOCK = 16384 };

struct page_stream {
    struct page_stream *next;
    struct page_hub *hub;
    struct MHD_Connection *connection;
    struct page_text *text; /* being sent; NULL: none */
    size_t at;              /* bytes of it that were sent */
    uint64_t number;        /* of the newest tick that was sent, or is being sent; 0: none */
    bool suspended;
};

void page_hub_init(struct page_hub *hub)
{
    memset(hub, 0, sizeof *hub);
    pthread_mutex_init(&hub->lock, NULL);
    page_run_init(&hub->run);
    hub->number = 1;
}

/* The caller holds the lock. */
static void resume_all(struct page_hub *hub)
{
    for (struct page_stream *s = hub->streams; s; s = s->next) {
        if (!s->suspended) continue;
        s->suspended = false;
        MHD_resume_connection(s->connection);
    }
}

void page_hub_tick(struct page_hub *hub)
{
    page_text_drop(hub->tick);
    page_text_drop(hub->full);
    hub->full = NULL;
    hub->tick = hub->n_streams ? page_message_tick(&hub->run, &hub->shown) : NULL;
    hub->shown = hub->run.n_events;
    page_message_sent(&hub->run);
    hub->number++;
    resume_all(hub);
}

void page_hub_end(struct page_hub *hub)
{
    pthread_mutex_lock(&hub->lock);
    hub->ending = true;
    resume_all(hub);
    pthread_mutex_unlock(&hub->lock);
}

void page_hub_finish(struct page_hub *hub)
{
    assert(!hub->streams);
    page_text_drop(hub->tick);
    page_text_drop(hub->full);
    page_run_finish(&hub->run);
    pthread_mutex_destroy(&hub->lock);
}

/* The next message of a stream whose last one is sent. */
static struct page_text *next_text(struct page_stream *s)
{
    struct page_hub *hub = s->hub;
    bool in_order = s->number && s->number + 1 == hub->number;
    s->number = hub->number;
    if (in_order && hub->tick) return page_text_hold(hub->tick);
    if (!hub->full) hub->full = page_message_full(&hub->run);
    return page_text_hold(hub->full);
}

/* The server asks for up to `max` bytes of a stream. */
static ssize_t read_stream(void *cls, uint64_t at, char *out, size_t max)
{
    struct page_stream *s = cls;
    struct page_hub *hub = s->hub;
    ssize_t n = MHD_CONTENT_READER_END_OF_STREAM;
    (void)at;
    pthread_mutex_lock(&hub->lock);
    if (!s->text && !hub->ending && s->number == hub->number) {
        s->suspended = true;
        MHD_suspend_connection(s->connection);
        pthread_mutex_unlock(&hub->lock);
        return 0;
    }
    if (!s->text && !hub->ending) s->text = next_text(s);
    if (s->text) {
        size_t left = s->text->size - s->at, size = left < max ? left : max;
        memcpy(out, s->text->data + s->at, size);
        s->at += size;
        n = (ssize_t)size;
        if (s->at == s->text->size) {
            page_text_drop(s->text);
            s->text = NULL;
            s->at = 0;
        }
    }
    pthread_mutex_unlock(&hub->lock);
    return n;
}

static void close_stream(void *cls)
{
    struct page_stream *s = cls, **at;
    pthread_mutex_lock(&s->hub->lock);
    for (at = &s->hub->streams; *at != s; at = &(*at)->next) {
    }
    *at = s->next;
    s->hub->n_streams--;
    pthread_mutex_unlock(&s->hub->lock);
    page_text_drop(s->text);
    mem_free(s);
}

struct MHD_Response *page_stream_open(struct page_hub *hub, struct MHD_Connection *connection)
{
    struct page_stream *s = mem_alloc(1, sizeof *s);
    if (!s) return NULL;
    *s = (struct page_stream){.hub = hub, .connection = connection};
    pthread_mutex_lock(&hub->lock);
    bool refused = hub->ending || hub->n_streams >= PAGE_STREAMS_MAX;
    if (!refused) {
        s->next = hub->streams;
        hub->streams = s;
        hub->n_streams++;
    }
    pthread_mutex_unlock(&hub->lock);
    if (refused) return mem_free(s), NULL;
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, s, close_stream);
    if (!response) close_stream(s);
    return response;
}
