/* The outer state of a region: it follows the updates of the run upstream. */
#include "coordinator/outer/outer_state.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "compress/apply_update.h"
#include "compress/codec.h"
#include "wire/object.h"

void outer_state_follow(struct outer_state *s)
{
    mem_free(s->m);
    mem_free(s->v);
    mem_free(s->m_half);
    s->m = s->v = NULL;
    s->m_half = NULL;
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        feedback_finish(&s->fragments[f].residual);
        mem_free(s->fragments[f].owed);
        s->fragments[f].owed = NULL;
    }
}

enum status outer_state_apply(struct outer_state *s, const struct update *u)
{
    struct codec_view view;
    assert(u->fragment < s->layout->n_fragments);
    struct outer_fragment *f = &s->fragments[u->fragment];
    const struct fragment *frag = &s->layout->fragments[u->fragment];
    float *theta = s->theta + frag->offset;
    if (!f->down || strcmp(u->codec, codec_spec(f->down)) != 0) return STATUS_CORRUPT;
    TRY(codec_open(f->down, u->payload, u->payload_size, NULL, &view));
    apply_update_view(s->pool, &view, u->form == UPDATE_PARAMETERS, theta);
    f->hash = hash_floats(s->pool, theta, frag->count);
    s->lr = u->rate;
    return f->hash == u->theta_hash ? STATUS_OK : STATUS_MISMATCH;
}
