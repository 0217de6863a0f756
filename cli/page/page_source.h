/* Where the page's data comes from: it asks for the status once per interval for all viewers, and follows metrics.jsonl
 * of a run folder. One thread uses it. */
#ifndef CLI_PAGE_SOURCE_H
#define CLI_PAGE_SOURCE_H

#include "cli/page/page_log.h"
#include "cli/page/page_stream.h"
#include "cli/status/status_query.h"

struct page_source {
    struct status_question question;
    struct join_target target;
    struct page_log log;
    struct page_hub *hub;  /* borrowed */
    bool started, current; /* the last poll's, for lines of the log */
};

/* The target is set. It may name a folder, or a file with a join line, that does not exist yet. */
void page_source_init(struct page_source *source, struct page_hub *hub);
/* Polls once, and gives all streams a tick. It takes up to some seconds if nobody answers. */
void page_source_poll(struct page_source *source);
void page_source_finish(struct page_source *source);

#endif
