#include "worker/model/model.h"

#include <stdio.h>
#include <string.h>

#include "common/config/config.h"
#include "common/tensor/hf_folder.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

static const struct model_family *const families[] = {&gpt2_family, &llama_family};

const struct model_family *model_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i]->name, name)) return families[i];
    return NULL;
}

enum status model_split_fragments(const struct config *config, struct layout *layout, struct err *err)
{
    if (layout_split(layout, config->train.fragments) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "train.fragments: the model cannot be cut into %u fragments: lower it",
                   config->train.fragments);
}

const char *model_ids_json(const struct model_config *config, char out[96])
{
    static const struct {
        uint32_t vocab_size, bos, eos;
    } known[] = {{50257, 50256, 50256}, {50304, 50256, 50256}, {128256, 128000, 128001}};
    static const char format[] = "  \"bos_token_id\": %u,\n  \"eos_token_id\": %u,\n";
    snprintf(out, 96, "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n");
    if (config->bytes && config->vocab_size <= HF_BYTES_VOCAB_MAX) snprintf(out, 96, format, 0u, 0u);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].vocab_size == config->vocab_size) snprintf(out, 96, format, known[i].bos, known[i].eos);
    return out;
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
                                 .bytes = !strcmp(config->data.tokenizer, "bytes")};
}

struct model_config model_config_of_folder(const struct hf_config *hf)
{
    return (struct model_config){.n_layer = hf->n_layer,
                                 .n_head = hf->n_head,
                                 .n_embd = hf->n_embd,
                                 .block_size = hf->block_size,
                                 .vocab_size = hf->vocab_size,
                                 .n_kv_head = hf->n_kv_head,
                                 .ffn = hf->ffn,
                                 .rope_theta = hf->rope_theta,
                                 .norm_eps = hf->norm_eps,
                                 .rope_scaling = hf->rope_scaling,
                                 .tied = hf->tied,
                                 .bytes = hf->bytes};
}
