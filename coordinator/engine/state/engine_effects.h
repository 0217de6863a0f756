/* Effects of the engine: draw, read the clock, send, refuse, emit an event. All parts use them; they call no other
 * part. */
#ifndef COORDINATOR_ENGINE_EFFECTS_H
#define COORDINATOR_ENGINE_EFFECTS_H

#include "coordinator/engine/state/engine_state.h"

uint64_t engine_draw(struct engine *e); /* never 0 */
struct record_clock engine_clock(const struct engine *e);
/* Sends. The caller may ignore AGAIN and CLOSED: the worker repeats its request. */
enum status engine_send(struct engine *e, uint64_t peer, enum wire_lane lane, const struct msg *m);
void engine_send_control(struct engine *e, const struct session *s, const struct msg *m);
/* Work on files, journal and theta that may take seconds: engine_io.meanwhile runs it, and workers get answers until it
 * ends. It must not change sessions, send, or ask the clock. bytes: that it reads, writes and merges;
 * ENGINE_SYNCS: it waits for the disk. */
typedef enum status engine_long_fn(void *arg, struct err *err);
enum status engine_long(struct engine *e, uint64_t bytes, engine_long_fn *work, void *arg, struct err *err) MUST_CHECK;
/* journal_sync as long work: a disk that writes a checkpoint takes seconds for a small file, too. */
enum status engine_sync(struct engine *e, struct err *err) MUST_CHECK;
/* Sends a warning about the training to all workers, which log it. */
void engine_tell(struct engine *e, const char *text);
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

#endif
