/* libatoll: the outer loop of an Atoll worker, for any training program.
 *
 * The program trains its own model with its own optimizer. The library joins a run, keeps the run's parameters, sends
 * deltas, applies updates, leases samples and saves state. `atoll-worker` and the Python package use the same code.
 *
 *     atoll_open(&a, &options, &error);
 *     copy the initial parameters to atoll_params(a);
 *     for (;;) {
 *         atoll_wait(a, 1000, &event);
 *         if (event == ATOLL_DONE) break;
 *         if (event == ATOLL_EVALUATE) { evaluate atoll_params(a); atoll_evaluated(a, ...); }
 *         if (event != ATOLL_TRAIN) continue;
 *         atoll_begin(a, &round);                        atoll_params(a) are the parameters to start from
 *         do {
 *             atoll_samples(a, indices, round.step_samples);
 *             take one inner step on these samples;
 *             atoll_step(a, &step, &action);
 *         } while (action == ATOLL_CONTINUE);
 *         if (action == ATOLL_SYNC) { copy the parameters to atoll_params(a); atoll_push(a); }
 *     }
 *     atoll_close(a);
 *
 * Errors.     Functions return an enum atoll_status. On failure they fill *error (may be NULL), one line that says what
 *             is wrong, where, and what to do. Nothing prints, exits or changes signal handlers. SIGPIPE is not raised.
 * Arguments.  The call that takes a text or a pointer checks it. INVALID: a text is too long, is not UTF-8 (also one
 *             that ends inside a character), or has control characters; a pointer is NULL that no comment allows. With
 *             a NULL worker, functions without a status do nothing and return NULL, 0 or "".
 * Blocking.   Only atoll_wait waits for the network, at most its timeout; until the first connection it may look up to
 *             1.5 s longer for the reason why a join fails. atoll_open reads and writes files, and resolves the
 *             coordinator's name. It waits at most 2 s for the lock of the folder, and 15 s more if the process that
 *             took it has ended but is not gone yet. atoll_push encodes deltas, atoll_begin copies parameters, and
 *             atoll_theta_hash hashes them: all in proportion to the parameters. atoll_leave and
 *             atoll_close wait for a running save and at most 2 s for queued messages. During a round with
 *             overlap or async, a call may wait until an update is applied: in proportion to the parameters, too. No
 *             other function blocks.
 * Threads.    One thread at a time may use one struct atoll. Different ones are independent. The library's own threads
 *             send heartbeats while the program computes, and write saved states. With train.overlap, train.stagger or
 *             train.method async they also send deltas, receive updates and apply them. A process may fork. In the child,
 *             calls with a struct atoll of its parent return INVALID, and atoll_leave and atoll_close do nothing. The
 *             child has closed its copies of the library's lock, connections and files: it may outlive its parent.
 * Locale.     The library reads and writes numbers in the C locale, whatever setlocale the program called. The
 *             program's functions (state.save, state.load, log) run in the program's locale.
 * Ownership.  Strings and arrays in arguments are copied, except where a comment says borrowed. Pointers that the
 *             library returns are valid until atoll_close, unless a shorter time is given.
 * Memory.     Bytes for each parameter: 4 for atoll_params, 4 for the run's parameters (the anchor), 4 for the residual
 *             of a lossy codec, a delta and an update as encoded (1 each with int8, 4 each with fp32). Where a delta is
 *             copied before it is encoded, or deltas of other workers are merged, 4 for those of the largest fragment.
 *             async: 4 more. Tensors in another order than the run's: 4 more.
 *             With options.theta and ATOLL_CHANGES: 4 for theta and 4 for change, both of the program, and the encoded
 *             delta and update: 10 with int8. With ATOLL_PARAMETERS change takes the place of atoll_params, and the
 *             order costs nothing. A line of level info gives the sum. */
#ifndef ATOLL_H
#define ATOLL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATOLL_API __attribute__((visibility("default")))

enum { ATOLL_TEXT_MAX = 512 };

struct atoll; /* opaque */

enum atoll_status {
    ATOLL_OK,
    ATOLL_INVALID,     /* an argument, a file or a setting is wrong: the same call fails again */
    ATOLL_REFUSED,     /* the coordinator refused this worker, or the run is another one */
    ATOLL_UNREACHABLE, /* no answer from the coordinator; the text says why */
    ATOLL_NONFINITE,   /* the parameters (also the initial ones) or the loss hold NaN or infinity */
    ATOLL_EXHAUSTED,   /* the round has fewer samples left */
    ATOLL_ORDER,       /* not allowed now: see the loop above */
    ATOLL_NOMEM,
    ATOLL_IO,
    ATOLL_FAILED,  /* the run cannot continue here; the text says why */
    ATOLL_STOPPED, /* the run has used up its budget; it continues with a larger one, and this worker with it. Programs
                    * end with code 75 */
};

struct atoll_error {
    enum atoll_status status;
    char text[ATOLL_TEXT_MAX];
};

enum { ATOLL_DIMS_MAX = 8 };

enum atoll_tensor_flags {
    ATOLL_DECAY = 1, /* weight decay applies */
    ATOLL_MEAN = 2,  /* not trained: the outer step takes the mean over the workers (statistics of BatchNorm) */
};

/* One tensor of the model: fp32, row-major. */
struct atoll_tensor {
    const char *name; /* as in the model's safetensors file; unique, printable ASCII */
    uint32_t flags;   /* enum atoll_tensor_flags, or-ed */
    uint32_t ndim;    /* 0 .. ATOLL_DIMS_MAX */
    uint64_t shape[ATOLL_DIMS_MAX];
};

/* A tensor that is not exchanged: a frozen parameter, or a buffer of integers. All workers of a run must have the same.
 */
struct atoll_frozen {
    const char *name;  /* unique among all tensors of the model */
    const char *dtype; /* as safetensors writes it: F32, BF16, I64, U8, ... 1..15 bytes of printable ASCII */
    uint32_t ndim;     /* 0 .. ATOLL_DIMS_MAX */
    uint64_t shape[ATOLL_DIMS_MAX];
    uint64_t bytes; /* of its values */
    uint64_t hash;  /* of values that the caller samples */
};

/* A file of the model's Hugging Face folder, which every checkpoint contains: config.json, tokenizer.json, ... Files of
 * other names are left out, with a line of level warn. */
struct atoll_file {
    const char *name;
    const void *data; /* NULL if size is 0 */
    size_t size;
};

/* A data set. All workers of a run must have the same `hash`, `samples` and `sample_tokens`. samples 0: the worker
 * draws its own samples; atoll_samples then gives numbers that no other worker gets. */
struct atoll_data {
    uint64_t hash;
    uint64_t samples;
    uint32_t sample_tokens; /* tokens of one sample, for statistics; 0: 1 */
};

#define ATOLL_STATE_KEEP SIZE_MAX

struct atoll_part {
    const void *data;
    size_t size;
};

/* The program's own state (inner optimizer, random numbers), saved with the parameters after each round and restored by
 * a restarted worker. Both functions are called in atoll_wait, atoll_begin, atoll_push, atoll_leave or atoll_close, by
 * the thread that calls these. */
struct atoll_state {
    void *ctx;
    /* Fills up to `cap` (4096) parts and returns their number; 0: an error. The bytes stay unchanged until the next
     * atoll_begin or atoll_close. ATOLL_STATE_KEEP: the state cannot be saved now, and the newest saved one stays. */
    size_t (*save)(void *ctx, struct atoll_part *parts, size_t cap);
    /* Restores the concatenated parts; NULL, 0: resets the state to that of a new run. Returns 0, or -1 if the bytes do
     * not fit. `data` is borrowed for the call. */
    int (*load)(void *ctx, const void *data, size_t size);
};

struct atoll_options {
    size_t size;         /* sizeof(struct atoll_options) */
    const char *join;    /* join line, a file with one, or a run folder on this machine; NULL: the variable ATOLL_JOIN,
                          * which the library leaves in the environment */
    const char *name;    /* unique in the run, 1 to 63 bytes, also without invisible characters (zero width, changes of
                          * direction); NULL: that of `dir`, or the host's, followed by -2, -3, ... if another
                          * worker has it */
    const char *dir;     /* the worker's own folder; NULL: ./atoll-worker-NAME */
    const char *devices; /* "cuda:0 NVIDIA H100", shown in the status, 0 to 63 bytes as `name`; NULL: "cpu" */
    const struct atoll_tensor *tensors; /* [n_tensors] */
    uint32_t n_tensors;
    const struct atoll_file *files; /* [n_files] */
    uint32_t n_files;
    struct atoll_data train;
    struct atoll_data val;    /* samples 0: this worker does not evaluate */
    struct atoll_state state; /* functions NULL: none */
    uint32_t threads;         /* for encoding and applying; 0: one per core, at most 8 */
    uint32_t max_wait_s; /* fail if the coordinator does not answer for this long; 0: 12 hours after the join;
                          * UINT32_MAX: no limit */
    /* [n_frozen] at most 16384. In a run of a built-in model they are not compared. */
    const struct atoll_frozen *frozen;
    uint32_t n_frozen;
    uint32_t frozen_any; /* 1: they may differ from those of the other workers (another quantization of the base) */
    /* NULL: checkpoints hold the exchanged tensors only (an adapter). Otherwise they hold these tensors, too: the
     * worker that uploads the initial model reads them. Fills out[size] with the bytes from `offset` of tensor i;
     * called in atoll_wait, any number of times. Returns 0, or -1. */
    int (*frozen_read)(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size);
    void *frozen_ctx;
    /* For programs that keep the parameters themselves, as sharded models do: the library then has no copy of them.
     * Both or neither; [n_params] each, borrowed until atoll_close; several processes may share the memory.
     * atoll_params returns NULL.
     * theta   Before the first atoll_wait: the initial parameters, in the order of `tensors`. After ATOLL_EVALUATE,
     *         atoll_begin and ATOLL_DONE: the run's parameters, at atoll_offset. The program only reads them, until its
     *         next call; after atoll_begin until atoll_push, or until atoll_step says ATOLL_DROPPED.
     * change  What the program trained: see atoll_exchanges. The library may write it in any other call. */
    float *theta, *change;
};

/* The lines that atoll-worker would log. `log` may be called by any thread, also while another thread is in a function
 * of the library; it must not call the library. NULL (the default): no lines. */
enum atoll_log_level { ATOLL_LOG_ERROR, ATOLL_LOG_WARN, ATOLL_LOG_INFO, ATOLL_LOG_DEBUG };
ATOLL_API void atoll_set_log(void (*log)(void *ctx, enum atoll_log_level level, const char *line), void *ctx);
ATOLL_API const char *atoll_version(void);

/* Opens the worker's folder (its key, its lock, its saved state) and starts to connect. On success the caller must
 * call atoll_close. Errors: INVALID, IO, NOMEM, UNREACHABLE (the host name is unknown). */
ATOLL_API enum atoll_status atoll_open(struct atoll **a, const struct atoll_options *options,
                                       struct atoll_error *error);
/* Sets options.train and options.val; allowed before the first atoll_wait. ORDER afterwards. */
ATOLL_API enum atoll_status atoll_set_data(struct atoll *a, const struct atoll_data *train,
                                           const struct atoll_data *val, struct atoll_error *error);

/* [n_params] all tensors end to end in the order of options.tensors.
 * - Before the first atoll_wait the caller writes its initial parameters. The run starts from them if this worker is
 *   the first one and the run has no model yet (model.family external).
 * - After ATOLL_EVALUATE, atoll_begin and ATOLL_DONE they are the run's parameters, except if the run was complete
 *   before this worker joined.
 * - Before atoll_push the caller writes the trained parameters. */
ATOLL_API float *atoll_params(struct atoll *a);
ATOLL_API uint64_t atoll_n_params(const struct atoll *a);

/* With options.theta: what atoll_push takes from options.change. The first event other than ATOLL_WAITING tells it:
 * ATOLL_PARAMETERS before. A tensor with ATOLL_MEAN is written, whatever this says.
 * ATOLL_CHANGES     Between the last atoll_step and atoll_push the program ADDS, in fp32, theta - its trained
 *                   parameters. The training starts from theta. Between rounds the library keeps the codec's residual
 *                   in this memory. Runs with a lossy codec.up, without train.overlap, train.stagger and async.
 * ATOLL_PARAMETERS  At atoll_begin the program READS the parameters to start from; before atoll_push it WRITES the
 *                   trained ones. All other runs. */
enum atoll_exchange { ATOLL_CHANGES, ATOLL_PARAMETERS };
ATOLL_API enum atoll_exchange atoll_exchanges(const struct atoll *a);
/* The first element of a tensor (its index in options.tensors) in options.theta and options.change. It may change when
 * the first event other than ATOLL_WAITING arrives. */
ATOLL_API uint64_t atoll_offset(const struct atoll *a, uint32_t tensor);

enum atoll_event {
    ATOLL_WAITING,  /* nothing to do yet; atoll_text says what the worker waits for */
    ATOLL_TRAIN,    /* call atoll_begin */
    ATOLL_EVALUATE, /* call atoll_evaluation, then atoll_evaluated */
    ATOLL_DONE,     /* the run is complete; atoll_text is the coordinator's last line */
};

/* Connects, joins, sends and receives until there is something to do, or for timeout_ms. After atoll_push it returns
 * ATOLL_TRAIN once the update has been applied. Errors: REFUSED, UNREACHABLE, INVALID, FAILED, NOMEM; NONFINITE: this
 * worker's initial parameters should start the run; ORDER during a round. After any other error than ORDER the worker
 * has left the run: call atoll_close. */
ATOLL_API enum atoll_status atoll_wait(struct atoll *a, uint32_t timeout_ms, enum atoll_event *event,
                                       struct atoll_error *error);
/* What the worker waits for, or the coordinator's last line. Valid until the next call. */
ATOLL_API const char *atoll_text(struct atoll *a);

/* With train.overlap or train.stagger: a part of a round, up to the next point at which parameters are sent or change.
 */
struct atoll_round {
    uint64_t round;        /* from 0 */
    uint32_t steps;        /* inner steps until atoll_push (H, or those of the part) */
    uint32_t step_samples; /* samples of one inner step: train.batch_size x train.grad_accum */
    double position;       /* schedule position of the first step, in inner steps of the run */
    double position_rate;  /* schedule steps per inner step */
    uint32_t worker;       /* this worker's number in the run */
    double lr;             /* of the run's newest merged round, mean over its workers; NaN: not known */
    double epoch;          /* epochs of the training data that the run has handed out when this round was opened; 0
                            * without data */
};

/* Starts the round that ATOLL_TRAIN announced; atoll_params are its first parameters. ORDER: there is none. */
ATOLL_API enum atoll_status atoll_begin(struct atoll *a, struct atoll_round *round, struct atoll_error *error);
/* Takes the next n samples of this round: indices[n] into the training set, each below train.samples. All workers
 * together take each sample once in an epoch. EXHAUSTED: fewer than n are left, and none is taken. */
ATOLL_API enum atoll_status atoll_samples(struct atoll *a, uint64_t *indices, uint32_t n, struct atoll_error *error);

/* One inner step. */
struct atoll_step {
    uint64_t tokens;  /* trained on: the weight of this worker in the mean */
    double loss;      /* nats per token, mean over the tokens; NaN: not known */
    double lr;        /* learning rate; NaN: not known */
    double grad_norm; /* NaN: not known */
    uint64_t step_us; /* duration; 0: since the last call */
};

enum atoll_action {
    ATOLL_CONTINUE, /* take the next step */
    ATOLL_SYNC,     /* this was the round's last step: call atoll_push */
    ATOLL_DROPPED,  /* the run went on without this round: call atoll_wait */
};

/* Tells a finished step, handles arrived messages. Does not wait for the network. */
ATOLL_API enum atoll_status atoll_step(struct atoll *a, const struct atoll_step *step, enum atoll_action *action,
                                       struct atoll_error *error);
/* The sync point: takes a snapshot of atoll_params and of the program's state, and starts to save and send it. It does
 * not wait for the network. The update is handed over by atoll_begin; this version does so at the same step, so the
 * caller calls atoll_wait before the next inner step; a later version may hand it over some steps later. NONFINITE: the
 * round is dropped, state.load(NULL, 0) was called, and atoll_wait joins again; with ATOLL_CHANGES the residual is
 * lost, too. FAILED: the third time in a row.
 * INVALID: the round has 0 tokens, or in a run of a built-in model not all tokens of its samples. The round stays open:
 * leave. */
ATOLL_API enum atoll_status atoll_push(struct atoll *a, struct atoll_error *error);

/* A piece of an evaluation: validation samples start .. start + count, in order. Their losses and tokens are summed in
 * parts of `part` samples (the last one may be smaller). One evaluation may come as several pieces. */
struct atoll_evaluation {
    uint64_t start, count, part;
    uint32_t n_parts; /* count / part, rounded up */
};
ATOLL_API enum atoll_status atoll_evaluation(struct atoll *a, struct atoll_evaluation *evaluation,
                                             struct atoll_error *error);
/* loss_sums[n_parts] in nats, summed over tokens[n_parts]. tokens NULL: not evaluated, another worker must. */
ATOLL_API enum atoll_status atoll_evaluated(struct atoll *a, const double *loss_sums, const uint64_t *tokens,
                                            struct atoll_error *error);

struct atoll_info {
    char run[96], name[96], method[32], family[32];        /* empty until the configuration arrived */
    uint64_t round;                                        /* of the newest parameters: rounds merged */
    uint64_t bytes_up, bytes_down;                         /* on the sockets of this process */
    uint64_t rtt_us;                                       /* smoothed round trip; 0: unknown */
    double compute_s, compress_s, send_s, wait_s, apply_s; /* of the last round */
    uint32_t connected;                                    /* 1: there is a connection */
};
ATOLL_API void atoll_get_info(struct atoll *a, struct atoll_info *info);
/* Hash of the run's parameters held here, as theta_hash in summary.json; 0: none yet. It reads all parameters. */
ATOLL_API uint64_t atoll_theta_hash(const struct atoll *a);
/* Writes a setting of the run, for example "train.sync_every", as text to out[cap]. ORDER: the configuration has not
 * arrived; INVALID: no such key, or cap is too small. */
ATOLL_API enum atoll_status atoll_setting(struct atoll *a, const char *key, char *out, size_t cap,
                                          struct atoll_error *error);

/* Saved states of a program of several processes (ranks), each with state of its own: shards of the optimizer, random
 * numbers. Each rank writes a file in the worker's folder, at the same time as the others. A save is complete, and the
 * last byte of the delta leaves, when all of them are durable.
 *
 *     all ranks agree on a tag (not 0, never used before) and call atoll_rank_begin(r, tag)
 *     then rank 0:                   atoll_state_files(a, tag, ranks); atoll_push(a): state.save returns the tag, too
 *     meanwhile each rank, a thread: atoll_rank_put(r, ...) ...; atoll_rank_end(r, NULL)
 *     after a restart, each rank:    atoll_rank_load(dir, rank, tag, ...) with the tag that state.load got
 *
 * One thread at a time may use one struct atoll_rank. */
struct atoll_rank;
/* What the next atoll_push does with the program's state; with train.overlap as long as H, the next atoll_begin. Waits
 * for a save that still runs. `bytes`: memory that the program takes for a copy of its state.
 * HELD    It is saved, and stays unchanged until the next atoll_begin.
 * BESIDE  A copy of it is saved while training goes on. If there is no memory for it and the library's own, the answer
 *         is HELD, except during overlap and async. */
enum atoll_save { ATOLL_SAVE_NONE, ATOLL_SAVE_HELD, ATOLL_SAVE_BESIDE };
ATOLL_API enum atoll_save atoll_next_save(struct atoll *a, uint64_t bytes);
/* The worker's own folder. "": not known yet. */
ATOLL_API const char *atoll_dir(const struct atoll *a);
/* The state of the next saves has the files of `ranks` (at most 4096) ranks with this tag; ranks 0: none. */
ATOLL_API void atoll_state_files(struct atoll *a, uint64_t tag, uint32_t ranks);
/* Opens the folder `dir` of a worker as its rank `rank`. IO: another process has this rank. */
ATOLL_API enum atoll_status atoll_rank_open(struct atoll_rank **r, const char *dir, uint32_t rank,
                                            struct atoll_error *error);
/* Announces a file: from now on rank 0 waits for it. Ends a file that was begun before. */
ATOLL_API enum atoll_status atoll_rank_begin(struct atoll_rank *r, uint64_t tag, struct atoll_error *error);
/* Appends bytes to the file. After an error: atoll_rank_end with its text. */
ATOLL_API enum atoll_status atoll_rank_put(struct atoll_rank *r, const void *data, size_t size,
                                           struct atoll_error *error);
/* Makes the file durable, and says so to rank 0. failure not NULL: the file is given up, and the save fails for this
 * reason. */
ATOLL_API enum atoll_status atoll_rank_end(struct atoll_rank *r, const char *failure, struct atoll_error *error);
/* The bytes of a rank's file, [*size], until atoll_rank_unload. INVALID: it is damaged. It was then renamed, and the
 * next start of the worker uses the state before. IO: it cannot be read. */
ATOLL_API enum atoll_status atoll_rank_load(const char *dir, uint32_t rank, uint64_t tag, const void **data,
                                            size_t *size, struct atoll_error *error);
ATOLL_API void atoll_rank_unload(const void *data, size_t size);
ATOLL_API void atoll_rank_close(struct atoll_rank *r);

/* Leaves the run: saves the state at a round boundary and tells the coordinator `text` (NULL: "left"), in which '?'
 * replaces control characters. Afterwards only atoll_close and atoll_params are allowed. */
ATOLL_API void atoll_leave(struct atoll *a, const char *text);
/* The same without a word, as if the process were killed: the run waits for this worker, which continues from the state
 * that it saved last. For a worker of several processes that lost one of them. */
ATOLL_API void atoll_abandon(struct atoll *a);
/* Frees everything; leaves first if the run is not done. NULL is allowed. */
ATOLL_API void atoll_close(struct atoll *a);

/* Token shards as `atoll prepare` writes them: samples of sample_tokens + 1 tokens (the last token is a target only).
 */
struct atoll_tokens;
/* Set in a token of a data set with a loss mask (atoll prepare --chat): the token gives no loss as a target. */
#define ATOLL_TOKEN_MASK UINT32_C(0x80000000)
ATOLL_API enum atoll_status atoll_tokens_open(struct atoll_tokens **t, const char *pattern, uint32_t sample_tokens,
                                              struct atoll_data *data, struct atoll_error *error);
/* Writes sample `index` to out[sample_tokens + 1]. Any number of threads may read. IO, INVALID (no such sample). */
ATOLL_API enum atoll_status atoll_tokens_read(const struct atoll_tokens *t, uint64_t index, uint32_t *out,
                                              struct atoll_error *error);
ATOLL_API void atoll_tokens_close(struct atoll_tokens *t);

#ifdef __cplusplus
}
#endif

#endif
