/* Communication between the GPUs of one worker: gpu/cuda/comm/cuda_nccl.c does it with NCCL,
 * tests/cuda/emulator/emulate_comm.c on the CPU; gpu/cuda/comm/cuda_nccl_none.c says that a build has none.
 *
 * Every rank is a thread with a runtime and a communicator of its own; all make the same calls in the same order. Calls
 * are asynchronous, on the runtime's CUDA_COMM queue, and in place; errors stick to the runtime. What a GPU waits for
 * here it waits for until its own communicator is aborted: nothing else ends it. */
#ifndef GPU_CUDA_COMM_H
#define GPU_CUDA_COMM_H

#include "gpu/collective.h"
#include "gpu/cuda/rt/cuda_rt.h"

struct cuda_comm;

/* UNSUPPORTED with one line: no NCCL, or too old. */
enum status cuda_comm_check(struct err *err) MUST_CHECK;
/* out[0..n-1] over ranks[0..n-1], from one thread. UNSUPPORTED as above; IO: what it says.
 * After a failure, too, those that are not NULL are the caller's to abort and close. */
enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err) MUST_CHECK;
/* Of all, from one thread; after an abort, too. NULL is allowed. */
void cuda_comm_close(struct cuda_comm *comm);

/* buf[n_ranks * share], rank r's share at r * share. */
void cuda_comm_reduce_scatter(struct cuda_comm *comm, float *buf, size_t share);
void cuda_comm_all_gather(struct cuda_comm *comm, float *buf, size_t share);
void cuda_comm_all_reduce(struct cuda_comm *comm, float *buf, size_t n);
/* `parts` of buf, see gpu/collective.h; as one call where that is faster than one after the other. */
void cuda_comm_reduce(struct cuda_comm *comm, float *buf, const struct collective_part *parts, size_t n_parts);
void cuda_comm_broadcast(struct cuda_comm *comm, float *buf, const struct collective_part *parts, size_t n_parts);

/* By any thread, does not block: communication failed behind the host's back, with a line. */
bool cuda_comm_failed(struct cuda_comm *comm, struct err *why);
/* All of a group, by one thread that is none of the ranks': what ranks wait for on their devices ends, unfinished, and
 * later calls do nothing. Once. May block as long as a GPU does not answer. */
void cuda_comm_abort(struct cuda_comm *const *comms, int n);

#endif
