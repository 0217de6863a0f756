#include "coordinator/outer/arrival.h"

#include <assert.h>
#include <string.h>

size_t arrival_bound(const struct outer_fragment *frag)
{
    size_t most = codec_bound(frag->up);
    for (uint32_t i = 0; i < frag->n_arriving; i++) {
        size_t bytes = CODEC_SPEC_MAX + codec_bound(frag->arriving[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}

enum status arrival_open(const struct outer_fragment *frag, const uint8_t *delta, size_t size, struct codec_view *view)
{
    if (!frag->n_arriving) return codec_open(frag->up, delta, size, NULL, view);
    size_t length = size ? delta[0] : 0;
    if (size <= 1 + length) return STATUS_CORRUPT;
    for (uint32_t i = 0; i < frag->n_arriving; i++) {
        const char *spec = codec_spec(frag->arriving[i]);
        if (strlen(spec) == length && !memcmp(spec, delta + 1, length))
            return codec_open(frag->arriving[i], delta + 1 + length, size - 1 - length, NULL, view);
    }
    return STATUS_UNSUPPORTED;
}

enum status arrival_store(struct outer_state *s, uint32_t fragment, const struct codec_view *view, size_t *size_p)
{
    const struct outer_fragment *frag = &s->fragments[fragment];
    assert(frag->n_arriving && codec_count(view->codec) == codec_count(frag->up));
    for (size_t i = 0; i < codec_parts(view->codec); i++)
        codec_view_decode(view, i, s->acc + codec_part(view->codec, i).from);
    return codec_encode_pool(frag->up, s->pool, s->acc, s->payload, s->payload_cap, size_p, NULL);
}
