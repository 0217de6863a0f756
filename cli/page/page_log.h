/* Follows RUN/metrics.jsonl: hands over each new line once, without most step lines, which are nearly all of the file.
 *
 * - A line without its end is read again when it is complete.
 * - A file that was replaced, or that became shorter, is read from its beginning. */
#ifndef CLI_PAGE_LOG_H
#define CLI_PAGE_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct page_log {
    const char *run; /* folder; borrowed */
    dev_t device;
    ino_t inode;
    int64_t offset;   /* all lines before it were handed over */
    uint64_t damaged; /* lines that are no event */
    char *buffer;     /* NULL: not read yet */
};

/* Receives the events of new lines. `again` is called before the first line of a file that is read from its beginning a
 * second time. */
struct page_log_reader {
    void (*event)(void *ctx, const json_t *event, const char *kind);
    void (*again)(void *ctx);
    void *ctx;
};

/* Reads what is new. A missing file has nothing new. Returns true if all of it was read; false: call again at once,
 * the file has more than a call reads. */
bool page_log_read(struct page_log *log, const struct page_log_reader *reader);
void page_log_end(struct page_log *log);

#endif
