#include "common/base/units.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* A smaller number of a unit counts as zero: %g would write it with an exponent. */
static const double least = 1e-4;

/* Writes `value` with three digits, and a unit. */
static struct units_text three_digits(double value, const char *unit)
{
    struct units_text out;
    bool plain = value >= 999.5 && value < 1e9; /* %.3g would write an exponent */
    snprintf(out.text, sizeof out.text, plain ? "%.0f%s%s" : "%.3g%s%s", value, *unit ? " " : "", unit);
    return out;
}

/* Uses the largest of n units of 1000 each that leaves at least 1. */
static struct units_text scaled(double value, const char *const *units, size_t n)
{
    size_t unit = 0;
    if (isnan(value)) return (struct units_text){"-"};
    if (isinf(value) && value > 0) return (struct units_text){"∞"};
    if (value < least) value = 0;
    for (; value >= 999.5 && unit + 1 < n; unit++) value /= 1000;
    return three_digits(value, units[unit]);
}

/* Two units; the second one is left out if it is zero. */
static struct units_text two_units(double value, double size, const char *large, const char *small)
{
    struct units_text out;
    double rest = fmod(value, size);
    int n = snprintf(out.text, sizeof out.text, "%.0f %s", floor(value / size), large);
    if (rest > 0 && n > 0 && (size_t)n < sizeof out.text)
        snprintf(out.text + n, sizeof out.text - (size_t)n, " %.0f %s", rest, small);
    return out;
}

struct units_text units_duration(double seconds)
{
    if (isnan(seconds)) return (struct units_text){"-"};
    if (isinf(seconds) && seconds > 0) return (struct units_text){"∞"};
    double ms = seconds * 1e3;
    if (ms < least) return (struct units_text){"0 s"};
    if (ms < 999.5) return three_digits(ms, "ms");
    if (seconds < 59.95) return three_digits(seconds, "s");
    double whole = rint(seconds), minutes = rint(seconds / 60), hours = rint(seconds / 3600);
    if (whole < 3600) return two_units(whole, 60, "min", "s");
    if (minutes < 48 * 60) return two_units(minutes, 60, "h", "min");
    return two_units(hours, 24, "d", "h");
}

struct units_text units_us(uint64_t us)
{
    return units_duration((double)us * 1e-6);
}

struct units_text units_whole_seconds(double seconds)
{
    return units_duration(rint(seconds));
}

struct units_text units_bytes(double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    return scaled(bytes, units, sizeof units / sizeof *units);
}

struct units_text units_count(double count)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    return scaled(count, units, sizeof units / sizeof *units);
}

struct units_text units_percent(double fraction)
{
    struct units_text out;
    double percent = 100 * fraction;
    if (isnan(percent)) return (struct units_text){"-"};
    if (isinf(percent) && percent > 0) return (struct units_text){"∞"};
    if (percent < least) percent = 0;
    if (percent < 0.995)
        snprintf(out.text, sizeof out.text, "%.2g %%", percent);
    else if (fraction < 1 && rint(percent) >= 100)
        snprintf(out.text, sizeof out.text, "%.1f %%", fmin(floor(10 * percent + 1e-6) / 10, 99.9));
    else
        snprintf(out.text, sizeof out.text, "%.0f %%", percent);
    return out;
}
