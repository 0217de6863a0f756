/* Internals of the trainer, shared by its files only:
 *   train.c         the main loop
 *   train_join.c    why a join cannot succeed
 *   train_setup.c   configuration -> model, data, optimizer
 *   train_metrics.c log lines and METRICS */
#ifndef WORKER_TRAIN_IMPL_H
#define WORKER_TRAIN_IMPL_H

#include "common/config/schedule.h"
#include "common/tensor/layout.h"
#include "common/tensor/tokens.h"
#include "worker/data_hash.h"
#include "worker/device_share.h"
#include "worker/link/link.h"
#include "worker/outer/outer_loop.h"
#include "worker/replica/replica.h"
#include "worker/train.h"

enum { MODEL_TEXT_MAX = 8192, SPEED_MAX = 96, STEP_QUEUE_MAX = 4096 };

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

/* Step records for METRICS. Record p is records[p % STEP_QUEUE_MAX]; first <= next <= end <= first + STEP_QUEUE_MAX. */
struct step_queue {
    uint64_t first;   /* oldest record that is not acknowledged */
    uint64_t next;    /* oldest record that is not sent */
    uint64_t end;     /* one past the newest record */
    uint64_t sent_us; /* when the last message was sent */
    uint64_t lost;    /* records dropped unsent, not yet logged */
    struct {
        struct metrics_step step;
        uint64_t done_us;
    } records[STEP_QUEUE_MAX];
};

struct trainer {
    const struct train_options *options;
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
    struct err host_err;    /* error of on_config */

    struct outer_loop *loop;
    struct link *link;
    struct msg in;

    /* The current round. */
    uint64_t tokens, compute_us;
    double loss_sum;
    struct step_note in_flight; /* the step submitted last */
    uint64_t step_us;           /* duration of the last step with a result */

    struct {
        uint64_t since_us, next_us; /* start of the join; next look for a reason */
        bool done, logged;          /* connected once, or launch decides; a reason to retry was logged */
    } join;

    struct step_queue steps;
    struct msg_metrics metrics; /* the message being sent */
    uint64_t steps_session;     /* session of the last message */
    unsigned steps_connected;   /* link_connected of the last message */
    unsigned both_connected;    /* link_both_connected, as the outer loop knows it */
    uint64_t reported_round;    /* round whose times were sent last */
    uint64_t steps_done;        /* in this process; selects the steps to log */
    struct skip_log skips;
};

/* Call it while the worker waits. Before the first connection it returns why `join` cannot succeed (INVALID), or did
 * not for long enough (CLOSED). Afterwards the worker waits for its coordinator. */
enum status train_check_join(struct trainer *t, const char *join, struct err *err) MUST_CHECK;

void train_setup_init(struct trainer *t, const struct train_options *options);
void train_setup_finish(struct trainer *t);
/* outer_setup.on_config; ctx is the trainer. */
enum status train_on_config(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err);

/* Fills counters[n] with the sample counters from position `from` of the task's concatenated ranges. False: the ranges
 * are too short. */
bool train_fill_counters(const struct msg_assign *task, uint64_t from, uint64_t *counters, uint32_t n);

/* A step was skipped because its gradient is not finite. Warns at the first, then at most every 30 s with a count. */
void train_note_skip(struct skip_log *log, const struct config *config, double position, uint64_t now_us);
/* Logs the remaining skipped steps; called when the worker ends. */
void train_end_skips(struct skip_log *log);
/* Writes "1234 tok/s  5.678 TFLOP/s", then "  MFU 45.6 %" if peak_flops is known (not 0). */
void train_speed_text(char out[SPEED_MAX], double tokens_per_s, double flops_per_token, double peak_flops);
/* One step is done: queues its record for METRICS, logs every log.every_steps. */
void train_note_step(struct trainer *t, const struct step_note *note, const struct step_result *result);
/* The step ended at done_us. When the queue is full the oldest record is dropped. */
void step_queue_add(struct step_queue *q, const struct metrics_step *step, uint64_t done_us);
/* Fill m->steps with the next records that are not sent, at most WIRE_METRICS_MAX, and their ages at now_us. */
void step_queue_batch(const struct step_queue *q, struct msg_metrics *m, uint64_t now_us);
/* The next n records were sent. */
void step_queue_sent(struct step_queue *q, uint32_t n, uint64_t now_us);
/* The coordinator answered a heartbeat that was sent at acked_us: it has every message sent before. */
void step_queue_acked(struct step_queue *q, uint64_t acked_us);
/* The session or the connection changed: send every record again that is not acknowledged. */
void step_queue_resend(struct step_queue *q);
/* Send METRICS once a second, when a message is full, or at once with `force`. */
void train_send_metrics(struct trainer *t, bool force, uint64_t now_us);

#endif
