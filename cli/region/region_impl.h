/* Private to cli/region/: a region's session upstream.
 *
 *     region_settings.c  finds the run upstream and reads its settings
 *     region_client.c    the thread that takes part upstream, and what it exchanges with the main loop
 *     region_loop.c      what it does there */
#ifndef CLI_REGION_IMPL_H
#define CLI_REGION_IMPL_H

#include <pthread.h>

#include "cli/region/region_loop.h"
#include "common/base/pool.h"
#include "coordinator/region.h"
#include "worker/session/worker_session.h"

/* What the client's thread asks of the main loop. It waits for the answer, so the pointers stay valid. */
struct region_ask {
    enum { ASK_NOTHING, ASK_EVENT, ASK_JUMP, ASK_VALUES, ASK_RESULT } what;
    const struct engine_upstream *event;
    uint64_t round;
    float *values;
    struct delta_sum *sum;
    struct msg_eval_result *result;
    bool yes; /* JUMP: known; VALUES: sealed; RESULT: evaluated */
};

struct region {
    struct worker_dir dir;
    bool dir_open;
    struct worker_session_options options;
    char *text; /* of CONFIG, while the settings are being read */

    struct worker_session *session; /* of the client's thread */
    struct region_loop loop;
    struct config config; /* of the run, as upstream sends it */
    uint64_t config_hash; /* of the region's run */
    struct pool *pool;
    float *values;

    pthread_t thread;
    bool started;
    void (*wake)(void *ctx);
    void *wake_ctx;

    /* Shared by the two threads. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct region_ask ask;
    bool stop;   /* the main loop ends: asks are refused */
    bool failed; /* the thread has ended with `err` */
    struct err err;
    struct engine_region_model model;
    bool modelled, loaded; /* a worker has defined the model; its parameters are here */
    uint32_t workers;
    uint64_t sealed; /* the round whose deltas are fixed, + 1; 0: none */
    char waits[WIRE_TEXT_MAX];
};

/* The run upstream is one that a region can take part in. */
enum status region_check(const struct config *config, struct err *err) MUST_CHECK;
enum status region_find(struct region **region_p, char *join, const char *run_dir, uint64_t max_wait_us, bool begun,
                        char *settings_path, size_t cap, struct err *err) MUST_CHECK;
/* Until the run folder upstream holds an address, and its host is known. */
enum status region_resolve(struct region *r, struct err *err) MUST_CHECK;
void region_close(struct region *r);
/* The main loop ends. */
bool region_stopped(struct region *r);

#endif
