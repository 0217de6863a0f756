/* The beat of an async run: the time between two outer steps if n members together do n x H inner steps in it, and each
 * delivers at its end. A member with a slow link or a slow device takes fewer steps, another one more. Pure.
 *
 * - A member whose transfers leave too little of a beat delivers in every second one, or more seldom.
 * - At least half of the members deliver in every beat; with more than 256, half of the first 256.
 * - A member takes at least BEAT_STEPS_LEAST steps, unless H is smaller, and at most BEAT_STEPS_MOST x H. */
#ifndef COORDINATOR_BEAT_H
#define COORDINATOR_BEAT_H

#include "coordinator/round/round.h"

enum { BEAT_STEPS_LEAST = 5, BEAT_STEPS_MOST = 2 };

/* Seconds, from the measured times of the active members. 0: no times, or all members are about equal. */
double beat_s(const struct round *r);
/* Steps of a member with measured times in a beat of s seconds. *every_p: it delivers in one beat of so many. */
double beat_steps(const struct round *r, const struct member *m, double s, double *every_p);

#endif
