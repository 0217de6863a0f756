/* Internals of the trainer, shared by its files only:
 *   train.c         the main loop
 *   train_setup.c   configuration -> model, data, optimizer
 *   train_metrics.c log lines and METRICS */
#ifndef WORKER_TRAIN_IMPL_H
#define WORKER_TRAIN_IMPL_H

#include "common/config/gpu_share.h"
#include "common/config/schedule.h"
#include "common/tensor/layout.h"
#include "common/tensor/tokens.h"
#include "worker/data_hash.h"
#include "worker/outer/outer_loop.h"
#include "worker/replica/replica.h"
#include "worker/session/worker_session.h"
#include "worker/train.h"

enum { MODEL_TEXT_MAX = 8192, SPEED_MAX = 96 };

/* Skipped steps that are not yet logged. */
struct skip_log {
    uint64_t count, logged_us; /* logged_us: time of the last line; 0: none yet */
    double position;           /* of the last skipped step */
};

/* A submitted step; its result may arrive with the next one. */
struct step_note {
    uint64_t round;
    uint32_t step; /* index in the round */
    double position, lr;
};

struct trainer {
    struct train_options *options;
    struct config config; /* shared keys of the run, local keys of this worker */
    struct config_sources sources;
    struct gpu_share share; /* this worker's GPUs */
    struct layout layout;
    struct tokens train, val;
    struct data_hash data_hash; /* reads train and val in the background */
    struct pool *pool;          /* threads for updates, deltas and copies on the host */
    struct replica *replica;
    struct lr_schedule schedule;
    char model_text[MODEL_TEXT_MAX];
    char devices[WIRE_NAME_MAX];
    uint64_t inner_head[2]; /* steps, skipped; saved with the moments */
    uint64_t *counters;     /* [samples of a step] */

    struct worker_session *session;
    struct outer_loop *loop; /* of the session */

    /* The current round. */
    uint64_t tokens, compute_us;
    double loss_sum;
    struct step_note in_flight; /* the step submitted last */
    uint64_t step_us;           /* duration of the last step with a result */

    uint64_t steps_done; /* in this process; selects the steps to log */
    struct skip_log skips;
};

void train_setup_init(struct trainer *t, struct train_options *options);
void train_setup_finish(struct trainer *t);
/* worker_session_options.on_config; ctx is the trainer. */
enum status train_on_config(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err);

/* worker_session_options.on_settings. */
enum status train_on_settings(void *ctx, const struct msg_config *config, struct err *err) MUST_CHECK;

/* Fills counters[n] with the sample counters from position `from` of the task's concatenated ranges. False: the ranges
 * are too short. */
bool train_fill_counters(const struct msg_assign *task, uint64_t from, uint64_t *counters, uint32_t n);

/* A step was skipped because its gradient is not finite. Warns at the first, then at most every 30 s with a count. */
void train_note_skip(struct skip_log *log, const struct config *config, double position, uint64_t now_us);
/* Logs the remaining skipped steps; called when the worker ends. */
void train_end_skips(struct skip_log *log);
/* Writes "1.23 k tokens/s  5.678 TFLOP/s", then "  MFU 45.6 %" if peak_flops is known (not 0). */
void train_speed_text(char out[SPEED_MAX], double tokens_per_s, double flops_per_token, double peak_flops);
/* One step is done: queues its record for METRICS, logs every LOG_EVERY_STEPS. */
void train_note_step(struct trainer *t, const struct step_note *note, const struct step_result *result);

#endif
