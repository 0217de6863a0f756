#include "coordinator/outer/outer_report.h"

#include <assert.h>
#include <math.h>

#include "common/config/codec_spec.h"

static const double decay = 0.9; /* of the means over rounds */

void outer_sums_add(struct outer_sums *sums, double norm, uint64_t tokens)
{
    sums->deltas++;
    sums->squares += norm * norm;
    sums->small += 1 / (double)tokens;
    sums->big += (double)tokens;
}

void outer_sums_end(struct outer_sums *sums)
{
    double n = sums->deltas;
    assert(n > 0);
    sums->squares /= n;
    sums->small = n / sums->small;
}

static bool is_mean(const struct config *c)
{
    bool senders = c->merge.rule == MERGE_CONTRIBUTORS && codec_spec_sparse(c->codec.up);
    return c->merge.rule != MERGE_RDA && !senders && c->merge.clip != MERGE_CLIP_MEDIAN;
}

void outer_report_add(struct outer_report *r, const struct config *config, const struct outer_sums *sums)
{
    if (!sums->deltas) return;
    r->round.deltas += sums->deltas;
    r->round.lr = sums->lr;
    r->round.nesterov = sums->nesterov;
    r->round.vv += sums->vv;
    r->round.vd += sums->vd;
    r->round.dd += sums->dd;
    r->round.squares += sums->squares;
    if (sums->deltas < 2 || !is_mean(config)) {
        r->alone = true;
        return;
    }
    assert(sums->big > sums->small);
    r->signal += (sums->big * sums->dd - sums->small * sums->squares) / (sums->big - sums->small);
    r->scatter += (sums->squares - sums->dd) / (1 / sums->small - 1 / sums->big);
}

struct outer_signs outer_report_end(struct outer_report *r, const struct config *config)
{
    const struct outer_sums *sums = &r->round;
    struct outer_signs out = {NAN, NAN, NAN, NAN, NAN};
    double mu = config->outer.momentum;
    if (sums->vv > 0 && sums->dd > 0) out.rho = sums->vd / sqrt(sums->vv * sums->dd);
    if (sums->dd > 0 && sums->nesterov) out.gain = 1 + mu + mu * mu * sums->vd / sums->dd;
    out.length = sums->lr * out.gain;
    if (sums->deltas && !r->alone) {
        if (sums->squares > 0) out.agreement = sums->dd / sums->squares;
        r->mean_signal = decay * r->mean_signal + (1 - decay) * r->signal;
        r->mean_scatter = decay * r->mean_scatter + (1 - decay) * r->scatter;
        if (r->mean_signal > 0 && r->mean_scatter > 0) out.noise_tokens = r->mean_scatter / r->mean_signal;
    }
    *r = (struct outer_report){.mean_signal = r->mean_signal, .mean_scatter = r->mean_scatter};
    return out;
}
