/* Private to coordinator/engine/engine*.c: the engine's state and what its parts ask of each other.
 *
 * A part calls only parts further down in this list.
 *
 *     engine.c            dispatch, time, what follows from every event (pump)
 *     engine_start.c      create, recover, destroy
 *     engine_presence.c   HEARTBEAT, LEAVE, eviction
 *     engine_report.c     status, waiting lines, summary
 *     engine_work.c       opening rounds, closing fragments, the end
 *     engine_join.c       HELLO, JOIN, BIND
 *     engine_model.c      the first JOIN: the run's model
 *     engine_data.c       deltas in, objects out
 *     engine_metrics.c    METRICS
 *     engine_eval.c       evaluations
 *     engine_checkpoint.c when checkpoints are written and removed
 *     engine_round.c      records written, and the line of a round that follows from them
 *     engine_session.c    heard, silent, ready
 *     engine_effects.c    clock, sends, refusals, events */
#ifndef COORDINATOR_ENGINE_IMPL_H
#define COORDINATOR_ENGINE_IMPL_H

#include "coordinator/engine/engine.h"
#include "coordinator/engine/session.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/ledger/snapshot.h"

enum {
    ENGINE_HEARTBEAT_MS = 1000,
    ENGINE_SILENT_BEATS = 3,
    ENGINE_PAUSE_US = 2000000,  /* without a tick or a message for so long: nobody was listened to */
    ENGINE_LINGER_US = 5000000, /* after the end, for workers that have not heard of it */
    ENGINE_REFUSALS = 64,
    ENGINE_REFUSAL_US = 60000000, /* the same refusal is logged again after this */
    ENGINE_EVICT_MIN_US = 60000000,
    ENGINE_NOTICE_US = 10000000, /* before anything is measured, waiting longer than this is said */
};

struct eval_share {
    uint64_t id;           /* of the EVAL message; 0: not given to anybody */
    uint64_t start, count; /* validation windows */
    uint64_t holder;       /* session; 0: nobody */
    uint64_t returned;     /* the last session that answered, without a result where it is not done */
    bool done;
    double loss_sum;
    uint64_t tokens;
};

struct eval_run {
    bool open, final;
    uint64_t round, tokens; /* rounds done and tokens merged of these versions */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    struct eval_share *shares; /* [cap] */
    uint32_t n, cap;
};

/* A round that is over, kept until its evaluation is in. */
struct round_info {
    bool pending;
    struct engine_event_round event;
    char slowest[WIRE_NAME_MAX], down[64]; /* event's strings */
};

struct refusal {
    uint64_t hash, said_us; /* of its text; when it was logged */
};

struct engine {
    struct config config;
    struct engine_io io;
    struct store *store; /* borrowed */
    const char *init_dir;
    char config_text[WIRE_CONFIG_MAX];
    uint64_t config_hash;

    struct ledger ledger;
    struct session_table sessions; /* empty before the first JOIN */
    struct eval_run eval;
    struct snapshot_info *kept; /* snapshots there are, oldest first */
    size_t n_kept, cap_kept;
    bool collect_due; /* there are more than checkpoint.keep asks for, but somebody still needs the oldest */
    bool sweep_due;   /* a crash may have left segments that no checkpoint needs */
    bool stuck;       /* something could not be removed: said so */

    uint64_t entropy, draws, eval_ids;
    uint64_t now_us, start_us;
    uint64_t elapsed_base_us, bytes_up_base, bytes_down_base;
    bool restarted, finished;
    uint64_t recovered; /* records of the journal that recovery has read */
    uint64_t done_us;
    bool found_done;                 /* the run was over when this process began */
    uint32_t told;                   /* workers that left because it is */
    uint64_t retry_us;               /* bulk lanes are full: when to try the first one again; UINT64_MAX: none is */
    uint64_t progress_us, notice_us; /* last time anything moved; when to say what is waited for */

    struct round_info info;
    uint64_t rounds_told;    /* while recovery reads the journal: engine_options; then 0 */
    uint64_t seen_rounds;    /* rounds done when last looked */
    uint64_t rounds_begun;   /* barrier: the newest that opened, from 1 */
    uint64_t round_begun_us; /* record_clock's time when it did; async: when the one before it was over */
    char slowest[WIRE_NAME_MAX];
    struct refusal refusals[ENGINE_REFUSALS]; /* those logged last */
    uint64_t rejected[REJECT_UNASSIGNED + 1]; /* deltas refused since this process started, by enum reject_code */
    uint8_t *chunk;                           /* [DOWNLOAD_CHUNK] */
};

/* --- engine_effects.c --- */
uint64_t engine_draw(struct engine *e); /* never 0 */
struct record_clock engine_clock(const struct engine *e);
/* Sends. The caller may ignore AGAIN and CLOSED: the other side asks again. */
enum status engine_send(struct engine *e, uint64_t peer, enum wire_lane lane, const struct msg *m);
void engine_send_control(struct engine *e, const struct session *s, const struct msg *m);
/* True if this text was logged within the last minute; the call counts as logging it. */
bool engine_was_said(struct engine *e, const char *text);
void engine_refuse(struct engine *e, uint64_t peer, enum refuse_code code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void engine_emit(struct engine *e, const struct engine_event *event);
/* worker: NULL where the event concerns no worker. */
void engine_emit_text(struct engine *e, enum engine_event_kind kind, const char *worker, const char *text);
void engine_progress(struct engine *e);
bool engine_syncs_updates(const struct engine *e);

/* --- engine_session.c --- */
/* A message of its worker arrived, on any lane. */
void engine_hear(struct engine *e, struct session *s);
bool engine_is_silent(const struct engine *e, const struct session *s);
/* The session holds a share of the open evaluation. */
bool engine_eval_holds(const struct engine *e, const struct session *s);
/* After a change of work, evaluation or state: may its member be given work? */
void engine_refresh_ready(struct engine *e, struct session *s);
uint64_t engine_evict_after_us(const struct engine *e);
const char *engine_evict_rule(const struct engine *e); /* where that number comes from */

/* --- engine_round.c --- */
/* ledger_write, then engine_round_follow. */
enum status engine_write(struct engine *e, enum record_type type, const uint8_t *body, size_t size,
                         const struct store_part *payload, struct err *err) MUST_CHECK;
/* After a record was folded in, live or in recovery. body: of DELTA only. */
void engine_round_follow(struct engine *e, uint16_t type, const uint8_t *body, size_t size);
/* Emit the event of the round that is over, if one is pending. */
void engine_flush_round(struct engine *e, double val_loss);

/* --- engine_checkpoint.c --- */
enum status engine_checkpoint(struct engine *e, struct err *err) MUST_CHECK;
/* Write one if checkpoint.every asks for it, no part is held and no round's event is pending. */
enum status engine_checkpoint_due(struct engine *e, struct err *err) MUST_CHECK;
/* Room for one more in e->kept. */
enum status engine_kept_room(struct engine *e, struct err *err) MUST_CHECK;
/* The newest snapshot; NULL before the first. */
const struct snapshot_info *engine_newest(const struct engine *e);
/* Remove checkpoints beyond checkpoint.keep that no member needs; at most BEHIND_MAX more are kept. */
enum status engine_collect(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_eval.c --- */
enum status engine_eval_step(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
void engine_on_eval_result(struct engine *e, struct session *s, const struct msg_eval_result *m);
/* An evaluation keeps the next round from opening. */
bool engine_eval_blocks(const struct engine *e);
/* Say EVAL again to a worker that has nothing to do but should. */
void engine_eval_remind(struct engine *e, const struct session *s);
/* async: the worker whose delta was merged last evaluates. */
void engine_eval_prefer(struct engine *e, uint64_t session);
bool engine_eval_complete(const struct engine *e);

/* --- engine_metrics.c --- */
void engine_on_metrics(struct engine *e, struct session *s, const struct msg_metrics *m);
/* How many steps this worker skipped since that was said, if any. */
void engine_tell_skips(struct engine *e, struct session *s);

/* --- engine_data.c --- */
enum status engine_on_offer(struct engine *e, struct session *s, const struct msg_offer *m, struct err *err) MUST_CHECK;
enum status engine_on_chunk(struct engine *e, uint64_t peer, const struct msg_chunk *m, struct err *err) MUST_CHECK;
/* Journal that a part is not merged. fragment UINT32_MAX: every part that is waited for. */
enum status engine_drop(struct engine *e, const struct member *m, uint32_t fragment, uint16_t code,
                        struct err *err) MUST_CHECK;
/* REJECT: the worker drops its delta. The records that led to it are synced first: after a power cut the coordinator
 * would wait for the delta. */
enum status engine_reject(struct engine *e, const struct session *s, uint64_t round, uint32_t fragment, uint16_t code,
                          const char *reason, struct err *err) MUST_CHECK;
void engine_on_get(struct engine *e, struct session *s, const struct msg_get *m);
void engine_wake_gets(struct engine *e, const struct round_close *close);
enum status engine_serve(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_model.c --- */
/* INVALID: model.init_from names no folder of a model, or data.tokenizer no file of a tokenizer. */
enum status engine_check_sources(const struct engine *e, struct err *err) MUST_CHECK;
/* Keep what checkpoints have beside the model. Not `anew`: of a run that goes on, whose sources may have gone, and
 * which goes on without. */
enum status engine_keep_files(struct engine *e, bool anew, struct err *err) MUST_CHECK;
/* The run's model becomes what `m` brings, with the first checkpoint. What cannot start a run is refused: OK, and the
 * ledger is still without a model. An error where what the coordinator itself adds is at fault: data.tokenizer, the
 * folder of model.init_from. */
enum status engine_define_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;

/* --- engine_join.c --- */
void engine_on_hello(struct engine *e, uint64_t peer, const struct msg_hello *m);
enum status engine_on_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;
/* Nobody has this session: says so, and why, where another process took its place. */
void engine_refuse_session(struct engine *e, uint64_t peer, uint64_t id);
void engine_on_bind(struct engine *e, uint64_t peer, const struct msg_bind *m);
/* Give places to everybody waiting for the first round, in order of names. */
enum status engine_seat_all(struct engine *e, struct err *err) MUST_CHECK;
/* Write that a member comes, leaves or is evicted. */
enum status engine_write_member(struct engine *e, enum record_member_what what, uint32_t id,
                                const uint8_t uuid[WIRE_UUID], const char *name, struct err *err) MUST_CHECK;

/* --- engine_work.c --- */
enum status engine_close_fragments(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
enum status engine_open_work(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
enum status engine_finish_run(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
void engine_send_assign(struct engine *e, struct session *s, const struct member *m);
void engine_send_done(struct engine *e, const struct session *s);

/* --- engine_report.c --- */
/* A run is continued: whom it waits for now, and how long. */
void engine_emit_restart(struct engine *e);

/* --- engine_presence.c --- */
enum status engine_on_heartbeat(struct engine *e, struct session *s, const struct msg_heartbeat *m,
                                struct err *err) MUST_CHECK;
enum status engine_on_leave(struct engine *e, struct session *s, const struct msg_leave *m, struct err *err) MUST_CHECK;
/* Evict members not heard of for too long, and remove their sessions. */
enum status engine_evict(struct engine *e, struct err *err) MUST_CHECK;

#endif
