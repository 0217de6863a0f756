/* The messages of protocol version 3: structs, encode and decode.
 *
 * docs/protocol.md says what each message means, when it is sent and how the receiver acts.
 *
 * - A worker dials two connections to the coordinator: *control* (small messages, never behind data) and *bulk*
 *   (chunks).
 * - Everything is idempotent: any message may be lost, repeated or late, and sending it again is always safe. */
#ifndef WIRE_MSG_H
#define WIRE_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/tensor/layout.h"

enum {
    WIRE_VERSION = 3,
    WIRE_HEADER = 16,          /* bytes before each message's body, see wire/frame.h */
    WIRE_CHUNK_MAX = 1 << 20,  /* payload bytes of one CHUNK */
    WIRE_BODY_MAX = 4 << 20,   /* body bytes of any message */
    WIRE_NAME_MAX = 64,        /* names, terminator included */
    WIRE_TEXT_MAX = 1024,      /* human-readable lines, terminator included */
    WIRE_CONFIG_MAX = 65536,   /* configuration and config.json text, terminator included */
    WIRE_STATUS_MAX = 1 << 18, /* status JSON, terminator included */
    WIRE_RANGES_MAX = 64,      /* ranges of one assignment */
    WIRE_METRICS_MAX = 256,    /* step records of one METRICS */
    WIRE_NAMED_MAX = 4096,     /* deltas that one update acknowledges */
    WIRE_PARTS_MAX = 64,       /* parts of one evaluation */
    WIRE_REGION_MAX = 1 << 16, /* workers of one region */
    WIRE_PROBE_MAX = 1 << 18,  /* bytes of one PROBE or its reply */
    WIRE_FETCH_MAX = 1 << 18,  /* bytes of one FETCH_REPLY */
    WIRE_EVAL_WINDOWS = 64,    /* a worker evaluates that many windows, in batches, between polls for messages */
    WIRE_UUID = 16,
    WIRE_KEY = 32, /* a CURVE public key */
};

enum wire_lane { WIRE_CONTROL, WIRE_BULK };

/* X(NAME, number, lane, direction): W worker to coordinator, C coordinator to worker, B both */
#define MSG_MAP(X)                                                                                                     \
    X(HELLO, 1, CONTROL, W)                                                                                            \
    X(CONFIG, 2, CONTROL, C)                                                                                           \
    X(JOIN, 3, CONTROL, W)                                                                                             \
    X(WELCOME, 4, CONTROL, C)                                                                                          \
    X(REFUSE, 5, CONTROL, C)                                                                                           \
    X(BIND, 6, BULK, W)                                                                                                \
    X(HEARTBEAT, 7, CONTROL, W)                                                                                        \
    X(HEARTBEAT_ACK, 8, CONTROL, C)                                                                                    \
    X(ASSIGN, 9, CONTROL, C)                                                                                           \
    X(EVAL, 10, CONTROL, C)                                                                                            \
    X(EVAL_RESULT, 11, CONTROL, W)                                                                                     \
    X(OFFER, 12, CONTROL, W)                                                                                           \
    X(CREDIT, 13, CONTROL, C)                                                                                          \
    X(REJECT, 14, CONTROL, C)                                                                                          \
    X(GET, 15, CONTROL, W)                                                                                             \
    X(CHUNK, 16, BULK, B)                                                                                              \
    X(METRICS, 17, CONTROL, W)                                                                                         \
    X(LEAVE, 18, CONTROL, W)                                                                                           \
    X(DONE, 19, CONTROL, C)                                                                                            \
    X(STATUS, 20, CONTROL, W)                                                                                          \
    X(STATUS_REPLY, 21, CONTROL, C)                                                                                    \
    X(ENROL, 22, CONTROL, W)                                                                                           \
    X(ENROLLED, 23, CONTROL, C)                                                                                        \
    X(UPLOAD, 24, CONTROL, C)                                                                                          \
    X(PROBE, 25, BULK, W)                                                                                              \
    X(PROBE_REPLY, 26, BULK, C)                                                                                        \
    X(NOTE, 27, CONTROL, C)                                                                                            \
    X(MODEL, 28, CONTROL, W)                                                                                           \
    X(MODEL_REPLY, 29, CONTROL, C)                                                                                     \
    X(FETCH, 30, BULK, W)                                                                                              \
    X(FETCH_REPLY, 31, BULK, C)                                                                                        \
    X(SAVES, 32, CONTROL, W)

enum msg_type {
#define MSG_ENUM(name, number, lane, direction) MSG_##name = (number),
    MSG_MAP(MSG_ENUM)
#undef MSG_ENUM
};

/* Why a connection is refused (REFUSE) or a delta rejected (REJECT). */
enum refuse_code {
    REFUSE_VERSION = 1,     /* protocol version */
    REFUSE_RUN,             /* the worker belongs to another run */
    REFUSE_CONFIG,          /* shared configuration differs: text names the keys */
    REFUSE_LAYOUT,          /* tensors differ: text names the first one */
    REFUSE_DATASET,         /* training or validation tokens differ */
    REFUSE_FULL,            /* max_workers reached */
    REFUSE_NAME,            /* another live worker has this name */
    REFUSE_UNKNOWN_SESSION, /* not joined, or the coordinator restarted: send HELLO again */
    REFUSE_GONE,            /* the requested object no longer exists: join again */
    REFUSE_MALFORMED,       /* the message does not decode */
    REFUSE_KEY,             /* the key of the connection may not send this: revoked, unknown, or of another worker */
    REFUSE_SPENT,           /* the budget of the run is used up: the coordinator ends, and so does the worker */
};
enum reject_code {
    REJECT_LATE = 1,   /* the round closed without it */
    REJECT_STALE,      /* base version too old (outer.max_staleness) */
    REJECT_BASE,       /* computed from a version the policy does not merge */
    REJECT_NONFINITE,  /* decodes to NaN, infinity or a number of 2^64 or more */
    REJECT_CORRUPT,    /* CRC or codec check failed */
    REJECT_UNASSIGNED, /* this worker holds no assignment for this round */
    REJECT_LAST = REJECT_UNASSIGNED
};

/* Content of a delta. PARAMETERS: theta_now itself; requires a lossless codec and base = current version. The
 * coordinator subtracts in double precision, so one worker alone equals plain training bit for bit. */
enum delta_form { DELTA_PSEUDO_GRADIENT, DELTA_PARAMETERS, DELTA_GRADIENT };
/* Content of an update: an increment to add, or the new parameters themselves (lossless codec). */
enum update_form { UPDATE_INCREMENT, UPDATE_PARAMETERS };

enum worker_state {
    WORKER_CATCHING_UP, /* loading a snapshot or replaying updates */
    WORKER_READY,       /* nothing to do */
    WORKER_TRAINING,
    WORKER_SENDING, /* uploading its delta */
    WORKER_WAITING, /* its delta is delivered; waiting for the update that names it */
    WORKER_EVALUATING,
    WORKER_FINISHED,
};

/* INITIAL: the model that a run of model.family external starts from (wire/initial.h). */
enum object_kind { OBJECT_DELTA, OBJECT_UPDATE, OBJECT_SNAPSHOT, OBJECT_INITIAL };
/* What a follower reads. MODEL: the description of the model (wire/model_object.h). FILE: a file that it lists. */
enum fetch_kind { FETCH_UPDATE, FETCH_SNAPSHOT, FETCH_MODEL, FETCH_FILE };

struct wire_range {
    uint64_t start, count; /* training: positions in the endless sample order, epoch = position / n_samples */
};

struct msg_hello {
    uint8_t uuid[WIRE_UUID];   /* identity of the worker: the first bytes of its public key */
    uint8_t run_id[WIRE_UUID]; /* run its saved state belongs to; zeros: none */
    char name[WIRE_NAME_MAX];  /* unique in the run; shown everywhere */
    char software[WIRE_NAME_MAX];
};

struct msg_config {
    uint8_t run_id[WIRE_UUID];
    uint64_t config_hash; /* config_run_hash */
    const char *text;     /* shared configuration, YAML; borrowed, terminated */
};

struct wire_version {
    uint64_t version, hash; /* hash_floats of the fragment at that version */
};

struct msg_join {
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    uint64_t config_hash, layout_hash;
    uint64_t train_hash, val_hash;       /* fingerprints of the token shards */
    uint64_t train_samples, val_samples; /* windows of block_size tokens */
    uint32_t sample_tokens;              /* block_size */
    uint32_t ranks;
    char devices[WIRE_NAME_MAX];
    const uint8_t *layout; /* layout_encode bytes; borrowed */
    size_t layout_size;
    const char *model_config; /* config.json text; borrowed, terminated */
    bool frozen_any;          /* the frozen tensors may differ from the run's */
    bool frozen_whole;        /* checkpoints hold them, too: those of the first JOIN */
    const uint8_t *frozen;    /* frozen_encode bytes; borrowed */
    size_t frozen_size;       /* 0: none */
    /* versions in the worker's saved state: n_held = number of fragments, or 0 without one */
    uint32_t n_held;
    struct wire_version held[LAYOUT_FRAGMENTS_MAX];
    uint64_t round; /* round in progress or with a finished delta; UINT64_MAX: none */
};

struct msg_welcome {
    uint64_t session;
    uint32_t worker_id; /* merge order; UINT32_MAX until the first round opens: ASSIGN gives it then */
    uint32_t heartbeat_ms;
    uint32_t n_fragments;
    bool resume;     /* the versions in JOIN are on this run's log: continue from them */
    bool shorter;    /* they are, but the snapshot has fewer bytes than the updates: load it, keep the residual */
    bool taken_back; /* neither: the run was taken back, so the worker's optimizer belongs to rounds that are no more */
    uint64_t assigned; /* barrier: round of this worker's open assignment, + 1; 0: none. ASSIGN repeats it */
    struct wire_version current[LAYOUT_FRAGMENTS_MAX];
    struct wire_version snapshot[LAYOUT_FRAGMENTS_MAX]; /* newest snapshot, to load otherwise; the worker may compute
                                                           version 0 from the layout and run.seed if the hash agrees */
};

struct msg_refuse {
    uint16_t code; /* enum refuse_code */
    char text[WIRE_TEXT_MAX];
};

struct msg_bind {
    uint64_t session;
};

struct msg_heartbeat {
    uint64_t session;
    uint64_t sent_us; /* the worker's clock, echoed in the answer */
    uint64_t round;
    uint32_t step, steps;          /* of this round */
    uint8_t state;                 /* enum worker_state */
    double step_s;                 /* compute seconds of one inner step, smoothed; 0 = not known */
    uint64_t eval_id;              /* evaluation in progress or finished last; 0 = none */
    uint64_t train_hash, val_hash; /* of all tokens of the shards; 0: not known yet */
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    uint64_t received, expected; /* bytes of the objects that it is downloading; expected 0: none, or not known yet */
    uint64_t rate;               /* of its downloads, bytes per second, smoothed; 0: not measured */
    uint32_t workers;            /* 1; of a region: workers that wait for its next assignment */
};

struct msg_heartbeat_ack {
    uint64_t sent_us;
    char waiting_for[WIRE_TEXT_MAX]; /* what the run waits for, as text; may be empty */
};

struct msg_assign {
    uint64_t round;     /* barrier: of the run; async: of this worker. Unique and increasing per worker */
    uint32_t worker_id; /* of the receiver: WELCOME may precede the ids; updates name deltas by it */
    uint32_t steps;     /* inner steps to take (H) */
    double step0;       /* schedule position of the first of them */
    double step_rate;   /* schedule steps per inner step (1 with a fixed set of workers) */
    double lr;          /* mean learning rate of the workers in the newest merged round; NaN: not known */
    double epoch;       /* epochs of training data that earlier work got; 0: without data; NaN: not known */
    uint32_t n_ranges;  /* samples, used in order; their counts add up to steps * batch_size * grad_accum (* workers) */
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* barrier: start from exactly these; async: from these or later */
};

struct msg_eval {
    uint64_t eval_id;      /* > 0, increasing */
    uint64_t start, count; /* validation windows, in file order */
    uint64_t part;         /* windows of one part; the last part may be shorter */
    uint64_t wanted;       /* bit i: evaluate part i; at least one */
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* evaluate exactly these */
};

struct wire_part {
    double sum; /* nats, summed over tokens; NaN or infinite: the parameters give no finite loss */
    uint64_t tokens;
};

struct msg_eval_result {
    uint64_t session, eval_id, start, count;
    double loss_sum; /* of all its parts */
    uint64_t tokens; /* 0: not evaluated, another worker must do it */
    uint32_t n_parts;
    struct wire_part parts[WIRE_PARTS_MAX]; /* the wanted ones, in order */
};

struct msg_offer {
    uint64_t session, round;
    uint32_t fragment;
    uint8_t form;          /* enum delta_form */
    uint64_t base_version; /* version of the fragment training started from */
    uint64_t bytes;        /* of the encoded payload */
    uint32_t crc;          /* crc32c of the encoded payload */
    uint64_t tokens;       /* tokens trained on: the weight of the delta */
    uint32_t steps;        /* inner steps taken */
    double loss_sum;       /* training loss, nats, summed over tokens; NaN: not known */
    float norm;            /* L2 norm of the delta, with its residual if the program adds to it (outer_model.change) */
    uint64_t compute_us;
};

struct msg_credit {
    uint64_t round;
    uint32_t fragment;
    uint64_t have; /* bytes the coordinator holds from the start; = bytes: delivered (or merged long ago) */
    uint64_t upto; /* the worker may send bytes below this offset */
};

struct msg_reject {
    uint64_t round;
    uint32_t fragment;
    uint16_t code; /* enum reject_code */
    char text[WIRE_TEXT_MAX];
};

struct msg_get {
    uint64_t session;
    uint8_t kind; /* OBJECT_UPDATE or OBJECT_SNAPSHOT */
    uint32_t fragment;
    uint64_t version;
    uint64_t offset, length; /* an update that does not exist yet: answered when it does */
};

struct msg_chunk {
    uint8_t kind; /* enum object_kind */
    uint32_t fragment;
    uint64_t key; /* round of a delta, version of an update or snapshot, msg_upload.upload of an initial model */
    uint64_t offset, total;
    uint32_t crc; /* crc32c of these bytes */
    const uint8_t *data;
    size_t size; /* 1 .. WIRE_CHUNK_MAX */
};

#define METRICS_UNKNOWN (-1.0f)

struct metrics_step {
    uint64_t round;
    uint32_t step;   /* in the round, from 0 */
    double position; /* schedule position */
    float loss;      /* nats per token; NaN or infinity once training diverged (JSON has neither) */
    float lr;        /* or METRICS_UNKNOWN */
    float grad_norm; /* or METRICS_UNKNOWN; NaN or infinity: the step was skipped */
    uint64_t tokens;
    uint32_t step_us; /* 0: not known, or more than 32 bits hold, 71 minutes */
    uint64_t age_us;  /* from the end of the step to this message */
};

struct msg_metrics {
    uint64_t session;
    uint64_t bytes_up, bytes_down; /* of this worker process, on both sockets */
    /* the round finished last: seconds; round = UINT64_MAX when there is nothing to report */
    uint64_t round;
    float compute_s, compress_s, send_s, wait_s, apply_s;
    uint32_t n_steps;
    struct metrics_step steps[WIRE_METRICS_MAX];
};

struct msg_leave {
    uint64_t session;
    bool finished; /* the run is over for this worker; false: it stops and may come back */
    char text[WIRE_TEXT_MAX];
};

struct msg_done {
    uint32_t n_fragments;
    struct wire_version final[LAYOUT_FRAGMENTS_MAX];
    char text[WIRE_TEXT_MAX];
};

struct msg_status_reply {
    const char *json; /* borrowed, terminated */
};

/* Sent with the secret of the join line, by a worker whose key the coordinator does not know yet. */
struct msg_enrol {
    uint8_t key[WIRE_KEY]; /* its public key */
    char name[WIRE_NAME_MAX];
};

struct msg_enrolled {
    uint8_t key[WIRE_KEY]; /* of ENROL */
};

/* The run has no model yet. The answer to JOIN: send the initial model, or wait. */
struct msg_upload {
    uint64_t upload;          /* key of the CHUNKs; 0: another worker uploads it, send JOIN again later */
    uint64_t have, upto;      /* bytes received from the start; bytes below `upto` may be sent */
    char text[WIRE_TEXT_MAX]; /* what the worker waits for if upload is 0 */
};

/* A measurement of the link, without a session. */
struct msg_probe {
    uint64_t id;
    uint32_t want;       /* bytes of the reply */
    const uint8_t *data; /* bytes that only fill the link; borrowed */
    size_t size;         /* 0 .. WIRE_PROBE_MAX */
};

struct msg_probe_reply {
    uint64_t id;     /* of PROBE */
    uint32_t wait_s; /* no measurement now, but in so many seconds; 0: measured */
    const uint8_t *data;
    size_t size; /* 0 .. WIRE_PROBE_MAX */
};

/* A warning about the training of the run. */
/* How often a worker saves its state (checkpoint.worker_every other than 1). */
struct msg_saves {
    uint64_t session;
    uint32_t every; /* rounds between two saves */
    uint32_t worst; /* a kill costs at most the training of so many rounds; 0: nothing */
    uint64_t round; /* of the newest save on its disk; UINT64_MAX: none */
};

struct msg_note {
    char text[WIRE_TEXT_MAX];
};

/* The newest model of the run, for a follower. */
struct msg_model_reply {
    uint8_t run_id[WIRE_UUID];
    char run[WIRE_NAME_MAX]; /* its name */
    uint64_t round, rounds;  /* merged, and of how many */
    bool done;               /* the run is over: this model is its last */
    uint64_t snapshot_round; /* of the newest snapshot */
    uint64_t bytes;          /* of the description of the model; 0: there is no model yet */
    uint32_t n_fragments;
    struct wire_version current[LAYOUT_FRAGMENTS_MAX]; /* after `round` */
    struct wire_version snapshot[LAYOUT_FRAGMENTS_MAX];
    char waiting_for[WIRE_TEXT_MAX];
};

/* A follower reads a part of an object, without a session. */
struct msg_fetch {
    uint64_t id;
    uint8_t kind;   /* enum fetch_kind */
    uint32_t index; /* fragment of an update or snapshot, number of a file */
    uint64_t version;
    uint64_t offset;
    uint32_t want; /* bytes of the reply */
};

struct msg_fetch_reply {
    uint64_t id;      /* of FETCH */
    uint32_t wait_ms; /* 0: answered; otherwise workers use the link: ask again in so many milliseconds */
    uint64_t total;   /* bytes of the object; 0 with wait_ms 0: it does not exist */
    const uint8_t *data;
    size_t size; /* fewer than wanted: the object ends */
};

struct msg {
    enum msg_type type;
    union {
        struct msg_hello hello;
        struct msg_config config;
        struct msg_join join;
        struct msg_welcome welcome;
        struct msg_refuse refuse;
        struct msg_bind bind;
        struct msg_heartbeat heartbeat;
        struct msg_heartbeat_ack heartbeat_ack;
        struct msg_assign assign;
        struct msg_eval eval;
        struct msg_eval_result eval_result;
        struct msg_offer offer;
        struct msg_credit credit;
        struct msg_reject reject;
        struct msg_get get;
        struct msg_chunk chunk;
        struct msg_metrics metrics;
        struct msg_leave leave;
        struct msg_done done;
        struct msg_status_reply status_reply;
        struct msg_enrol enrol;
        struct msg_enrolled enrolled;
        struct msg_upload upload;
        struct msg_probe probe;
        struct msg_probe_reply probe_reply;
        struct msg_note note;
        struct msg_saves saves;
        struct msg_model_reply model_reply;
        struct msg_fetch fetch;
        struct msg_fetch_reply fetch_reply;
    };
};

/* The number of parts of `count` windows. part 0: UINT64_MAX. */
static inline uint64_t msg_eval_parts(uint64_t count, uint64_t part)
{
    return part ? count / part + (count % part > 0) : UINT64_MAX;
}

/* msg_eval.wanted for all of n parts. n: at most WIRE_PARTS_MAX. */
static inline uint64_t msg_eval_all(uint64_t n)
{
    return n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
}

/* "HELLO"; "?" for an unknown number. */
const char *msg_name(enum msg_type type);
enum wire_lane msg_lane(enum msg_type type);
/* Bytes msg_encode would write, header included; never above WIRE_HEADER + WIRE_BODY_MAX for a valid message, 0 for one
 * with a field over its limit. */
size_t msg_encoded_size(const struct msg *m);
/* Header (magic, version, type, body length, CRC) and body. LIMIT when cap is too small; INVALID for everything
 * msg_decode would call CORRUPT: a field over its limit, text that is not clean UTF-8, a chunk whose crc is not that of
 * its data. */
enum status msg_encode(const struct msg *m, uint8_t *dst, size_t cap, size_t *size_p) MUST_CHECK;
/* The same for a CHUNK whose m->size bytes of data the caller has put at dst + MSG_CHUNK_HEAD: sets m->data and m->crc,
 * with one pass over the data. INVALID: a field is over its limit. */
enum { MSG_CHUNK_HEAD = WIRE_HEADER + 37 };
enum status msg_encode_chunk(struct msg_chunk *m, uint8_t *dst, size_t *size_p) MUST_CHECK;
/* Decode one whole message. Pointers in m borrow from src. CORRUPT with a reason in err for anything malformed: short,
 * long, CRC, unknown type, counts over their limits, NaN where a number is needed, strings with control characters;
 * UNSUPPORTED for another protocol version, except that REFUSE is decoded in every version. Nothing is allocated. */
enum status msg_decode(struct msg *m, const uint8_t *src, size_t size, struct err *err) MUST_CHECK;

#endif
