/* Deltas of workers with codecs of their own (codec.up_allowed): such a run's deltas begin with the name of their
 * codec. The coordinator decodes each when it arrives and journals it in fp32. Merges, replay and repair then see one
 * codec. Without codec.up_allowed a delta is in codec.up and is journaled as it came. Codec per worker: 2601.02360.
 *
 *     u8 length, spec[length] (canonical, without NUL), payload of that codec */
#ifndef COORDINATOR_ARRIVAL_H
#define COORDINATOR_ARRIVAL_H

#include "compress/codec.h"
#include "coordinator/outer/outer_state.h"

/* Bytes of the largest delta of a fragment that may arrive or be journaled. */
size_t arrival_bound(const struct outer_fragment *frag);
/* Checks an arrived delta and opens it; the view borrows delta. CORRUPT, NONFINITE. UNSUPPORTED: its codec is not
 * allowed, or it names none. */
enum status arrival_open(const struct outer_fragment *frag, const uint8_t *delta, size_t size,
                         struct codec_view *view) MUST_CHECK;
/* Writes the delta in the journal's form to s->payload, which may hold the view's bytes, and *size_p. Uses s->acc. */
enum status arrival_store(struct outer_state *s, uint32_t fragment, const struct codec_view *view,
                          size_t *size_p) MUST_CHECK;

#endif
