#include "coordinator/outer/outer_arrays.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "coordinator/outer/outer_state.h"

void *outer_array_alloc(int file, size_t count, size_t size)
{
    return file < 0 ? mem_alloc(count, size) : mem_map(file, count, size);
}

uint64_t outer_arrays_bytes(const struct config *config, const struct layout *layout)
{
    const uint64_t each = outer_value_bytes(config_outer_half(config));
    uint64_t values = layout->n_params * config_outer_vectors(config);
    for (uint32_t f = 0; f < layout->n_fragments; f++)
        if (config_down_loses(config) && !layout_is_mean(layout, f)) values += layout->fragments[f].count;
    return layout->n_params * sizeof(float) + values * each;
}

size_t outer_arrays_list(const struct outer_state *s, struct outer_array out[OUTER_ARRAYS_MAX])
{
    size_t n = 0;
    if (s->m) out[n++] = (struct outer_array){s->m, s->layout->n_params};
    if (s->m_half) out[n++] = (struct outer_array){s->m_half, s->layout->n_params};
    if (s->v) out[n++] = (struct outer_array){s->v, s->layout->n_params};
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        const struct outer_fragment *frag = &s->fragments[f];
        void *residual = frag->owed ? (void *)frag->owed : frag->residual.residual;
        if (residual) out[n++] = (struct outer_array){residual, s->layout->fragments[f].count};
    }
    assert(n <= OUTER_ARRAYS_MAX);
    return n;
}

bool outer_arrays_half(const struct outer_state *s)
{
    return config_outer_half(s->config);
}

size_t outer_value_bytes(bool half)
{
    return half ? sizeof(uint16_t) : sizeof(float);
}

uint64_t outer_array_hash(struct pool *pool, const void *data, size_t count, bool half)
{
    const uint16_t *halves = data;
    float last = 0;
    if (!half) return hash_floats(pool, data, count);
    uint64_t hash = hash_floats(pool, data, count / 2);
    if (count % 2 == 0) return hash;
    memcpy(&last, &halves[count - 1], sizeof *halves);
    return hash_mix(hash, hash_floats(NULL, &last, 1));
}
