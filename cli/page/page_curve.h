/* A curve of a run for the page: at most CURVE_MAX points, however many rounds the run has. A point holds `stride`
 * rounds: the mean of their losses, and the least and the largest one, so that a jump stays visible. When the curve is
 * full, each two points become one. */
#ifndef CLI_PAGE_CURVE_H
#define CLI_PAGE_CURVE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum { CURVE_MAX = 2048 };

/* Where a round ends, on each axis. */
struct curve_place {
    double tokens;  /* of all workers so far */
    double seconds; /* that the run has trained and evaluated so far */
    double bytes;   /* that coordinator and workers have sent so far */
};

struct curve_point {
    uint64_t first, last;       /* rounds */
    struct curve_place place;   /* of the last one */
    double sum, least, largest; /* of the losses */
    uint32_t n;                 /* losses */
};

struct page_curve {
    struct curve_point points[CURVE_MAX]; /* [n], in order of their rounds */
    size_t n;
    uint32_t stride; /* losses of a full point */
    size_t changed;  /* points from here on changed since the last curve_json */
};

void curve_reset(struct page_curve *curve);
/* Adds the loss of a round. A round that is not behind the last one takes back all rounds from it on: the file repeats
 * a round, or the run was rolled back. A loss that is not finite is left out. */
void curve_add(struct page_curve *curve, uint64_t round, const struct curve_place *place, double loss);
/* Forgets the rounds from `round` on. A point that holds earlier rounds, too, stays. */
void curve_cut(struct page_curve *curve, uint64_t round);
/* The points from `from` on as lists: {"from", "round", "tokens", "seconds", "bytes", "loss"}, and "least" and
 * "largest" if points hold several rounds. A reader drops its points from `from` on and appends these. NULL: no memory.
 */
json_t *curve_json(const struct page_curve *curve, size_t from);

#endif
