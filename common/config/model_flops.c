#include "common/config/model_flops.h"

#include <assert.h>

double model_weights(const struct config *config)
{
    double width = config->model.n_embd, layers = config->model.n_layer;
    double weights = 12 * width * width; /* of a layer: 3 C C, C C, 4 C C, 4 C C, C = width */
    assert(!config->model.ffn || config->model.n_head > 0);
    if (config->model.ffn) { /* llama: q and o; k and v with fewer heads; three matrices of the gated MLP */
        double shared = (double)config->model.n_kv_head / config->model.n_head;
        weights = width * (2 * width + 2 * width * shared + 3.0 * config->model.ffn);
    }
    return layers * weights + width * config->model.vocab_size;
}

double model_flops_per_token(const struct config *config)
{
    double attention = (double)config->model.n_layer * config->model.n_embd * config->model.block_size;
    return 6 * (model_weights(config) + attention);
}
