/* The model of a run: the first JOIN defines it, an upload may bring it, and later workers are compared with it.
 *
 * A function that takes `peer` refuses a worker with REFUSE and a reason, and returns OK or false. Other statuses are
 * faults in the coordinator's own files, and final. A part calls only parts further down in this list.
 *
 *     engine_initial.c  upload of the model that a run starts from
 *     engine_model.c    the first JOIN: the run's model
 *     engine_match.c    whether the model and data of a worker are the run's */
#ifndef COORDINATOR_ENGINE_MODEL_H
#define COORDINATOR_ENGINE_MODEL_H

#include "coordinator/engine/state/engine_state.h"

/* --- engine_initial.c --- */
/* The run waits for an initial model: JOIN is answered by engine_initial_join. */
bool engine_wants_initial(const struct engine *e);
/* Starts or continues an upload, or tells the worker to wait. */
enum status engine_initial_join(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;
/* Takes bytes of the upload. *complete_p: all of them are here, and the run starts from them. The caller then lets the
 * worker of e->initial.join join, and ends the upload. */
enum status engine_initial_chunk(struct engine *e, uint64_t peer, const struct msg_chunk *m, bool *complete_p,
                                 struct err *err) MUST_CHECK;
/* Another worker waits for the model. */
void engine_initial_wait(struct engine *e, uint64_t peer);
/* During long work: answers the worker that uploads, and those that wait. They have no session yet. */
void engine_initial_reassure(struct engine *e);
/* Ends an upload, if one runs, and forgets who waits. */
void engine_initial_drop(struct engine *e);
/* Writes what the run waits for while an upload runs. Returns out. */
const char *engine_initial_text(const struct engine *e, char *out, size_t cap);

/* --- engine_model.c --- */
/* NULL: this store keeps no initial model. */
struct init_folder *engine_initial_folder(const struct engine *e);
/* The folder that an earlier upload has left; NULL: none, or the run does not use one. */
const char *engine_initial_found(const struct engine *e);
/* Decodes the layout and the frozen tensors of `m` into an initialised layout and a zeroed list. *fits_p false: the
 * worker was refused. */
enum status engine_read_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct layout *layout,
                              struct frozen *frozen, bool *fits_p, struct err *err) MUST_CHECK;
/* INVALID: model.init_from is not a model folder, or data.tokenizer is not a tokenizer file. */
enum status engine_check_sources(const struct engine *e, struct err *err) MUST_CHECK;
/* Copies the files that checkpoints contain beside the model, and the tensors of `frozen` (NULL: none). anew: a new
 * run; a failure is an error. Otherwise the run continues, and a failure is logged. */
enum status engine_keep_files(struct engine *e, const struct frozen *frozen, bool anew, struct err *err) MUST_CHECK;
/* Makes the model of `m` the run's model. If it cannot start a run, the worker is refused, and the ledger still has no
 * model. */
enum status engine_define_model(struct engine *e, uint64_t peer, const struct msg_join *m, struct err *err) MUST_CHECK;
/* The deltas that this worker and those with a session may have on their way, and those that a merge holds together,
 * fit the memory of this machine. False: the worker was refused. */
bool engine_has_memory(struct engine *e, uint64_t peer, const struct msg_join *m);

/* --- engine_match.c --- */
/* The model and data of `m` are the run's. False: the worker was refused. */
bool engine_match(struct engine *e, uint64_t peer, const struct msg_join *m);
/* The first worker with validation data defines that of the run. */
enum status engine_define_val(struct engine *e, const struct msg_join *m, struct err *err) MUST_CHECK;

#endif
