/* Internals of the library, shared by its files only:
 *   api.c         open, close, what the caller asks
 *   api_check.c   the caller's arguments
 *   api_wait.c    waiting, connecting
 *   api_round.c   rounds, evaluations
 *   api_frozen.c  the caller's tensors that are not exchanged
 *   api_model.c   configuration -> layout of the run; the caller's tensors in it
 *   api_status.c  errors of the library, log lines
 *   api_locale.c  the C locale during calls
 *   api_rank.c    the files of a worker's processes in a saved state
 *   api_tokens.c  token shards */
#ifndef WORKER_API_API_IMPL_H
#define WORKER_API_API_IMPL_H

#include <locale.h>
#include <sys/types.h>

#include "common/base/pool.h"
#include "common/base/text.h"
#include "common/config/config.h"
#include "common/tensor/frozen.h"
#include "common/tensor/layout.h"
#include "include/atoll.h"
#include "worker/session/worker_dir.h"
#include "worker/session/worker_session.h"

enum { API_LINE_MAX = 2 * WIRE_TEXT_MAX + 320 };

enum api_phase {
    API_FINDING, /* looks for the coordinator's address */
    API_JOINED,  /* has a session; outer_loop_want says what to do */
    API_DONE,
    API_FAILED, /* `failure` says why */
    API_LEFT,
};

/* The round in training. */
struct api_round {
    bool open; /* from atoll_begin to atoll_push */
    uint64_t number;
    const struct msg_assign *task;
    uint32_t steps, done;       /* inner steps of the round, told so far */
    uint64_t samples;           /* taken */
    double position, rate;      /* of the first step; per step */
    uint64_t tokens, known;     /* of all steps; of those whose loss is known */
    double loss_sum;            /* nats, over `known` tokens */
    uint64_t compute_us;        /* sum of the steps */
    uint64_t place_us, last_us; /* duration of placing the parameters; time of the last step */
};

struct atoll {
    pid_t process; /* that opened it: a fork has neither its threads nor its connection */
    struct worker_dir dir;
    bool dir_open;
    struct worker_session_options options;
    struct worker_session *session; /* NULL while API_FINDING */
    struct outer_loop *loop;        /* of the session */
    enum api_phase phase;
    bool waited; /* atoll_wait was called */
    struct err failure;
    char text[API_LINE_MAX];
    uint64_t finding_us, find_us; /* start of API_FINDING, next attempt */

    struct layout own;        /* the caller's tensors in its order, without fragments */
    float *params;            /* [own.n_params]; NULL with theta */
    float *theta, *change;    /* [own.n_params] options.theta and options.change, borrowed; NULL: none */
    struct outer_file *files; /* [n_files] owned, with their names and bytes */
    uint32_t n_files;
    struct frozen frozen;   /* by name */
    uint32_t *frozen_place; /* [frozen.n] the caller's index of each */
    bool frozen_any;
    int (*frozen_read)(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size); /* NULL: not in checkpoints */
    void *frozen_ctx;
    struct atoll_data train, val; /* sample_tokens is 1 or more */
    struct atoll_state state;
    uint64_t state_tag; /* of the files of the ranks in the next save */
    uint32_t state_ranks;
    char devices[WIRE_NAME_MAX];
    uint32_t threads;

    /* Once the configuration arrived: */
    bool configured;
    struct config config;
    struct config_sources sources;
    struct layout layout; /* of the run */
    uint32_t *place;      /* [own.n_tensors]: the run's index of each tensor */
    float *ordered;       /* [n_params] `params` in the run's order; NULL: the caller's order is the same */
    bool adds;            /* ATOLL_CHANGES */
    struct pool *pool;
    bool built_in;    /* model.family gpt2 or llama */
    char *model_text; /* config.json of a built-in model */

    struct api_round round;
    bool evaluating;
    uint64_t steps_done; /* in this process; selects the steps to log */
};

/* --- api_locale.c --- */
struct api_locale {
    locale_t before, caller;
};
struct api_locale api_locale_enter(void);
struct api_locale api_locale_call_back(void);
void api_locale_restore(struct api_locale *l);
/* The first line of a function of atoll.h that parses or prints numbers, or calls back: the C locale until it returns.
 */
#define API_CALL __attribute__((cleanup(api_locale_restore))) struct api_locale api_locale = api_locale_enter()
/* Before the program's own function is called: the program's locale until the end of the block. */
#define API_CALL_BACK __attribute__((cleanup(api_locale_restore))) struct api_locale api_locale = api_locale_call_back()

/* --- api_round.c --- */
/* worker_session_computed; and worker_session_compute if a round is open then. NULL is allowed. */
const struct atoll *api_session_take(const struct atoll *a);
void api_session_give(const struct atoll **a);
/* In a function of atoll.h that may be called during a round: the session belongs to the call until it returns. */
#define API_SESSION(a)                                                                                                 \
    __attribute__((cleanup(api_session_give), unused)) const struct atoll *api_session = api_session_take(a)

/* --- api_check.c --- */
/* False for NULL, and in a fork of the process that opened the worker. */
bool api_is_here(const struct atoll *a);
/* INVALID if !api_is_here(a), or if a pointer that `call` needs is not `given`. */
enum atoll_status api_check(const struct atoll *a, bool given, const char *call, struct atoll_error *error);
/* INVALID if text (may be NULL) has `cap` bytes or more, or is not clean; is_name: or has hidden characters. */
enum status api_check_text(const char *option, const char *text, size_t cap, bool is_name, struct err *err) MUST_CHECK;

/* --- api_status.c --- */
/* Fills *error (may be NULL) and returns its status. "--dir" and the like become "dir": a program has no flags. */
enum atoll_status api_error(struct atoll_error *error, enum status status, const struct err *err);
enum atoll_status api_refuse(struct atoll_error *error, enum atoll_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The library is silent until atoll_set_log. */
void api_log_init(void);

/* --- api_frozen.c --- */
/* Copies the list; call it after api_take_tensors. INVALID, NOMEM. */
enum status api_take_frozen(struct atoll *a, const struct atoll_options *o, struct err *err) MUST_CHECK;
/* outer_model.frozen_read; ctx is the struct atoll. */
int api_read_frozen(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size);

/* --- api_model.c --- */
/* Copies the caller's tensors to a->own. INVALID, NOMEM. */
enum status api_take_tensors(struct atoll *a, const struct atoll_tensor *tensors, uint32_t n,
                             struct err *err) MUST_CHECK;
/* Copies the model's files. INVALID: a file that no checkpoint contains; NOMEM. */
enum status api_take_files(struct atoll *a, const struct atoll_file *files, uint32_t n, struct err *err) MUST_CHECK;
void api_take_data(struct atoll *a, const struct atoll_data *train, const struct atoll_data *val);
/* worker_session_options.on_config and on_settings; ctx is the struct atoll. */
enum status api_on_config(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err);
enum status api_on_settings(void *ctx, const struct msg_config *config, struct err *err) MUST_CHECK;
void api_model_finish(struct atoll *a);
/* Copies the run's parameters held here to a->params, unless the program reads them in options.theta. */
void api_take_params(struct atoll *a);
/* A round begins: the same, or ATOLL_PARAMETERS: copies the parameters to start from to a->change. */
void api_start_params(struct atoll *a);
/* a->params, or a->change, in the order of the run. */
const float *api_run_params(struct atoll *a);

/* --- api_wait.c --- */
/* One attempt to find the coordinator and to start to connect. AGAIN: later, and a->text says what is missing; END:
 * the run is complete. */
enum status api_find(struct atoll *a, struct err *err) MUST_CHECK;
/* Ends the session: the caller cannot continue. Returns the status of `err`. */
enum atoll_status api_fail(struct atoll *a, enum status status, const struct err *err, struct atoll_error *error);

#endif
