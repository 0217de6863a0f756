#include "worker/replica_setup.h"

#include "common/config/config_resolve.h"
#include "worker/outer/outer_memory.h"

enum status replica_layout_of(const struct config *config, struct layout *layout, const struct model_family **family_p,
                              struct err *err)
{
    const struct model_family *family = model_family_find(config->model.family);
    if (config_is_external(config))
        return err_set(err, STATUS_UNSUPPORTED,
                       "the run has model.family external: its workers are programs that use libatoll or the Python "
                       "package, not atoll-worker");
    if (!family) return err_set(err, STATUS_UNSUPPORTED, "unknown model.family %s", config->model.family);
    struct model_config model = model_config_of(config);
    TRY(family->layout(&model, layout, err));
    TRY(model_split_fragments(config, layout, err));
    *family_p = family;
    return STATUS_OK;
}

enum status replica_config_of(const struct config *c, const struct model_family *family, const struct layout *layout,
                              uint32_t workers, struct replica_config *out, struct err *err)
{
    *out = (struct replica_config){
        .family = family,
        .model = model_config_of(c),
        .device = c->train.devices,
        .on_cpu = "train.devices=cpu",
        .bf16 = c->train.precision == PRECISION_BF16,
        .ranks = c->train.ranks,
        .threads = c->train.threads,
        .batch_size = c->train.batch_size,
        .grad_accum = c->train.grad_accum,
        .seed = c->run.seed,
        .gradients = c->train.method == METHOD_DDP,
        .recompute = c->train.recompute,
        .opt = inner_opt_config_of(c),
    };
    if (c->train.method == METHOD_DDP)
        out->opt.kind = OPTIMIZER_SGD;         /* the coordinator runs the optimizer: no moments here */
    out->opt.unread = !config_worker_every(c); /* only saves read the moments */
    return outer_memory_bytes(&out->outer, c, layout, workers, false, err);
}
