/* A round machine of three members, w0 to w2, driven by hand. */
#ifndef TESTS_LIB_ROUND_RIG_H
#define TESTS_LIB_ROUND_RIG_H

#include <stdint.h>

#include "coordinator/round/round.h"

enum { ROUNDRIG_WORKERS = 4 };

extern struct round_grant round_rig_grants[ROUNDRIG_WORKERS + 1]; /* of the last plan */

/* settings: "section.key=value", NULL-terminated, or NULL. Defaults: diloco, H 4, 10 steps, 3 workers at least. */
void round_rig_open(struct round *r, const char *const *settings, uint32_t n_fragments);
void round_rig_close(struct round *r);
/* Members first ... last may be given work. */
void round_rig_ready(struct round *r, uint32_t first, uint32_t last);
/* What would be given out now; to how many. */
uint32_t round_rig_plan(struct round *r, uint64_t now, struct round_open *open);
/* It is given out, to so many. */
void round_rig_begin(struct round *r, uint64_t now, uint32_t expect);
/* Three workers at work on a round of two fragments. */
void round_rig_at_work(struct round *r);

/* What a worker offers when it is done, and the answer. */
struct round_offer round_rig_offer(const struct round *r, uint32_t id, uint32_t fragment);
enum round_verdict round_rig_judge(const struct round *r, uint32_t id, const struct round_offer *offer, uint16_t *code);
void round_rig_deliver(struct round *r, uint32_t id, uint32_t fragment, uint64_t now);
/* Merge what may be merged now; how many fragments closed. */
int round_rig_merge(struct round *r, uint64_t now, struct round_close *last);

#endif
