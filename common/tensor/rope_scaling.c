#include "common/tensor/rope_scaling.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

bool rope_scaling_ok(const struct rope_scaling *s)
{
    if (s->factor == 0) return true;
    return s->factor >= 1 && s->factor <= 1e6 && s->low > 0 && s->low < s->high && s->high <= 1e6 && s->original >= 1 &&
           s->original <= 1e9;
}

enum status rope_scaling_parse(struct rope_scaling *s, const char *text, struct err *err)
{
    int end = 0;
    *s = (struct rope_scaling){0};
    if (!strcmp(text, "none")) return STATUS_OK;
    if (sscanf(text, "llama3:%lf:%lf:%lf:%lf%n", &s->factor, &s->low, &s->high, &s->original, &end) == 4 &&
        !text[end] && s->factor != 0 && rope_scaling_ok(s))
        return STATUS_OK;
    *s = (struct rope_scaling){0};
    return err_set(err, STATUS_INVALID,
                   "model.rope_scaling: \"%.60s\" is not valid; expected none or llama3:FACTOR:LOW:HIGH:ORIGINAL, "
                   "for example llama3:32:1:4:8192",
                   text);
}

const char *rope_scaling_text(const struct rope_scaling *s, char *out, size_t cap)
{
    if (s->factor == 0)
        snprintf(out, cap, "none");
    else
        snprintf(out, cap, "llama3:%.9g:%.9g:%.9g:%.9g", s->factor, s->low, s->high, s->original);
    return out;
}

double rope_scaling_step(const struct rope_scaling *s, double step)
{
    if (s->factor == 0) return step;
    assert(s->low < s->high);
    double turns = s->original * step / (2 * 3.14159265358979323846);
    if (turns < s->low) return step / s->factor;
    if (turns > s->high) return step;
    double fast = (turns - s->low) / (s->high - s->low);
    return (1 - fast) * step / s->factor + fast * step;
}
