#include "cli/page/page_log.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/run_folder.h"

enum {
    BUFFER = 1 << 20,       /* bytes; a longer line is no line of a coordinator, and is skipped */
    CALL_MAX = 64 * BUFFER, /* bytes that a call reads, so that signals and viewers get their turn */
    HEAD = 96,              /* bytes of a line that hold its kind */
};

/* Of the step lines, only the last one of a round has times. */
static bool is_wanted(const char *line, size_t n)
{
    static const char step[] = "\"event\":\"step\"", timed[] = "\"send_s\":";
    bool is_step = memmem(line, n < HEAD ? n : HEAD, step, sizeof step - 1) != NULL;
    return !is_step || memmem(line, n, timed, sizeof timed - 1);
}

static void take_line(struct page_log *log, const char *line, size_t n, const struct page_log_reader *reader)
{
    if (!n || !is_wanted(line, n)) return;
    json_t *event = json_loadb(line, n, 0, NULL);
    const char *kind = json_string_value(json_object_get(event, "event"));
    if (kind)
        reader->event(reader->ctx, event, kind);
    else
        log->damaged++;
    json_decref(event);
}

/* Hands over the complete lines of buffer[n]. Returns their bytes; 0 if no line ends in the buffer. */
static size_t take_lines(struct page_log *log, size_t n, const struct page_log_reader *reader)
{
    size_t at = 0;
    for (const char *end; (end = memchr(log->buffer + at, '\n', n - at)); at = (size_t)(end - log->buffer) + 1)
        take_line(log, log->buffer + at, (size_t)(end - log->buffer) - at, reader);
    return at;
}

/* Notices a file that is another one, or that lost lines. */
static void compare(struct page_log *log, const struct stat *st, const struct page_log_reader *reader)
{
    bool same = st->st_dev == log->device && st->st_ino == log->inode && st->st_size >= log->offset;
    if (!same && log->inode) {
        log->offset = 0;
        reader->again(reader->ctx);
    }
    log->device = st->st_dev;
    log->inode = st->st_ino;
}

bool page_log_read(struct page_log *log, const struct page_log_reader *reader)
{
    char path[FILEIO_PATH_MAX];
    struct stat st;
    int fd;
    if (run_folder_path(path, sizeof path, log->run, "metrics.jsonl", NULL) != STATUS_OK ||
        file_open_plain(path, O_RDONLY, 0, &fd, NULL) != STATUS_OK)
        return true;
    if (!log->buffer) log->buffer = mem_alloc_untouched(BUFFER);
    bool all = fstat(fd, &st) || !log->buffer;
    if (!all) compare(log, &st, reader);
    for (int64_t end = log->offset + CALL_MAX; !all && log->offset < end;) {
        ssize_t n = pread(fd, log->buffer, BUFFER, log->offset);
        size_t taken = n > 0 ? take_lines(log, (size_t)n, reader) : 0;
        if (!taken && n == BUFFER) {
            taken = BUFFER;
            log->damaged++;
        }
        log->offset += (int64_t)taken;
        all = n < BUFFER;
    }
    close(fd);
    return all;
}

void page_log_end(struct page_log *log)
{
    mem_free(log->buffer);
    log->buffer = NULL;
}
