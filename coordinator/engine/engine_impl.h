/* Private to coordinator/engine/engine*.c: the functions that these parts share.
 *
 * Rooms below: coordinator/engine/model/ (the run's model), coordinator/admission/ (who may take part), and
 * coordinator/engine/state/ (the state, records, effects).
 *
 * A part calls only parts further down in this list.
 *
 *     engine.c             dispatch, time, and the steps after every event (pump)
 *     engine_start.c       create, recover, destroy
 *     engine_settings.c    settings of a run that continues
 *     engine_presence.c    HEARTBEAT, LEAVE, eviction, revoked workers
 *     engine_dataset.c     hashes of the workers' data
 *     engine_region.c      what happens upstream of a region
 *     engine_watch.c       alerts that follow time
 *     engine_follow.c      MODEL, FETCH: programs that follow the run
 *     engine_report.c      status, waiting lines, summary
 *     engine_work.c        opening rounds, closing fragments, the end
 *     engine_budget.c      run.max_hours, run.max_gb
 *     engine_join.c        HELLO, JOIN, BIND
 *     engine_eval.c        evaluations
 *     engine_eval_judge.c  results of evaluations: refused, compared, disputed
 *     engine_objects.c     updates and snapshots out
 *     engine_data.c        deltas in
 *     engine_checkpoint.c  writing and removing checkpoints
 *     engine_snapshot.c    snapshots for workers without a saved state
 *     engine_metrics.c     METRICS */
#ifndef COORDINATOR_ENGINE_IMPL_H
#define COORDINATOR_ENGINE_IMPL_H

#include "coordinator/admission/admission.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/model/engine_model.h"
#include "coordinator/engine/state/engine_alert.h"
#include "coordinator/engine/state/engine_effects.h"
#include "coordinator/engine/state/engine_notes.h"
#include "coordinator/engine/state/engine_round.h"

/* --- engine_checkpoint.c --- */
enum status engine_checkpoint(struct engine *e, struct err *err) MUST_CHECK;
/* Writes a checkpoint if checkpoint.every demands it, no part is held and no round event is pending. */
enum status engine_checkpoint_due(struct engine *e, struct err *err) MUST_CHECK;
/* Grows e->kept for one more snapshot. */
enum status engine_kept_room(struct engine *e, struct err *err) MUST_CHECK;
/* Follows the validation loss. When it jumps, the newest checkpoint before the jump is kept until it is back. */
void engine_watch_loss(struct engine *e, uint64_t round, double loss);
/* Sets e->behind_most: at the start, and after each checkpoint. */
void engine_limit_behind(struct engine *e);
/* Removes checkpoints beyond checkpoint.keep that no member needs; keeps at most e->behind_most more. */
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
/* A region: upstream asks for this evaluation; e->region gets the result. */
void engine_eval_upstream(struct engine *e, const struct msg_eval *m);

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
/* A round may have ended: keeps its versions for followers. A follower's model is always one after a round. */
void engine_snapshot_note_round(struct engine *e);
/* The newest versions after a round, which followers get: the last round of this process, or the newest checkpoint. */
uint64_t engine_snapshot_round(const struct engine *e, struct wire_version *versions);
/* A follower reads this checkpoint or the updates after it: it cannot be removed yet. */
bool engine_snapshot_is_followed(const struct engine *e, const struct checkpoint_info *info);
/* Reads floats [first, first + count) of its theta. */
enum status engine_snapshot_theta(struct engine *e, const struct checkpoint_info *info, uint64_t first, float *dst,
                                  uint64_t count, struct err *err) MUST_CHECK;

/* --- engine_metrics.c --- */
void engine_on_metrics(struct engine *e, struct session *s, const struct msg_metrics *m);
/* Emits the number of steps that this worker skipped since the last such event, if any. */
void engine_emit_skips(struct engine *e, struct session *s);

/* --- engine_follow.c --- */
void engine_on_model(struct engine *e, uint64_t peer);
void engine_on_fetch(struct engine *e, uint64_t peer, const struct msg_fetch *m);
/* A follower may not have the last model yet: the process lives on for a moment. */
bool engine_follow_waits(const struct engine *e);
void engine_follow_finish(struct engine *e);

/* --- engine_objects.c --- */
/* Bytes of an object; 0: it does not exist. */
uint64_t engine_object_size(const struct engine *e, uint8_t kind, uint32_t fragment, uint64_t version);
/* Reads chunk->size bytes at chunk->offset, at most DOWNLOAD_CHUNK, of the object that `chunk` names. */
enum status engine_object_read(struct engine *e, const struct msg_chunk *chunk, uint8_t *dst,
                               struct err *err) MUST_CHECK;
void engine_on_get(struct engine *e, struct session *s, const struct msg_get *m);
void engine_wake_gets(struct engine *e, const struct round_close *close);
enum status engine_serve(struct engine *e, struct err *err) MUST_CHECK;

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

/* --- engine_join.c --- */
/* A chunk of the initial model. */
enum status engine_on_initial(struct engine *e, uint64_t peer, const struct msg_chunk *m, struct err *err) MUST_CHECK;
void engine_on_hello(struct engine *e, uint64_t peer, const struct msg_hello *m);
enum status engine_on_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;
/* Refuses a message of an unknown session. If another process took its place, the text says so. */
void engine_refuse_session(struct engine *e, uint64_t peer, uint64_t id);
void engine_on_bind(struct engine *e, uint64_t peer, const struct msg_bind *m);
/* Gives places to all sessions that wait for the first round, in order of names. */
enum status engine_seat_all(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_work.c --- */
enum status engine_close_fragments(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
enum status engine_open_work(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
enum status engine_finish_run(struct engine *e, bool *any_p, struct err *err) MUST_CHECK;
void engine_send_assign(struct engine *e, struct session *s, const struct member *m);
/* After the end: the worker is about to receive the last update. DONE waits for it, so that a program ends with the
 * last parameters of the run. */
bool engine_awaits_last(const struct engine *e, const struct session *s);
void engine_send_done(struct engine *e, const struct session *s);
/* An update was journaled: tells all workers. */
enum status engine_updated(struct engine *e, const struct round_close *close, struct err *err) MUST_CHECK;

/* --- engine_settings.c --- */
/* Sets config_hash and config_text from the configuration. LIMIT: the text is too long. */
enum status engine_settings_text(struct engine *e, struct err *err) MUST_CHECK;
/* Writes a RUN record with the configuration, durably. */
enum status engine_settings_write(struct engine *e, struct err *err) MUST_CHECK;
/* INVALID: the caller gave other values of keys that no run changes. */
enum status engine_settings_check(const struct engine *e, struct err *err) MUST_CHECK;
/* After recovery: compares the caller's settings with those of the run, and applies --change. INVALID with one line. */
enum status engine_settings_settle(struct engine *e, struct err *err) MUST_CHECK;

/* --- engine_region.c --- */
enum status engine_region_take(struct engine *e, const struct engine_upstream *event, struct err *err) MUST_CHECK;

/* --- engine_report.c --- */
/* The text of engine_waiting, at most a tenth of a second old: it is the same for all workers. */
const char *engine_waiting_kept(struct engine *e);
/* Emits RESTART; the text names the workers that the run waits for, and the limit. */
void engine_emit_restart(struct engine *e);

/* --- engine_watch.c --- */
/* Once a second: starts and ends alerts. */
void engine_watch(struct engine *e);

/* --- engine_budget.c --- */
/* Used so far, by all processes of the run. */
double engine_hours(const struct engine *e);
double engine_gb(const struct engine *e);
/* Once a second: sees whether a limit is reached, and journals the counters. */
enum status engine_budget_watch(struct engine *e, struct err *err) MUST_CHECK;
/* Sees whether a limit is reached. True: no further round opens, and with async no further assignment. */
bool engine_budget_closes(struct engine *e);
/* The counters survive the end of this process. */
enum status engine_budget_keep(struct engine *e, struct err *err) MUST_CHECK;

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
/* Computes when the two functions above may have something to do next. Costs a pass over all workers, so the result is
 * kept until then. */
void engine_watch_plan(struct engine *e);
/* That time, or 0: at once, because the limits became shorter. */
uint64_t engine_watch_deadline_us(const struct engine *e);

#endif
