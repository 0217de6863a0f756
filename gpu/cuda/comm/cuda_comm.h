/* Communication between the GPUs of one worker. Three implementations:
 * - gpu/cuda/comm/cuda_nccl.c: NCCL,
 * - gpu/cuda/comm/cuda_nccl_none.c: builds without NCCL; every open fails,
 * - tests/cuda/emulator/emulate_comm.c: the CPU.
 *
 * Every rank is a thread with its own runtime and its own communicator. All ranks make the same calls in the same
 * order. Calls are asynchronous, run on the runtime's CUDA_COMM queue, and work in place. Errors stick to the runtime.
 * A GPU that waits for another rank stops waiting only when its own communicator is aborted. */
#ifndef GPU_CUDA_COMM_H
#define GPU_CUDA_COMM_H

#include "gpu/collective.h"
#include "gpu/cuda/rt/cuda_rt.h"

struct cuda_comm;

/* UNSUPPORTED with a one-line message: NCCL is missing or too old. */
enum status cuda_comm_check(struct err *err) MUST_CHECK;
/* Opens communicators out[n] for ranks[n], all from one thread. Errors: UNSUPPORTED as above; IO with NCCL's message.
 * After a failure the caller still owns every out[r] that is not NULL, and has to abort and close it. */
enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err) MUST_CHECK;
/* One thread closes the communicators of all ranks. Allowed after an abort. NULL is allowed. */
void cuda_comm_close(struct cuda_comm *comm);

/* ALL_REDUCE, REDUCE_SCATTER or ALL_GATHER, and REDUCE or BROADCAST, as in gpu/collective.h. Implementations may group
 * all parts into one call. */
void cuda_comm_run(struct cuda_comm *comm, enum collective_op op, float *buf, size_t n);
void cuda_comm_parts(struct cuda_comm *comm, enum collective_op op, float *buf, const struct collective_part *parts,
                     size_t n_parts);

/* True if communication failed without the host noticing; `why` gets one line. Any thread may call it; does not
 * block. */
bool cuda_comm_failed(struct cuda_comm *comm, struct err *why);
/* Aborts all n communicators of a group. Call it once, from a thread that is not a rank. Pending waits on the devices
 * end without a result, and later calls do nothing. May block while a GPU does not respond. */
void cuda_comm_abort(struct cuda_comm *const *comms, int n);

#endif
