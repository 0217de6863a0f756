#include "cli/page/page_curve.h"

#include <assert.h>
#include <math.h>

void curve_reset(struct page_curve *curve)
{
    curve->n = curve->changed = 0;
    curve->stride = 1;
}

static void merge(struct curve_point *into, const struct curve_point *next)
{
    into->last = next->last;
    into->place = next->place;
    into->sum += next->sum;
    into->least = fmin(into->least, next->least);
    into->largest = fmax(into->largest, next->largest);
    into->n += next->n;
}

static void halve(struct page_curve *curve)
{
    for (size_t i = 0; i < CURVE_MAX / 2; i++) {
        struct curve_point pair = curve->points[2 * i];
        merge(&pair, &curve->points[2 * i + 1]);
        curve->points[i] = pair;
    }
    curve->n = CURVE_MAX / 2;
    curve->stride *= 2;
    curve->changed = 0;
}

static void touch(struct page_curve *curve, size_t at)
{
    if (at < curve->changed) curve->changed = at;
}

void curve_cut(struct page_curve *curve, uint64_t round)
{
    while (curve->n && curve->points[curve->n - 1].first >= round) curve->n--;
    struct curve_point *last = curve->n ? &curve->points[curve->n - 1] : NULL;
    if (last && last->last >= round) last->last = round - 1; /* its sums cannot be divided */
    touch(curve, curve->n);
}

void curve_add(struct page_curve *curve, uint64_t round, const struct curve_place *place, double loss)
{
    assert(curve->stride);
    if (!isfinite(loss)) return;
    if (curve->n && round <= curve->points[curve->n - 1].last) curve_cut(curve, round);
    if (curve->n == CURVE_MAX && curve->points[CURVE_MAX - 1].n >= curve->stride) halve(curve);
    const struct curve_point point = {
        .first = round, .last = round, .place = *place, .sum = loss, .least = loss, .largest = loss, .n = 1};
    if (curve->n && curve->points[curve->n - 1].n < curve->stride)
        merge(&curve->points[curve->n - 1], &point);
    else
        curve->points[curve->n++] = point;
    touch(curve, curve->n - 1);
}

/* Numbers have as many digits as a chart needs. */
static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *curve_json(const struct page_curve *curve, size_t from)
{
    json_t *round = json_array(), *tokens = json_array(), *seconds = json_array(), *bytes = json_array(),
           *loss = json_array(), *least = json_array(), *largest = json_array();
    for (size_t i = from; i < curve->n; i++) {
        const struct curve_point *p = &curve->points[i];
        json_array_append_new(round, json_integer((json_int_t)p->last));
        json_array_append_new(tokens, real(p->place.tokens));
        json_array_append_new(seconds, real(p->place.seconds));
        json_array_append_new(bytes, real(p->place.bytes));
        json_array_append_new(loss, real(p->sum / p->n));
        json_array_append_new(least, real(p->least));
        json_array_append_new(largest, real(p->largest));
    }
    json_t *o = json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "from", (json_int_t)from, "round", round, "tokens", tokens,
                          "seconds", seconds, "bytes", bytes, "loss", loss);
    if (curve->stride > 1) {
        json_object_set(o, "least", least);
        json_object_set(o, "largest", largest);
    }
    json_decref(least);
    json_decref(largest);
    return o;
}
