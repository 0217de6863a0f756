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
    (void)ranks;
    (void)n;
    (void)out;
    return cuda_comm_check(err);
}

void cuda_comm_close(struct cuda_comm *comm)
{
    (void)comm;
}

bool cuda_comm_failed(struct cuda_comm *comm, struct err *why)
{
    (void)comm;
    (void)why;
    return false;
}

void cuda_comm_abort(struct cuda_comm *const *comms, int n)
{
    (void)comms;
    (void)n;
}

void cuda_comm_reduce_scatter(struct cuda_comm *comm, float *buf, size_t share)
{
    (void)comm;
    (void)buf;
    (void)share;
}

void cuda_comm_all_gather(struct cuda_comm *comm, float *buf, size_t share)
{
    (void)comm;
    (void)buf;
    (void)share;
}

void cuda_comm_all_reduce(struct cuda_comm *comm, float *buf, size_t n)
{
    (void)comm;
    (void)buf;
    (void)n;
}

void cuda_comm_reduce(struct cuda_comm *comm, float *buf, const struct collective_part *parts, size_t n_parts)
{
    (void)comm;
    (void)buf;
    (void)parts;
    (void)n_parts;
}

void cuda_comm_broadcast(struct cuda_comm *comm, float *buf, const struct collective_part *parts, size_t n_parts)
{
    (void)comm;
    (void)buf;
    (void)parts;
    (void)n_parts;
}
