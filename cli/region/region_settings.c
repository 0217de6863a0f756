#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/region/region_impl.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "common/config/sync_points.h"
#include "common/os/fileio.h"

enum { POLL_US = 200000, SETTINGS_WAIT_US = 100000 };

enum status region_check(const struct config *config, struct err *err)
{
    bool served = config->train.method == METHOD_DILOCO || config->train.method == METHOD_LOCAL_SGD;
    if (!served)
        return err_set(err, STATUS_INVALID,
                       "--upstream: the run upstream has train.method %s: a region takes part in runs of diloco and "
                       "local-sgd",
                       config_method_name(config->train.method));
    if (sync_overlaps(config))
        return err_set(err, STATUS_INVALID,
                       "--upstream: the run upstream has train.overlap or train.stagger: a region takes part in runs "
                       "without them");
    if (config_may_relay(config))
        return err_set(err, STATUS_INVALID,
                       "--upstream: the run upstream relays deltas (codec.down %s): a region takes part in runs whose "
                       "codec.down is a codec or union",
                       config->codec.down);
    return STATUS_OK;
}

/* CONFIG is all that is wanted: its text is kept, and the session ends. */
static enum status keep_text(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    struct region *r = ctx;
    (void)model;
    r->text = mem_alloc(1, strlen(m->text) + 1);
    if (!r->text) return err_set(err, STATUS_NOMEM, "no memory for the settings");
    memcpy(r->text, m->text, strlen(m->text) + 1);
    return err_set(err, STATUS_INTERRUPTED, "the settings are here");
}

static enum status no_settings(void *ctx, const struct msg_config *m, struct err *err)
{
    (void)ctx, (void)m, (void)err;
    return STATUS_OK;
}

bool region_stopped(struct region *r)
{
    pthread_mutex_lock(&r->lock);
    bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    return stop;
}

enum status region_resolve(struct region *r, struct err *err)
{
    uint64_t since = clock_monotonic_us();
    for (bool logged = false;; logged = true) {
        enum status status = worker_session_read_address(&r->options, err);
        if (status == STATUS_OK) status = worker_session_resolve(&r->options, err);
        if (status != STATUS_NOTFOUND && status != STATUS_AGAIN) return status;
        if (clock_monotonic_us() - since >= r->options.max_wait_us) return err->code = STATUS_INTERRUPTED;
        if (region_stopped(r)) return err->code = STATUS_INTERRUPTED;
        if (!logged) log_info("waiting for the run upstream: %s", err->msg);
        usleep(POLL_US);
    }
}

static enum status read_text(struct region *r, struct err *err)
{
    TRY(region_resolve(r, err));
    r->options.host_ctx = r;
    r->options.on_config = keep_text;
    r->options.on_settings = no_settings;
    TRY(worker_session_open(&r->session, &r->options, err));
    enum status status = worker_session_dial(r->session, err);
    while (status == STATUS_OK && outer_loop_want(worker_session_loop(r->session)) == OUTER_WAIT)
        status = worker_session_wait(r->session, SETTINGS_WAIT_US, err);
    if (status == STATUS_OK && !r->text) status = worker_session_failure(r->session, err);
    worker_session_close(r->session);
    r->session = NULL;
    r->options.self.fresh = false; /* upstream knows the key */
    return status;
}

static enum status write_text(struct region *r, char *path, size_t cap, struct err *err)
{
    if ((size_t)snprintf(path, cap, "%s/settings.yaml", r->dir.path) >= cap)
        return err_set(err, STATUS_INVALID, "--dir is too long");
    return file_write(path, r->text, strlen(r->text), err);
}

/* The name upstream: the last part of --dir. */
static enum status name_region(struct region *r, const char *run_dir, struct err *err)
{
    char path[CONFIG_PATH_MAX];
    size_t n = (size_t)snprintf(path, sizeof path, "%s", run_dir);
    if (n >= sizeof path) return err_set(err, STATUS_INVALID, "--dir is too long");
    while (n > 1 && path[n - 1] == '/') path[--n] = '\0';
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (worker_name_check(name, true, err) != STATUS_OK) {
        err_prefix(err, "--dir: its last part names this region upstream");
        return err->code;
    }
    snprintf(r->options.self.name, sizeof r->options.self.name, "%.*s", (int)sizeof r->options.self.name - 1, name);
    return STATUS_OK;
}

static enum status find(struct region *r, char *join, const char *run_dir, bool begun, char *settings_path, size_t cap,
                        struct err *err)
{
    static struct join_target target;
    char path[CONFIG_PATH_MAX + 16];
    enum status status = join_target_read(&target, join, err);
    if (status != STATUS_OK) {
        if (status != STATUS_NOTFOUND) err_prefix(err, "--upstream");
        return status;
    }
    worker_session_set_target(&r->options, &target);
    TRY(name_region(r, run_dir, err));
    if ((size_t)snprintf(path, sizeof path, "%s/upstream", run_dir) >= CONFIG_PATH_MAX)
        return err_set(err, STATUS_INVALID, "--dir is too long");
    TRY(worker_dir_open(&r->dir, path, err));
    r->dir_open = true;
    snprintf(r->options.dir, sizeof r->options.dir, "%s", r->dir.path);
    r->options.self.key = r->dir.key;
    r->options.self.fresh = r->dir.key_is_new;
    settings_path[0] = '\0';
    if (begun) return STATUS_OK;
    TRY(read_text(r, err));
    return write_text(r, settings_path, cap, err);
}

enum status region_find(struct region **region_p, char *join, const char *run_dir, uint64_t max_wait_us, bool begun,
                        char *settings_path, size_t cap, struct err *err)
{
    struct region *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(err, STATUS_NOMEM, "out of memory");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->options.max_wait_us = max_wait_us;
    r->options.max_wait_by = "--max-wait";
    enum status status = find(r, join, run_dir, begun, settings_path, cap, err);
    mem_free(r->text);
    r->text = NULL;
    if (status == STATUS_OK)
        *region_p = r;
    else
        region_close(r);
    return status;
}
