/* The pace of a run: medians of its latest rounds and evaluations, and whether the link is the bottleneck. Pure.
 *
 * A median ignores pauses: a round that waited an hour for a worker does not change the time left. */
#ifndef COORDINATOR_PACE_H
#define COORDINATOR_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PACE_SAMPLES = 15 };

/* The latest PACE_SAMPLES values. Zeroed: none. */
struct pace_ring {
    double values[PACE_SAMPLES];
    uint32_t n, next;
};

struct pace {
    struct pace_ring round_s, tokens, eval_s;
    uint32_t link_score; /* consecutive rounds, up to 3, in which transfers took more than half of the time */
    bool link_bound;
};

/* `rounds` rounds ended together after `s` seconds, with `tokens` in all. */
void pace_rounds(struct pace *p, uint32_t rounds, double s, double tokens);
/* Forgets the rounds: later ones have another length. */
void pace_restart(struct pace *p);
void pace_eval(struct pace *p, double s);
/* NaN: nothing measured. */
double pace_round_s(const struct pace *p);
double pace_tokens_per_s(const struct pace *p);
double pace_eval_s(const struct pace *p);
/* A round of round_s seconds spent link_s seconds on the transfers of its slowest worker. After 3 such rounds in a row
 * link_bound becomes true or false; returns whether it changed. link_s NaN: unknown. */
bool pace_link(struct pace *p, double link_s, double round_s);

#endif
