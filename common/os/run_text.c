#include "common/os/run_text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

struct run_text run_text_left(double round, double rounds, double eta_s, const char *separator)
{
    struct run_text out;
    assert(rounds > 0);
    struct units_text percent = units_percent(round / rounds);
    /* Whole seconds: the estimate has no more digits. */
    struct units_text left = units_whole_seconds(eta_s);
    if (isfinite(eta_s) && round < rounds)
        snprintf(out.text, sizeof out.text, "%s%.8s%s left", percent.text, separator, left.text);
    else
        snprintf(out.text, sizeof out.text, "%s", percent.text);
    return out;
}

struct units_text run_text_loss(double loss)
{
    struct units_text out;
    snprintf(out.text, sizeof out.text, isnan(loss) ? "-" : fabs(loss) < 1e5 ? "%.4f" : "%.3g", loss);
    return out;
}
