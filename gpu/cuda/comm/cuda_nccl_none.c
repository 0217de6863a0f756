/* gpu/cuda/comm/cuda_comm.h for builds without nccl.h: every open fails. */
#include "gpu/cuda/comm/cuda_comm.h"

enum status cuda_comm_check(struct err *err)
{
    return err_set(err, STATUS_UNSUPPORTED,
                   "NCCL: this build has no NCCL support (nccl.h was not found): install NCCL and rebuild, "
                   "or start one worker per GPU");
}

enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    (void)ranks, (void)n, (void)out;
    return cuda_comm_check(err);
}

void cuda_comm_close(struct cuda_comm *comm)
{
    (void)comm;
}

bool cuda_comm_failed(struct cuda_comm *comm, struct err *why)
{
    (void)comm, (void)why;
    return false;
}

void cuda_comm_abort(struct cuda_comm *const *comms, int n)
{
    (void)comms, (void)n;
}

void cuda_comm_run(struct cuda_comm *comm, enum collective_op op, float *buf, size_t n)
{
    (void)comm, (void)op, (void)buf, (void)n;
}

void cuda_comm_parts(struct cuda_comm *comm, enum collective_op op, float *buf, const struct collective_part *parts,
                     size_t n_parts)
{
    (void)comm, (void)op, (void)buf, (void)parts, (void)n_parts;
}
