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
/* Make members first ... last ready for work. */
void round_rig_ready(struct round *r, uint32_t first, uint32_t last);
/* Plan a round; returns the number of assignments. */
uint32_t round_rig_plan(struct round *r, uint64_t now, struct round_open *open);
/* Plan and open a round; fails the test unless it has `expect` assignments. */
void round_rig_begin(struct round *r, uint64_t now, uint32_t expect);
/* A measured assignment of `steps` inner steps without transfers. */
void round_rig_speed(struct round *r, uint32_t id, double step_s, uint32_t steps);
/* Start a round of two fragments with three workers. */
void round_rig_at_work(struct round *r);

/* Return the offer of a worker that finished, and the answer to it. */
struct round_offer round_rig_offer(const struct round *r, uint32_t id, uint32_t fragment);
enum round_verdict round_rig_judge(const struct round *r, uint32_t id, const struct round_offer *offer, uint16_t *code);
void round_rig_deliver(struct round *r, uint32_t id, uint32_t fragment, uint64_t now);
/* Merge all complete fragments; returns the number of closed fragments. */
int round_rig_merge(struct round *r, uint64_t now, struct round_close *last);

#endif
