/* The families of models, and the model of a configuration. */
#include "worker/model/model.h"

#include <string.h>

#include "common/config/config.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

static const struct model_family *const families[] = {&gpt2_family, &llama_family};

const struct model_family *model_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i]->name, name)) return families[i];
    return NULL;
}

enum { GROUP_BLOCKS = 3 }; /* blocks of a group, the choice of 2501.18512 */

/* Groups of blocks with train.stagger; 0: fragments by size. */
static uint32_t block_groups(const struct config *c)
{
    bool apart = !strcmp(c->model.family, "llama") && c->model.tie_embeddings != CHOICE_ON;
    uint32_t others = apart ? 2 : 1, n = c->train.fragments;
    if (c->train.stagger != CHOICE_ON || config_is_external(c) || (n && n <= others)) return 0;
    uint32_t usual = (c->model.n_layer + GROUP_BLOCKS - 1) / GROUP_BLOCKS, most = LAYOUT_FRAGMENTS_MAX - others;
    uint32_t groups = n ? n - others : usual < 2 ? 2 : usual;
    if (groups > most) groups = most;
    return groups < c->model.n_layer ? groups : c->model.n_layer;
}

/* Fragments of the embeddings, of each group of blocks, and of an output layer of its own. */
static enum status cut_groups(const struct config *config, struct layout *layout)
{
    const struct model_family *family = model_family_find(config->model.family);
    const struct model_config model = model_config_of(config);
    const struct decoder_kind at = family->kind_of(&model);
    uint64_t ends[LAYOUT_FRAGMENTS_MAX] = {at.block0};
    uint32_t n = 1;
    for (uint32_t g = 1; g < model.groups; g++)
        ends[n++] = at.block0 + model_blocks_before(&model, g) * at.block_stride;
    ends[n++] = at.head > at.norm ? at.head : at.n_params;
    if (at.head > at.norm) ends[n++] = at.n_params;
    return layout_cut(layout, ends, n);
}

enum status model_split_fragments(const struct config *config, struct layout *layout, struct err *err)
{
    enum status status =
        block_groups(config) ? cut_groups(config, layout) : layout_split(layout, config->train.fragments);
    if (status == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "train.fragments: the model cannot be cut into %u fragments: lower it",
                   config->train.fragments);
}

struct model_config model_config_of(const struct config *config)
{
    struct rope_scaling scaling;
    enum status status = rope_scaling_parse(&scaling, config->model.rope_scaling, NULL);
    if (status != STATUS_OK)
        scaling =
            (struct rope_scaling){0}; /* config_resolve refuses this value, so this branch is never used in a run */
    return (struct model_config){.n_layer = config->model.n_layer,
                                 .n_head = config->model.n_head,
                                 .n_embd = config->model.n_embd,
                                 .block_size = config->model.block_size,
                                 .vocab_size = config->model.vocab_size,
                                 .n_kv_head = config->model.n_kv_head,
                                 .ffn = config->model.ffn,
                                 .rope_theta = config->model.rope_theta,
                                 .norm_eps = config->model.norm_eps,
                                 .rope_scaling = scaling,
                                 .tied = config->model.tie_embeddings == CHOICE_ON,
                                 .bytes = !strcmp(config->data.tokenizer, "bytes"),
                                 .groups = block_groups(config)};
}
