/* libatoll: the functions of include/atoll.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/config_keys.h"
#include "wire/join_target.h"
#include "worker/api/api_impl.h"

enum { THREADS_USUAL = 8, MAX_WAIT_MIN_S = 5 };

/* --- open and close ----------------------------------------------------------------------------------------------- */

static enum status check_texts(const struct atoll_options *o, struct err *err)
{
    TRY(api_check_text("options.join", o->join, JOIN_LINE_MAX + CONFIG_PATH_MAX, false, err));
    TRY(api_check_text("options.name", o->name, WIRE_NAME_MAX, true, err));
    TRY(api_check_text("options.dir", o->dir, CONFIG_PATH_MAX, false, err));
    TRY(api_check_text("options.devices", o->devices, WIRE_NAME_MAX, true, err));
    return o->name ? worker_name_check(o->name, o->dir != NULL, err) : STATUS_OK;
}

/* Programs compiled before options.theta have a shorter struct. */
static enum status widen_options(struct atoll_options *out, const struct atoll_options *o, struct err *err)
{
    *out = (struct atoll_options){0};
    if (o->size != sizeof *o && o->size != offsetof(struct atoll_options, theta))
        return err_set(err, STATUS_INVALID,
                       "options.size is %zu, but %zu in this version of libatoll: compile with its atoll.h", o->size,
                       sizeof *o);
    memcpy(out, o, o->size);
    return STATUS_OK;
}

/* Takes the memory that the program lends: two arrays of floats that do not overlap. */
static enum status take_lent(struct atoll *a, const struct atoll_options *o, struct err *err)
{
    const uintptr_t theta = (uintptr_t)o->theta, change = (uintptr_t)o->change;
    if (!o->theta != !o->change)
        return err_set(err, STATUS_INVALID, "options.theta needs options.change, and the reverse: give both, or none");
    if (theta % _Alignof(float) || change % _Alignof(float))
        return err_set(err, STATUS_INVALID, "options.%s is not aligned for floats: give memory of malloc or mmap",
                       theta % _Alignof(float) ? "theta" : "change");
    if (theta && (theta < change ? change - theta : theta - change) / sizeof(float) < a->own.n_params)
        return err_set(err, STATUS_INVALID,
                       "options.theta and options.change share memory: give two arrays of %" PRIu64 " floats",
                       a->own.n_params);
    a->theta = o->theta;
    a->change = o->change;
    return STATUS_OK;
}

static enum status take_options(struct atoll *a, const struct atoll_options *o, struct err *err)
{
    if (o->max_wait_s && o->max_wait_s < MAX_WAIT_MIN_S)
        return err_set(err, STATUS_INVALID, "options.max_wait_s must be 0, or %d or more", MAX_WAIT_MIN_S);
    if (o->threads > POOL_THREADS_MAX)
        return err_set(err, STATUS_INVALID, "options.threads must be 0 to %d", POOL_THREADS_MAX);
    if (!o->state.save != !o->state.load)
        return err_set(err, STATUS_INVALID, "options.state needs both functions, or none");
    TRY(check_texts(o, err));
    TRY(api_take_tensors(a, o->tensors, o->n_tensors, err));
    TRY(api_take_frozen(a, o, err));
    TRY(take_lent(a, o, err));
    if (!a->theta) a->params = mem_alloc(a->own.n_params, sizeof *a->params);
    if (!a->theta && !a->params)
        return err_set(err, STATUS_NOMEM, "no memory for the parameters (%s)",
                       units_bytes((double)a->own.n_params * sizeof(float)).text);
    TRY(api_take_files(a, o->files, o->n_files, err));
    api_take_data(a, &o->train, &o->val);
    a->state = o->state;
    a->threads = o->threads ? o->threads : (uint32_t)pool_cores(THREADS_USUAL);
    snprintf(a->devices, sizeof a->devices, "%s", o->devices ? o->devices : "cpu");
    snprintf(a->options.self.name, sizeof a->options.self.name, "%s", o->name ? o->name : "");
    a->options.max_wait_us = o->max_wait_s == UINT32_MAX ? UINT64_MAX - 1
                             : o->max_wait_s             ? o->max_wait_s * UINT64_C(1000000)
                                                         : UINT64_MAX;
    a->options.max_wait_by = "max_wait_s";
    a->options.host_ctx = a;
    a->options.on_config = api_on_config;
    a->options.on_settings = api_on_settings;
    return STATUS_OK;
}

static enum status take_target(struct atoll *a, const char *join, struct err *err)
{
    struct join_target target;
    enum status status = join_target_find(&target, join, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID,
                       "join is missing: give the coordinator's join line or its run folder, also in " JOIN_ENV);
    if (status != STATUS_OK && join) err_prefix(err, "join");
    if (status == STATUS_OK) worker_session_set_target(&a->options, &target);
    return status;
}

static enum status open_dir(struct atoll *a, const char *path, struct err *err)
{
    TRY(worker_dir_open_named(&a->dir, path, a->options.self.name, err));
    a->dir_open = true;
    snprintf(a->options.dir, sizeof a->options.dir, "%s", a->dir.path);
    a->options.self.key = a->dir.key;
    a->options.self.fresh = a->dir.key_is_new;
    a->options.unnamed = a->dir.base[0] ? &a->dir : NULL;
    return STATUS_OK;
}

/* Errors of arguments and of the host come before the worker's folder is made. */
static enum status open_all(struct atoll *a, const struct atoll_options *given, struct err *err)
{
    struct atoll_options all, *o = &all;
    TRY(widen_options(o, given, err));
    TRY(take_options(a, o, err));
    TRY(take_target(a, o->join, err));
    if (!a->options.run_dir[0]) {
        enum status found = worker_session_resolve(&a->options, err);
        if (found == STATUS_INVALID) return err->code = STATUS_CLOSED; /* the host name is unknown */
        if (found != STATUS_AGAIN) TRY(found);
    }
    TRY(open_dir(a, o->dir, err));
    a->finding_us = clock_monotonic_us();
    enum status status = api_find(a, err);
    if (status == STATUS_END) {
        a->phase = API_DONE;
        snprintf(a->text, sizeof a->text, "%s", err->msg);
        return STATUS_OK;
    }
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

static void free_all(struct atoll *a)
{
    worker_session_close(a->session);
    if (a->dir_open) worker_dir_close(&a->dir);
    api_model_finish(a);
    explicit_bzero(&a->options.self.key, sizeof a->options.self.key);
    mem_free(a);
}

enum atoll_status atoll_open(struct atoll **a_p, const struct atoll_options *options, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    if (!a_p) return api_refuse(error, ATOLL_INVALID, "atoll_open: the place for the worker is NULL");
    *a_p = NULL;
    if (!options) return api_refuse(error, ATOLL_INVALID, "atoll_open: options is NULL");
    api_log_init();
    struct atoll *a = mem_alloc(1, sizeof *a);
    if (!a) return api_refuse(error, ATOLL_NOMEM, "out of memory");
    a->process = getpid();
    layout_init(&a->own);
    layout_init(&a->layout);
    enum status status = open_all(a, options, &err);
    if (status == STATUS_OK) {
        *a_p = a;
        return ATOLL_OK;
    }
    free_all(a);
    return api_error(error, status, &err);
}

enum atoll_status atoll_set_data(struct atoll *a, const struct atoll_data *train, const struct atoll_data *val,
                                 struct atoll_error *error)
{
    API_CALL;
    enum atoll_status bad = api_check(a, train, "atoll_set_data", error);
    if (bad != ATOLL_OK) return bad;
    if (a->waited || a->phase == API_LEFT)
        return api_refuse(error, ATOLL_ORDER, "atoll_set_data: call it before the first atoll_wait");
    api_take_data(a, train, val ? val : &(struct atoll_data){0});
    return ATOLL_OK;
}

/* Ends the connection. `text`: for the coordinator; NULL: it gets none. */
static void end_session(struct atoll *a, const char *text)
{
    if (!api_is_here(a) || a->phase == API_LEFT) return;
    API_SESSION(a);
    if (a->phase == API_JOINED && text) worker_session_leave(a->session, text);
    a->phase = API_LEFT;
    a->round.open = a->evaluating = false;
    if (a->session) worker_session_disconnect(a->session);
}

void atoll_leave(struct atoll *a, const char *text)
{
    API_CALL;
    end_session(a, text ? text : "left");
}

void atoll_abandon(struct atoll *a)
{
    API_CALL;
    end_session(a, NULL);
}

void atoll_close(struct atoll *a)
{
    API_CALL;
    if (!api_is_here(a)) return;
    if (a->phase == API_JOINED) atoll_leave(a, "closed");
    free_all(a);
}

/* --- what the caller asks ----------------------------------------------------------------------------------------- */

const char *atoll_version(void)
{
    return ATOLL_VERSION;
}

float *atoll_params(struct atoll *a)
{
    return a ? a->params : NULL;
}

uint64_t atoll_n_params(const struct atoll *a)
{
    return a ? a->own.n_params : 0;
}

enum atoll_exchange atoll_exchanges(const struct atoll *a)
{
    return a && a->adds ? ATOLL_CHANGES : ATOLL_PARAMETERS;
}

uint64_t atoll_offset(const struct atoll *a, uint32_t tensor)
{
    if (!a || tensor >= a->own.n_tensors) return 0;
    bool of_run = a->theta && a->configured;
    return of_run ? a->layout.tensors[a->place[tensor]].offset : a->own.tensors[tensor].offset;
}

const char *atoll_text(struct atoll *a)
{
    API_CALL;
    if (!a) return "";
    if (!api_is_here(a)) return "this process is a fork of the worker's";
    API_SESSION(a);
    if (a->phase == API_FAILED) return a->failure.msg;
    if (a->phase == API_JOINED) {
        uint64_t now = clock_monotonic_us();
        char others[WIRE_TEXT_MAX];
        heartbeat_waiting_for(outer_loop_heartbeat(a->loop), now, others);
        snprintf(a->text, sizeof a->text, "%.600s%s%s", outer_loop_text(a->loop, now),
                 others[0] ? "; the run waits for " : "", others);
        text_make_clean(a->text);
    }
    return a->text;
}

static bool holds_params(const struct atoll *a)
{
    return api_is_here(a) && a->configured && outer_loop_holds(a->loop);
}

/* The oldest version of a fragment. */
static uint64_t oldest_version(const struct atoll *a)
{
    uint64_t oldest = UINT64_MAX;
    if (!holds_params(a)) return 0;
    for (uint32_t i = 0; i < a->layout.n_fragments; i++) {
        uint64_t version = outer_loop_version(a->loop, i);
        if (version < oldest) oldest = version;
    }
    return oldest;
}

uint64_t atoll_theta_hash(const struct atoll *a)
{
    API_SESSION(a);
    return holds_params(a) ? layout_theta_hash(&a->layout, outer_loop_theta(a->loop)) : 0;
}

void atoll_get_info(struct atoll *a, struct atoll_info *info)
{
    API_CALL;
    if (!info) return;
    *info = (struct atoll_info){0};
    if (!a) return;
    snprintf(info->name, sizeof info->name, "%s", a->options.self.name);
    if (a->configured) {
        snprintf(info->run, sizeof info->run, "%s", a->config.run.name);
        snprintf(info->method, sizeof info->method, "%s", config_method_name(a->config.train.method));
        snprintf(info->family, sizeof info->family, "%.31s", a->config.model.family);
    }
    if (!a->session || !api_is_here(a)) return;
    API_SESSION(a);
    const struct outer_times *times = outer_loop_times(a->loop);
    worker_session_bytes(a->session, &info->bytes_up, &info->bytes_down);
    info->rtt_us = heartbeat_rtt_us(outer_loop_heartbeat(a->loop));
    info->connected = worker_session_connected(a->session);
    info->round = oldest_version(a);
    info->compute_s = times->compute_s;
    info->compress_s = times->compress_s;
    info->send_s = times->send_s;
    info->wait_s = times->wait_s;
    info->apply_s = times->apply_s;
}

enum atoll_status atoll_setting(struct atoll *a, const char *key, char *out, size_t cap, struct atoll_error *error)
{
    API_CALL;
    char value[CONFIG_VALUE_MAX], shown[TEXT_SHOWN];
    enum atoll_status bad = api_check(a, key && out, "atoll_setting", error);
    if (bad != ATOLL_OK) return bad;
    if (!a->configured)
        return api_refuse(error, ATOLL_ORDER,
                          "atoll_setting: the run's configuration has not arrived: call atoll_wait");
    const char *dot = strchr(key, '.');
    int index = dot ? config_key_find(key, (size_t)(dot - key), dot + 1, strlen(dot + 1)) : -1;
    if (index < 0)
        return api_refuse(error, ATOLL_INVALID, "the run has no setting %s: see `atoll config help`",
                          text_shown(key, strlen(key), shown));
    config_value_text(&a->config, index, value);
    if (strlen(value) >= cap)
        return api_refuse(error, ATOLL_INVALID, "%.80s has %zu bytes, more than the caller's %zu", key, strlen(value),
                          cap);
    memcpy(out, value, strlen(value) + 1);
    return ATOLL_OK;
}
