#include "coordinator/round/pace.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/median.h"

enum { LINK_ROUNDS = 3 };

static const double link_share = 0.5, link_min_s = 0.05; /* shorter transfers hurt no one */

static void add(struct pace_ring *r, double value)
{
    assert(r->next < PACE_SAMPLES && r->n <= PACE_SAMPLES && isfinite(value));
    r->values[r->next] = value;
    r->next = (r->next + 1) % PACE_SAMPLES;
    if (r->n < PACE_SAMPLES) r->n++;
}

static double median(const struct pace_ring *r)
{
    double v[PACE_SAMPLES];
    if (!r->n) return NAN;
    memcpy(v, r->values, r->n * sizeof *v);
    return median_of(v, r->n);
}

void pace_rounds(struct pace *p, uint32_t rounds, double s, double tokens)
{
    assert(rounds > 0 && s >= 0);
    for (uint32_t i = 0; i < rounds; i++) {
        add(&p->round_s, s / rounds);
        add(&p->tokens, tokens / rounds);
    }
}

void pace_restart(struct pace *p)
{
    p->round_s = p->tokens = (struct pace_ring){.n = 0};
}

void pace_eval(struct pace *p, double s)
{
    assert(s >= 0);
    add(&p->eval_s, s);
}

double pace_round_s(const struct pace *p)
{
    return median(&p->round_s);
}

double pace_tokens_per_s(const struct pace *p)
{
    double s = median(&p->round_s);
    return s > 0 ? median(&p->tokens) / s : NAN;
}

double pace_eval_s(const struct pace *p)
{
    return median(&p->eval_s);
}

bool pace_link(struct pace *p, double link_s, double round_s)
{
    bool before = p->link_bound, over = link_s >= link_min_s && link_s > link_share * round_s;
    if (isnan(link_s)) return false;
    if (over && p->link_score < LINK_ROUNDS) p->link_score++;
    if (!over && p->link_score > 0) p->link_score--;
    if (p->link_score == LINK_ROUNDS) p->link_bound = true;
    if (p->link_score == 0) p->link_bound = false;
    return p->link_bound != before;
}
