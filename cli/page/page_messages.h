/* Texts that the page sends to browsers: events of a text/event-stream, as JSON. */
#ifndef CLI_PAGE_MESSAGES_H
#define CLI_PAGE_MESSAGES_H

#include <stdatomic.h>
#include <stddef.h>

#include "cli/page/page_run.h"

/* A text that several connections send. */
struct page_text {
    atomic_uint holders;
    size_t size;
    char *data; /* [size], of open_memstream */
};

/* The caller is the first holder. Takes over `data`, which may be NULL: no memory. NULL: no memory. */
struct page_text *page_text_make(char *data, size_t size);
struct page_text *page_text_hold(struct page_text *text);
/* NULL is allowed. */
void page_text_drop(struct page_text *text);

/* "full": everything that the page shows. NULL: no memory. */
struct page_text *page_message_full(const struct page_run *run);
/* "tick": the status, and of curves and events what is new since the last tick; `shown` is the number of events that
 * the last one had sent, and is updated. Call page_message_sent after it. NULL: no memory. */
struct page_text *page_message_tick(const struct page_run *run, uint64_t *shown);
/* The curves of the last tick count as sent. */
void page_message_sent(struct page_run *run);
/* The object of atoll status --json, with a newline; NULL: no status yet, or no memory. */
struct page_text *page_message_status(const struct page_run *run);

#endif
