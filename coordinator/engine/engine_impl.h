/* Private to coordinator/engine/engine*.c: the engine's state and the functions that its parts share.
 *
 * A part calls only parts further down in this list.
 *
 *     engine.c            dispatch, time, and the steps after every event (pump)
 *     engine_start.c      create, recover, destroy
 *     engine_settings.c   settings of a run that continues
 *     engine_limits.c     which messages are read
 *     engine_access.c     keys, ENROL
 *     engine_presence.c   HEARTBEAT, LEAVE, eviction, revoked workers
 *     engine_dataset.c    hashes of the workers' data
 *     engine_report.c     status, waiting lines, summary
 *     engine_work.c       opening rounds, closing fragments, the end
 *     engine_gate.c       naming workers whose deltas are clipped, readmitting members
 *     engine_join.c       HELLO, JOIN, BIND
 *     engine_places.c     whose place a new worker gets
 *     engine_initial.c    upload of the model that a run starts from
 *     engine_model.c      the first JOIN: the run's model
 *     engine_data.c       deltas in, objects out
 *     engine_snapshot.c   snapshots for workers without a saved state
 *     engine_metrics.c    METRICS
 *     engine_eval.c       evaluations
 *     engine_eval_judge.c results of evaluations: refused, compared, disputed
 *     engine_checkpoint.c writing and removing checkpoints
 *     engine_round.c      writing records, and the round event that follows from them
 *     engine_session.c    heard, silent, ready
 *     engine_late.c       workers that lack updates
 *     engine_notes.c      warnings that hold until their cause ends
 *     engine_effects.c    clock, sends, refusals, events */
#ifndef COORDINATOR_ENGINE_IMPL_H
#define COORDINATOR_ENGINE_IMPL_H

#include "coordinator/engine/engine.h"
#include "coordinator/engine/session.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/ledger.h"
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
    ENGINE_LOSSES = 8,
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
    struct deadline window_ns; /* measured time of a share, over its windows */
};

/* A finished round whose event waits for its evaluation. */
struct round_info {
    bool pending;
    struct engine_event_round event;
    uint64_t up_us, down_us; /* event.link_s; the slowest worker may be gone when the line is written */
    char slowest[WIRE_NAME_MAX], norm_worker[WIRE_NAME_MAX], down[64]; /* strings of the event */
    uint64_t stale[ROUND_STALENESS];
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
    struct msg_join *join; /* of the uploader; owned with the three below */
    uint8_t *layout, *frozen;
    char *model_config;
    uint64_t control, heard_us;
    uint64_t most, most_frozen; /* largest model.safetensors and frozen.safetensors; 0: it has none */
    uint64_t total, have, upto; /* bytes of the object; total 0: its head has not arrived */
    struct initial_head head;
    uint32_t file; /* the file being written, and its missing bytes */
    uint64_t left;
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
    struct ledger ledger;
    struct session_table sessions; /* empty before the first JOIN */
    struct eval_run eval;
    struct checkpoint_info *kept; /* [n_kept] existing snapshots, oldest first */
    size_t n_kept, cap_kept;
    struct damaged_file damaged[ENGINE_DAMAGED_MAX]; /* [n_damaged] */
    size_t n_damaged;
    struct ledger_lost lost; /* updates in a damaged tail of the journal */
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
    struct outer_report outer_report;           /* of the running round */
    char notes[ENGINE_NOTES][ENGINE_NOTE_MAX];  /* "": does not hold */
    uint32_t agreeing;                          /* rounds in a row whose deltas were nearly equal */
    uint64_t differing[2];                      /* sessions whose learning rates differ */
    struct logged_text logged[ENGINE_REFUSALS]; /* the latest logged refusals */
    uint64_t rejected[REJECT_LAST + 1];         /* refused deltas of this process, by enum reject_code */
    uint8_t *chunk;                             /* [DOWNLOAD_CHUNK] */
    struct checkpoint_info fresh;               /* the snapshot in the spool */
    uint64_t fresh_us;                          /* time of its write; 0: none */

    struct rate_table rate;
    struct rate_needs rate_needs; /* of its limits */
    uint64_t speaker;             /* whose message was admitted last; 0: none */
    struct repeat repeat;         /* lines about workers */
    char *status_json;            /* the last answer to STATUS, or NULL */
    uint64_t status_us;           /* its time */
    uint64_t probing_until_us;    /* PROBE is answered until then; 0: no PROBE has come */
};

/* --- engine_effects.c --- */
uint64_t engine_draw(struct engine *e); /* never 0 */
struct record_clock engine_clock(const struct engine *e);
/* Sends. The caller may ignore AGAIN and CLOSED: the worker repeats its request. */
enum status engine_send(struct engine *e, uint64_t peer, enum wire_lane lane, const struct msg *m);
void engine_send_control(struct engine *e, const struct session *s, const struct msg *m);
/* True if this text was logged within the last minute; the call counts as logging it. */
bool engine_logged_recently(struct engine *e, const char *text);
/* Sends REFUSE and logs "refused NAME: TEXT", except for unknown sessions. name: the worker's, or NULL. */
void engine_refuse(struct engine *e, uint64_t peer, const char *name, enum refuse_code code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void engine_emit(struct engine *e, const struct engine_event *event);
/* worker: NULL if the event concerns no single worker. Repetitions within a second become one event with their count.
 */
void engine_emit_text(struct engine *e, enum engine_event_kind kind, const char *worker, const char *text);
/* Notes progress of the run: restarts the wait before the next "waiting for" line. */
void engine_progress(struct engine *e);

/* --- engine_notes.c --- */
/* Sends a warning about the training to all workers, which log it. */
void engine_tell(struct engine *e, const char *text);
/* The note holds, with this text. When it begins, it is logged, told to the workers, and becomes an event, unless it
 * was `told` by an earlier process. */
void engine_note(struct engine *e, enum engine_note note, bool told, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void engine_note_end(struct engine *e, enum engine_note note);
/* Follows the agreement of the deltas of a round (from 0); NaN: unknown. */
void engine_note_agreement(struct engine *e, uint64_t round, double agreement, bool told);
/* Takes the learning rate of a reported step. last: of its round; the rate is then compared with those of the others.
 */
/* Mean learning rate of the workers in the newest merged round before `round`; NaN: not known. async: of each worker's
 * last round. */
double engine_run_lr(const struct engine *e, uint64_t round);
/* Takes the learning rate of a reported step. last: of its round; the rate is then compared with those of the others.
 */
void engine_note_step(struct engine *e, struct session *s, const struct metrics_step *step, bool last);

/* --- engine_session.c --- */
/* Notes that a message of the session's worker arrived, on any lane. */
void engine_hear(struct engine *e, struct session *s);
bool engine_is_silent(const struct engine *e, const struct session *s);
/* At least one worker is connected and sends messages, or tries to join. Otherwise no eviction time runs: no worker
 * waits, and those of a run that was stopped overnight start one after the other. */
bool engine_anyone_here(const struct engine *e);
/* The session holds a share of the open evaluation. */
bool engine_eval_holds(const struct engine *e, const struct session *s);
/* An update exists that the worker has not applied yet, by its last heartbeat. */
bool engine_lacks_update(const struct engine *e, const struct session *s);
/* Recomputes whether the member can take work; called after a change of work, evaluation or state. */
void engine_refresh_ready(struct engine *e, struct session *s);
/* The member's last deltas were refused: it gets no work until an hour has passed, or the operator readmits it. */
bool engine_is_aside(const struct engine *e, const struct member *m);
/* Writes "put aside for 3600 s after 3 refused deltas: REASON"; returns out. */
const char *engine_aside_text(const struct engine *e, const struct member *m, char *out, size_t cap);
/* Silence after which the member of this session is evicted; s NULL: it has no session. Half of the usual limit if its
 * connection closed: its process ended, and a restart takes a few seconds. coordinator.evict_after_s sets both. */
uint64_t engine_evict_after_us(const struct engine *e, const struct session *s);
/* The rule behind that limit, for log lines; it names coordinator.evict_after_s. */
const char *engine_evict_rule(const struct engine *e, const struct session *s);

/* --- engine_late.c --- */
struct engine_lack {
    uint64_t updates, bytes; /* updates of the fragment that lacks most; bytes of all fragments */
};
/* What is missing at versions[n] of the first n fragments. */
struct engine_lack engine_lack_of(const struct engine *e, const uint64_t *versions, uint32_t n);
/* The median time of a round; before it is known, the time that the running one takes already. */
uint64_t engine_usual_round_us(const struct engine *e);
/* The worker has no part in the rounds, and lacks more updates than it can load while one round runs. */
bool engine_is_late(const struct engine *e, const struct session *s);
/* Writes "80 updates behind, 9 min 12 s at 1 Mbit/s; a round takes 300 ms: this link cannot keep up"; returns out. */
const char *engine_late_text(const struct engine *e, const struct session *s, char *out, size_t cap);

/* --- engine_round.c --- */
/* ledger_write, then engine_round_follow. */
enum status engine_write(struct engine *e, enum record_type type, const uint8_t *body, size_t size,
                         const struct store_part *payload, struct err *err) MUST_CHECK;
/* Follows a record that was folded in, live or in recovery. body: used for DELTA only. */
void engine_round_follow(struct engine *e, uint16_t type, const uint8_t *body, size_t size);
/* Emits the pending round event, if any. eval_s: seconds of its evaluation; NaN: unknown. */
void engine_flush_round(struct engine *e, double val_loss, double eval_s);
/* Seconds until the end of the run; NaN: unknown. */
double engine_eta_s(const struct engine *e);

/* --- engine_checkpoint.c --- */
enum status engine_checkpoint(struct engine *e, struct err *err) MUST_CHECK;
/* Writes a checkpoint if checkpoint.every demands it, no part is held and no round event is pending. */
enum status engine_checkpoint_due(struct engine *e, struct err *err) MUST_CHECK;
/* Grows e->kept for one more snapshot. */
enum status engine_kept_room(struct engine *e, struct err *err) MUST_CHECK;
/* The newest snapshot; NULL before the first. */
const struct checkpoint_info *engine_newest(const struct engine *e);
/* Follows the validation loss. When it jumps, the newest checkpoint before the jump is kept until it is back. */
void engine_watch_loss(struct engine *e, uint64_t round, double loss);
/* Removes checkpoints beyond checkpoint.keep that no member needs; keeps at most BEHIND_MAX more. */
enum status engine_collect(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_eval.c --- */
enum status engine_eval_step(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
void engine_on_eval_result(struct engine *e, struct session *s, const struct msg_eval_result *m);
/* The next round cannot open before this evaluation ends. */
bool engine_eval_blocks(const struct engine *e);
/* Sends EVAL again to an idle worker that holds a share. */
void engine_eval_remind(struct engine *e, const struct session *s);
/* async: makes the worker whose delta was merged last the evaluator. */
void engine_eval_prefer(struct engine *e, uint64_t session);
bool engine_eval_complete(const struct engine *e);
/* Periodic evaluations that are due in the first `rounds` rounds: train.eval_every. */
uint64_t engine_eval_points(const struct engine *e, uint64_t rounds);

/* --- engine_eval_judge.c --- */
/* Takes a valid message of the share's holder: advances the share, or refuses the result. */
void engine_eval_answer(struct engine *e, struct eval_share *share, const struct session *s,
                        const struct msg_eval_result *m);
/* No worker can give the second or third opinion: the share is done. */
void engine_eval_settle(struct engine *e, struct eval_share *share);
/* True: an answer of this member is part of the comparison, so it cannot be the next judge. */
bool engine_eval_answered(const struct eval_share *share, uint32_t member);

/* --- engine_snapshot.c --- */
/* Writes a fresh snapshot for this worker if it saves bytes. Without disk space it keeps the older one. */
void engine_snapshot_refresh(struct engine *e, const struct session *joiner);
/* A worker that holds versions[n_fragments] loads fewer bytes with a snapshot than with the updates since them. */
bool engine_snapshot_is_shorter(const struct engine *e, const struct session *s, const uint64_t *versions);
/* An update was requested. True: it is not sent, because a late worker gets a newer snapshot, now or later. */
bool engine_snapshot_renews(struct engine *e, struct session *s);
/* The newest snapshot that this worker may start from: the fresh one or a checkpoint. */
const struct checkpoint_info *engine_snapshot_newest(const struct engine *e, const struct session *joiner);
/* The snapshot that has this version of a fragment; NULL: none. */
const struct checkpoint_info *engine_snapshot_find(const struct engine *e, uint32_t fragment, uint64_t version);
/* Reads floats [first, first + count) of its theta. */
enum status engine_snapshot_theta(struct engine *e, const struct checkpoint_info *info, uint64_t first, float *dst,
                                  uint64_t count, struct err *err) MUST_CHECK;

/* --- engine_metrics.c --- */
void engine_on_metrics(struct engine *e, struct session *s, const struct msg_metrics *m);
/* Emits the number of steps that this worker skipped since the last such event, if any. */
void engine_emit_skips(struct engine *e, struct session *s);

/* --- engine_limits.c --- */
/* Computes the limits from the run's model and settings. */
void engine_limits_size(struct engine *e);
/* A worker joined: allows the messages of its download of snapshots and updates. */
void engine_limits_grant(struct engine *e, const struct msg_welcome *m, const struct msg_join *join);
/* Logs ignored messages and repeated events, once a second. */
void engine_limits_report(struct engine *e);
uint64_t engine_limits_deadline_us(const struct engine *e); /* when it has something to log; UINT64_MAX: never */
void engine_on_probe(struct engine *e, uint64_t peer, const struct msg_probe *m);

/* --- engine_data.c --- */
enum status engine_on_offer(struct engine *e, struct session *s, const struct msg_offer *m, struct err *err) MUST_CHECK;
enum status engine_on_chunk(struct engine *e, uint64_t peer, const struct msg_chunk *m, struct err *err) MUST_CHECK;
/* Journals that a part is dropped. fragment UINT32_MAX: all parts that have not arrived. */
enum status engine_drop(struct engine *e, const struct member *m, uint32_t fragment, uint16_t code,
                        struct err *err) MUST_CHECK;
/* Sends REJECT, after which the worker drops its delta. Syncs the journal first: after a power cut the coordinator
 * would wait for the dropped delta. */
enum status engine_reject(struct engine *e, const struct session *s, uint64_t round, uint32_t fragment, uint16_t code,
                          const char *reason, struct err *err) MUST_CHECK;
/* Refuses one part of a member's open assignment, whether it has arrived or not: drops it in the journal, sends REJECT
 * if the worker is connected, and emits the events. */
enum status engine_refuse_part(struct engine *e, uint32_t id, uint32_t fragment, uint16_t code, const char *reason,
                               struct err *err) MUST_CHECK;
void engine_on_get(struct engine *e, struct session *s, const struct msg_get *m);
void engine_wake_gets(struct engine *e, const struct round_close *close);
enum status engine_serve(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_initial.c --- */
/* The run waits for an initial model: JOIN is answered by engine_initial_join. */
bool engine_wants_initial(const struct engine *e);
/* The folder that an earlier upload has left; NULL: none, or the run does not use one. */
const char *engine_initial_found(const struct engine *e);
/* Starts or continues an upload, or tells the worker to wait. */
enum status engine_initial_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;
enum status engine_initial_chunk(struct engine *e, uint64_t peer, const struct msg_chunk *m,
                                 struct err *err) MUST_CHECK;
/* Ends an upload, if one runs. */
void engine_initial_drop(struct engine *e);
/* Removes an uploaded folder that does not fit. */
enum status engine_initial_forget(struct engine *e, struct err *err) MUST_CHECK;
/* Writes what the run waits for while an upload runs. Returns out. */
const char *engine_initial_text(const struct engine *e, char *out, size_t cap);

/* --- engine_model.c --- */
/* Decodes the layout and the frozen tensors of `m` into an initialised layout and a zeroed list. *fits_p false: the
 * worker was refused. */
enum status engine_read_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct layout *layout,
                              struct frozen *frozen, bool *fits_p, struct err *err) MUST_CHECK;
/* INVALID: model.init_from is not a model folder, or data.tokenizer is not a tokenizer file. */
enum status engine_check_sources(const struct engine *e, struct err *err) MUST_CHECK;
/* Copies the files that checkpoints contain beside the model, and the tensors of `frozen` (NULL: none). anew: a new
 * run; a failure is an error. Otherwise the run continues, and a failure is logged. */
enum status engine_keep_files(struct engine *e, const struct frozen *frozen, bool anew, struct err *err) MUST_CHECK;
/* Makes the model of `m` the run's model and writes the first checkpoint. If the model cannot start a run, the worker
 * is refused: OK, and the ledger still has no model. Other statuses: a fault in the coordinator's own files
 * (data.tokenizer, model.init_from). */
enum status engine_define_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;

/* --- engine_access.c --- */
#define ENGINE_REVOKED_TEXT "the operator of this run has revoked the key of this worker"
/* The key of this connection may send this message. Otherwise the message is refused and the connection closed. */
bool engine_may_send(struct engine *e, uint64_t peer, const struct msg *m);
void engine_on_enrol(struct engine *e, uint64_t peer, const struct msg_enrol *m);

/* --- engine_join.c --- */
/* Refuses a name that belongs to another worker. True: it was refused. */
bool engine_refuse_name(struct engine *e, uint64_t peer, const uint8_t uuid[WIRE_UUID], const char *name);
void engine_on_hello(struct engine *e, uint64_t peer, const struct msg_hello *m);
enum status engine_on_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;
/* Refuses a message of an unknown session. If another process took its place, the text says so. */
void engine_refuse_session(struct engine *e, uint64_t peer, uint64_t id);
void engine_on_bind(struct engine *e, uint64_t peer, const struct msg_bind *m);
/* Gives places to all sessions that wait for the first round, in order of names. */
enum status engine_seat_all(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_places.c --- */
/* Makes a session and a place for a worker that joins. If all sessions are taken, it ends the session that has
 * delivered nothing for longest, if that is longer than the limit. *room_p false: none qualifies, and the worker was
 * refused. */
enum status engine_make_room(struct engine *e, uint64_t peer, const struct msg_join *m, bool *room_p,
                             struct err *err) MUST_CHECK;
/* Journals that an active member loses its place. what: LEAVE or EVICT. No effect after the end of the run. */
enum status engine_lose_place(struct engine *e, enum record_member_what what, const struct member *m,
                              struct err *err) MUST_CHECK;
/* Journals that a member joins, leaves or is evicted. */
enum status engine_write_member(struct engine *e, enum record_member_what what, uint32_t id,
                                const uint8_t uuid[WIRE_UUID], const char *name, struct err *err) MUST_CHECK;

/* --- engine_work.c --- */
enum status engine_close_fragments(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
enum status engine_open_work(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
enum status engine_finish_run(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
void engine_send_assign(struct engine *e, struct session *s, const struct member *m);
/* After the end: the worker is about to receive the last update. DONE waits for it, so that a program ends with the
 * last parameters of the run. */
bool engine_awaits_last(const struct engine *e, const struct session *s);
void engine_send_done(struct engine *e, const struct session *s);

/* --- engine_gate.c --- */
/* Gives a member that was put aside work again. */
enum status engine_readmit(struct engine *e, struct member *m, struct err *err) MUST_CHECK;
/* Compares the norms of the deltas that `close` merges, and names workers that are clipped round after round. */
void engine_gate(struct engine *e, const struct round_close *close);

/* --- engine_settings.c --- */
/* Sets config_hash and config_text from the configuration. LIMIT: the text is too long. */
enum status engine_settings_text(struct engine *e, struct err *err) MUST_CHECK;
/* Writes a RUN record with the configuration, durably. */
enum status engine_settings_write(struct engine *e, struct err *err) MUST_CHECK;
/* INVALID: the caller gave other values of keys that no run changes. */
enum status engine_settings_check(const struct engine *e, struct err *err) MUST_CHECK;
/* After recovery: compares the caller's settings with those of the run, and applies --change. INVALID with one line. */
enum status engine_settings_settle(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_report.c --- */
/* Emits RESTART; the text names the workers that the run waits for, and the limit. */
void engine_emit_restart(struct engine *e);

/* --- engine_dataset.c --- */
/* Compares the hashes of this heartbeat with those of the other members; refuses sessions that differ. *refused_p: this
 * session was among them and is removed. */
enum status engine_check_data(struct engine *e, struct session *s, const struct msg_heartbeat *m, bool *refused_p,
                              struct err *err) MUST_CHECK;

/* --- engine_presence.c --- */
enum status engine_on_heartbeat(struct engine *e, struct session *s, const struct msg_heartbeat *m,
                                struct err *err) MUST_CHECK;
enum status engine_on_leave(struct engine *e, struct session *s, const struct msg_leave *m, struct err *err) MUST_CHECK;
/* Ends the session of a revoked worker, and takes its place away. */
enum status engine_revoke(struct engine *e, const uint8_t uuid[WIRE_UUID], struct err *err) MUST_CHECK;
/* Evicts members that are silent for too long, and removes their sessions. */
enum status engine_evict(struct engine *e, struct err *err) MUST_CHECK;
/* Logs sessions that fall silent, and finds those whose connection is closed. If the run waits for them, the next
 * "waiting for" line is due at once. */
void engine_watch_sessions(struct engine *e);
/* When engine_watch_sessions or engine_evict has something to do next. */
uint64_t engine_watch_deadline_us(const struct engine *e);

#endif
