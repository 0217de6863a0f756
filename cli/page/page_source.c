#include "cli/page/page_source.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/os/interrupt.h"
#include "common/os/run_status.h"

void page_source_init(struct page_source *source, struct page_hub *hub)
{
    source->hub = hub;
    source->log.run = source->target.run_dir;
    source->question.keep = true;
    source->started = source->current = false;
}

/* The file with the join line may appear after the page started. */
static enum status find_target(struct page_source *source, struct err *err)
{
    struct stat st;
    char path[sizeof source->target.run_dir];
    if (!source->target.run_dir[0]) return STATUS_OK;
    if (stat(source->target.run_dir, &st))
        return err_set(err, STATUS_NOTFOUND, "waiting for %s, which does not exist yet", source->target.run_dir);
    if (S_ISDIR(st.st_mode)) return STATUS_OK;
    memcpy(path, source->target.run_dir, sizeof path);
    enum status status = join_target_find(&source->target, path, err);
    if (status != STATUS_OK) snprintf(source->target.run_dir, sizeof source->target.run_dir, "%s", path);
    return status;
}

static void ask(struct page_source *source, json_t **status_p, char reason[PAGE_REASON_MAX])
{
    struct err err = {0};
    enum status status = find_target(source, &err);
    if (status == STATUS_OK) status = status_query(&source->question, &source->target, status_p, &err);
    if (status == STATUS_NOTFOUND && source->target.run_dir[0] && strncmp(err.msg, "waiting", 7) != 0)
        err_set(&err, status, "waiting for a run in %s", source->target.run_dir);
    snprintf(reason, PAGE_REASON_MAX, "%s", status == STATUS_OK ? "" : err.msg);
}

static void on_event(void *ctx, const json_t *event, const char *kind)
{
    page_run_event(ctx, event, kind);
}

static void on_again(void *ctx)
{
    page_run_again(ctx);
}

/* Follows metrics.jsonl; viewers are served between the parts of a long file. */
static void read_log(struct page_source *source)
{
    struct page_hub *hub = source->hub;
    const struct page_log_reader reader = {on_event, on_again, &hub->run};
    for (bool all = !source->target.run_dir[0]; !all && interrupt_check(NULL) == STATUS_OK;) {
        pthread_mutex_lock(&hub->lock);
        all = page_log_read(&source->log, &reader);
        pthread_mutex_unlock(&hub->lock);
    }
}

/* One line when the data stops or begins to be current. */
static void tell(struct page_source *source, bool current, const char *reason)
{
    if (source->started && current == source->current) return;
    if (!current)
        log_warn("the page's data is not current: %s", reason);
    else
        log_info("the page's data is current");
    source->started = true;
    source->current = current;
}

void page_source_poll(struct page_source *source)
{
    struct page_hub *hub = source->hub;
    json_t *status = NULL;
    char reason[PAGE_REASON_MAX];
    ask(source, &status, reason);
    if (interrupt_check(NULL) != STATUS_OK) {
        json_decref(status);
        return;
    }
    tell(source, status && !reason[0], reason);
    pthread_mutex_lock(&hub->lock);
    hub->run.from_file = source->target.run_dir[0] != 0;
    bool other = page_run_status(&hub->run, status, reason, clock_monotonic_us());
    json_decref(status); /* under the lock: the run holds it, too */
    pthread_mutex_unlock(&hub->lock);
    if (other) source->log.offset = source->log.inode = 0;
    read_log(source);
    pthread_mutex_lock(&hub->lock);
    page_hub_tick(hub);
    pthread_mutex_unlock(&hub->lock);
}

void page_source_finish(struct page_source *source)
{
    status_query_end(&source->question);
    page_log_end(&source->log);
}
