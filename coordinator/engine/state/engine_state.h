/* The state of the engine, private to coordinator/engine/ and coordinator/admission/, and what all their parts use.
 * Times are microseconds of the caller's clock. A part calls only parts further down in this list.
 *
 *     engine_round.c    writing records, and the round event that follows from them
 *     engine_alert.c    alerts: starts, ends, and the rules that look at a finished round
 *     engine_notes.c    warnings that hold until their cause ends
 *     engine_effects.c  clock, sends, refusals, events
 *     engine_state.c    questions about the state
 *     session.c         the table of sessions
 *     chunk_cache.c     encoded chunks of downloads */
#ifndef COORDINATOR_ENGINE_STATE_H
#define COORDINATOR_ENGINE_STATE_H

#include "coordinator/engine/state/chunk_cache.h"
#include "coordinator/engine/state/engine_io.h"
#include "coordinator/engine/state/session.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/limits/alerts.h"
#include "coordinator/limits/rate.h"
#include "coordinator/limits/repeat.h"
#include "coordinator/round/pace.h"
#include "wire/initial.h"

enum {
    ENGINE_HEARTBEAT_MS = 1000,
    ENGINE_SILENT_BEATS = 3,
    ENGINE_SILENT_US = ENGINE_SILENT_BEATS * ENGINE_HEARTBEAT_MS * 1000,
    ENGINE_PAUSE_US = 2000000,  /* a longer gap between calls means that this process did not run */
    ENGINE_LINGER_US = 5000000, /* wait after the end, for workers that do not know it yet */
    ENGINE_LAST_US = 30000000,  /* a worker without progress for this long ends without the last update */
    ENGINE_REFUSALS = 64,
    ENGINE_REFUSAL_US = 60000000, /* the same refusal is logged again after this */
    ENGINE_PROBE_US = 1500000, /* after this silence the engine sends HEARTBEAT_ACK, which finds closed connections */
    ENGINE_PROBE_EVERY_US = 1000000,
    ENGINE_EVICT_MIN_US = 10000000,        /* the least eviction time; half of it for a closed connection */
    ENGINE_EVICT_UNMEASURED_US = 60000000, /* eviction time before rounds are measured: workers may be starting */
    ENGINE_KNOCK_US = 20000000,            /* a worker that waits to join says HELLO again within this */
    ENGINE_BEHIND_MAX = 32,                /* the most checkpoints beyond checkpoint.keep that late members can keep */
    ENGINE_LOSSES = 8,
    ENGINE_OTHERS = 256,        /* workers that get answers while they wait for the model; others repeat JOIN */
    ENGINE_DATA_VOTES = 8,      /* different hashes of one data set that are counted */
    ENGINE_NOTICE_US = 5000000, /* a longer wait is logged, before round times are measured */
    ENGINE_NOTE_MAX = 512,
};

/* What a share waits for. */
enum eval_stage {
    EVAL_FIRST,  /* the sum over all its windows */
    EVAL_SECOND, /* a sample of its parts, by another worker */
    EVAL_THIRD   /* the two differ: the sample, by a third worker */
};

struct eval_share {
    uint64_t start, count, part; /* validation windows, and windows of one part */
    enum eval_stage stage;
    bool done;
    uint64_t id;                 /* of the EVAL message of this stage; 0: not assigned yet */
    uint64_t holder;             /* session that computes it; 0: none */
    uint64_t given_us, asked_us; /* times of that EVAL and of the start of this stage; 0: none */
    uint64_t wanted, n;          /* parts of this stage, as bits, and their windows */
    bool checked;                /* a second worker has evaluated its sample */

    uint32_t first, second; /* members that answered these stages */
    double loss_sum;        /* the first answer */
    uint64_t tokens;        /* of the first answer */
    struct wire_part parts[WIRE_PARTS_MAX];
    struct wire_part checks[WIRE_PARTS_MAX]; /* the second answer: those of the sample */
};

struct eval_run {
    bool open, final, disputed;
    uint64_t begun_us;
    uint64_t serial;        /* counts evaluations */
    uint64_t round, tokens; /* rounds done and tokens merged at these versions */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    struct eval_share *shares; /* [cap] */
    uint32_t n, cap;
    bool changed;              /* an answer, or a worker's state: look at the shares now */
    uint64_t sessions;         /* sessions.changes at the last look: the same */
    uint64_t look_us;          /* time of the next look without a change */
    struct deadline window_ns; /* measured time of a share, over its windows */
};

/* The tokens of all workers, at the last count and since. */
struct token_count {
    uint64_t merged, tokens;     /* round.tokens then; with the steps that are not merged */
    uint64_t sessions, again_us; /* sessions.changes then; time of the next count */
};

/* A finished round whose event waits for its evaluation. */
struct round_info {
    bool pending;
    struct engine_event_round event;
    uint64_t up_us, down_us; /* event.link_s; the slowest worker may be gone when the line is written */
    char slowest[WIRE_NAME_MAX], norm_worker[WIRE_NAME_MAX], down[64]; /* strings of the event */
    uint64_t stale[ROUND_STALENESS];
};

/* A region: what it knows of upstream. Not journaled. */
struct engine_region {
    bool done;      /* the run upstream is over */
    uint64_t named; /* the last round, + 1, whose update upstream merged this region's delta into; 0: none */
    bool evaluated; /* `result` answers the last evaluation that upstream asked for */
    struct msg_eval_result result;
    char waits[WIRE_TEXT_MAX]; /* what this region waits for, as a worker of upstream */
};

/* A text that was logged. */
struct logged_text {
    uint64_t hash, logged_us; /* hash of the text; time of the line */
};

/* Members with the same data. */
struct data_vote {
    uint64_t hash;
    uint32_t members;
};

/* A checkpoint, or a segment before the newest one, that recovery found damaged and does without. */
struct damaged_file {
    bool is_segment;
    uint64_t number; /* segment or round */
    char why[240];
};

enum { ENGINE_DAMAGED_MAX = 8 };

/* The losses of the latest evaluations that were not jumps. Not journaled. */
struct loss_watch {
    double losses[ENGINE_LOSSES]; /* ring */
    uint32_t n, next;
    uint64_t round; /* of the last one */
};

/* The upload of the initial model. */
struct engine_initial {
    uint64_t id;           /* of msg_upload; 0: none runs */
    struct msg_join *join; /* of the uploader; owned, in one block with all that it points to */
    uint64_t control, heard_us;
    uint64_t most, most_frozen; /* largest model.safetensors and frozen.safetensors; 0: it has none */
    uint64_t total, have, upto; /* bytes of the object; total 0: its head has not arrived */
    uint64_t told;              /* `have` when the credit grew last */
    struct initial_head head;
    uint32_t file; /* the file being written, and its missing bytes */
    uint64_t left;
    uint64_t others[ENGINE_OTHERS]; /* [n_others] control peers of other workers that wait for the model */
    uint32_t n_others;
};

/* What the alerts follow. Not journaled. */
struct engine_watch {
    uint64_t at_us, rounds;         /* time of the last look, 0: none; rounds done then */
    double round_s, workers_s;      /* since the last round ended: work was open; the run waited for workers */
    double eval_s;                  /* of the open evaluation, while the run waits for it */
    bool late[3];                   /* each of these times is too long: ALERT_NO_ROUND */
    uint64_t disk_us;               /* time of the next look at the disk */
    struct alert_losses losses;     /* of training */
    bool loss_jumps;                /* alert_loss fires for them */
    char loss_text[ALERT_TEXT_MAX]; /* of the loss that jumped */
    /* Ring: refused deltas, without the late ones, at the end of the latest rounds and of the one before them. */
    uint64_t refused[ALERT_ROUNDS + 1];
    uint32_t next;                    /* the oldest of them */
    char refused_name[WIRE_NAME_MAX]; /* the worker of the last one */
};

/* run.max_hours and run.max_gb. */
struct engine_budget {
    bool reached;               /* no further round opens */
    uint64_t reached_us;        /* time of that */
    char text[ENGINE_NOTE_MAX]; /* the limit that was reached, and how to continue */
};

/* Programs that follow the run without a place in it (engine_follow.c). Not journaled. */
struct engine_follow {
    uint64_t round; /* the last round that this process merged, with the versions after it; 0: none */
    struct wire_version versions[LAYOUT_FRAGMENTS_MAX];
    uint8_t *object; /* [size] the description of the model (wire/model_object.h), made for the first follower; owned */
    size_t size;
    uint64_t heard_us;          /* time of the last message of a follower; 0: none */
    uint64_t moved, credit;     /* bytes of workers at the last look; bytes that followers may get meanwhile */
    uint64_t rate, rate_us;     /* bytes that followers may get now without more time; when it was counted */
    uint64_t busy_us;           /* time of the last look at the sessions */
    bool busy;                  /* it saw a transfer of a worker */
    uint64_t needed, needed_us; /* the oldest checkpoint that a follower reads, or the updates after it, and when */
};

/* Warnings that hold until their cause ends (engine_notes.c). */
enum engine_note { ENGINE_NOTE_OVERSHOOT, ENGINE_NOTE_AGREEMENT, ENGINE_NOTE_RATES, ENGINE_NOTES };

struct engine {
    struct config config;       /* of the run: RUN records set the keys that belong to it */
    struct config wanted;       /* as the caller gave it */
    const char *const *changes; /* [n_changes] of --change; borrowed */
    size_t n_changes;
    struct engine_io io;
    struct store *store; /* borrowed */
    const char *init_dir;
    char config_text[WIRE_CONFIG_MAX];
    uint64_t config_hash;

    struct engine_initial initial;
    struct engine_region region;
    struct engine_follow follow;
    struct ledger ledger;
    struct session_table sessions; /* empty before the first JOIN */
    struct eval_run eval;
    struct token_count tokens;
    struct checkpoint_info *kept; /* [n_kept] existing snapshots, oldest first */
    size_t n_kept, cap_kept;
    struct damaged_file damaged[ENGINE_DAMAGED_MAX]; /* [n_damaged] */
    size_t n_damaged;
    struct ledger_lost lost; /* updates in a damaged tail of the journal */
    size_t behind_most;      /* checkpoints beyond checkpoint.keep that late members can keep */
    bool collect_due;        /* more snapshots than checkpoint.keep exist, but a member needs the oldest */
    bool sweep_due;          /* a crash may have left segments that no checkpoint needs */
    bool stuck;              /* a failed removal was logged */
    struct loss_watch losses;
    uint64_t kept_round; /* the newest checkpoint before the loss jumped; UINT64_MAX: the loss has not jumped */
    bool kept_apart;     /* that checkpoint is out of the run (checkpoint_keep) */

    uint64_t entropy, draws, eval_ids;
    uint64_t now_us, start_us;
    struct record_clock clock_base; /* totals of earlier processes */
    bool restarted, finished;
    uint64_t recovered; /* journal records that recovery has read */
    uint64_t done_us;
    bool found_done;                 /* the run was over when this process started */
    uint32_t n_finished;             /* workers that left after the end of the run */
    uint64_t retry_us;               /* next try of a full bulk lane; UINT64_MAX: no lane is full */
    uint64_t evict_us;               /* time of the last engine_evict */
    uint64_t watch_us;               /* when engine_tick looks at all sessions again; 0: at once */
    uint64_t watch_limit_us;         /* the eviction time of engine_watch_plan */
    uint64_t collect_us;             /* when checkpoints are collected again, if collect_due */
    uint64_t knocked_us;             /* time of the last HELLO; 0: none */
    uint64_t updated_us;             /* time of the last update; 0: none by this process */
    uint64_t progress_us, notice_us; /* time of the last progress; time of the next "waiting for" line */

    struct data_vote data_votes[2][ENGINE_DATA_VOTES]; /* training, validation; in order of arrival */

    struct round_info info;
    uint64_t rounds_reported; /* during recovery: from engine_options; then 0 */
    uint64_t seen_rounds;     /* rounds done at the last record */
    uint64_t rounds_begun;    /* barrier: the newest opened round, from 1 */
    uint64_t round_begun_us;  /* record_clock time of its opening; async: of the end of the previous round */
    char slowest[WIRE_NAME_MAX];
    struct pace pace;
    double train_loss;               /* of the last round; NaN: none */
    uint64_t stale[ROUND_STALENESS]; /* async: merged deltas of this process by staleness; the last: or more */
    char link_text[384];             /* the last LINK event, while transfers take most of a round */
    double norm_ratio;               /* largest of the round, as in engine_event_round; 0: unknown */
    char norm_worker[WIRE_NAME_MAX];
    struct outer_report outer_report;          /* of the running round */
    char notes[ENGINE_NOTES][ENGINE_NOTE_MAX]; /* "": does not hold */
    struct alerts alerts;
    struct engine_watch watch;
    struct engine_budget budget;
    uint32_t agreeing;                          /* rounds in a row whose deltas were nearly equal */
    uint64_t differing[2];                      /* sessions whose learning rates differ */
    struct logged_text logged[ENGINE_REFUSALS]; /* the latest logged refusals */
    uint64_t rejected[REJECT_LAST + 1];         /* refused deltas of this process, by enum reject_code */
    struct chunk_cache chunks;                  /* of downloads */
    float *floats;                              /* [DOWNLOAD_CHUNK bytes and 2 floats] of a snapshot */
    struct checkpoint_info fresh;               /* the snapshot in the spool */
    uint64_t fresh_us;                          /* time of its write; 0: none */

    struct rate_table rate;
    struct rate_needs rate_needs; /* of its limits */
    uint64_t speaker;             /* whose message was admitted last; 0: none */
    struct repeat repeat;         /* lines about workers */
    char *status_json;            /* the last answer to STATUS, or NULL */
    uint64_t status_us;           /* its time */
    char waiting[WIRE_TEXT_MAX];  /* the last text of engine_waiting_kept */
    uint64_t waiting_us;          /* its time; 0: none */
    uint64_t probing_until_us;    /* PROBE is answered until then; 0: no PROBE has come */
};

/* A loop over all sessions; s: the name of its variable. The body may remove s. */
#define for_each_session(e, s)                                                                                         \
    for (struct session *s = session_next(&(e)->sessions, NULL); s; s = session_next(&(e)->sessions, s))

/* The member of a session; NULL before the first round. */
struct member *engine_member(const struct engine *e, const struct session *s);
/* The session holds a share of the open evaluation. */
bool engine_eval_holds(const struct engine *e, const struct session *s);
/* The share that this session holds; NULL: none. */
struct eval_share *engine_eval_share(const struct engine *e, const struct session *s);
/* Workers can join and train: there is a model, and its parameters are here. */
bool engine_serves(const struct engine *e);
/* The newest snapshot; NULL before the first. */
const struct checkpoint_info *engine_newest(const struct engine *e);

#endif
