#include "common/config/link_spec.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

static const struct unit {
    const char *name;
    double factor;
} rate_units[] = {{"kbit", 1e-3}, {"mbit", 1}, {"gbit", 1e3}, {NULL, 0}}, /* in Mbit/s */
    time_units[] = {{"ms", 1}, {"s", 1e3}, {NULL, 0}};                    /* in ms */

static const double RATE_LEAST_MBIT = 1e-3, RATE_MOST_MBIT = 1e6, TIME_MOST_MS = 1e9;

/* Part of a text. */
struct span {
    const char *at;
    size_t n;
};

static struct span trimmed(const char *at, size_t n)
{
    while (n && *at == ' ') at++, n--;
    while (n && at[n - 1] == ' ') n--;
    return (struct span){at, n};
}

static bool equals(struct span s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.at, text, s.n);
}

static bool take_prefix(struct span *s, const char *prefix)
{
    size_t n = strlen(prefix);
    if (s->n < n || memcmp(s->at, prefix, n) != 0) return false;
    *s = (struct span){s->at + n, s->n - n};
    return true;
}

/* Parses digits, with a decimal point or not, and a unit. */
static bool parse_quantity(struct span s, const struct unit *units, double *value)
{
    char digits[32], *end;
    size_t n = 0;
    while (n < s.n && n < sizeof digits - 1 && strchr("0123456789.", s.at[n])) digits[n] = s.at[n], n++;
    digits[n] = 0;
    const struct span unit = {s.at + n, s.n - n};
    double number = strtod(digits, &end);
    if (end == digits || *end) return false;
    for (; units->name; units++) {
        if (!equals(unit, units->name)) continue;
        *value = number * units->factor;
        return true;
    }
    return false;
}

static enum status refuse(struct span word, const char *what, struct err *err)
{
    char shown[TEXT_SHOWN];
    return err_set(err, STATUS_INVALID, "\"%s\" of the link %s", text_shown(word.at, word.n, shown), what);
}

/* --- other spellings ---------------------------------------------------------------------------------------------- */

enum { PROPOSAL_MAX = 160 };

/* A quantity as people spell it elsewhere: "10 Mbit/s" gives "10" and "mbit/s". */
struct spelled {
    char digits[24], unit[16];
    double number;
};

static bool spell(struct span s, struct spelled *out)
{
    char *end;
    size_t n = 0, m = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.at[i] == ' ') continue;
        if (!m && strchr("0123456789.", s.at[i]) && n + 1 < sizeof out->digits)
            out->digits[n++] = s.at[i];
        else if (n && m + 1 < sizeof out->unit)
            out->unit[m++] = (char)tolower((unsigned char)s.at[i]);
        else
            return false;
    }
    out->digits[n] = out->unit[m] = '\0';
    out->number = strtod(out->digits, &end);
    return n && !*end;
}

static bool is_one_of(const char *text, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(text, *list)) return true;
    return false;
}

/* Writes the word NAME with the rate as this format spells it. A unit with a b may count bits or bytes. */
static bool propose_rate(const char *name, const struct spelled *q, char out[PROPOSAL_MAX])
{
    static const char *const bits[] = {"", "bit", "bits", "bps", "bit/s", "bits/s", NULL}, *const bytes[] = {
                                                                                               "b",      "b/s",
                                                                                               "byte",   "bytes",
                                                                                               "byte/s", "bytes/s",
                                                                                               NULL};
    char unit = q->unit[0] ? q->unit[0] : 'm';
    const char *rest = q->unit[0] ? q->unit + 1 : "";
    if (!strchr("kmg", unit)) return false;
    if (is_one_of(rest, bits))
        snprintf(out, PROPOSAL_MAX, "write %s%s%cbit", name, q->digits, unit);
    else if (is_one_of(rest, bytes))
        snprintf(out, PROPOSAL_MAX, "write %s%s%cbit if it counts bits, %s%g%cbit if it counts bytes", name, q->digits,
                 unit, name, 8 * q->number, unit);
    else
        return false;
    return true;
}

static bool propose_time(const char *name, const struct spelled *q, char out[PROPOSAL_MAX])
{
    static const char *const ms[] = {"", "ms", "msec", "millis", "milliseconds", NULL}, *const seconds[] = {
                                                                                            "s",      "sec",     "secs",
                                                                                            "second", "seconds", NULL};
    if (!is_one_of(q->unit, ms) && !is_one_of(q->unit, seconds)) return false;
    snprintf(out, PROPOSAL_MAX, "write %s%s%s", name, q->digits, is_one_of(q->unit, ms) ? "ms" : "s");
    return true;
}

/* Refuses a value that is `what`, with the word as this format spells it, or with the usual units. */
static enum status refuse_value(struct span word, struct span value, const char *what,
                                bool (*propose)(const char *, const struct spelled *, char[PROPOSAL_MAX]),
                                const char *usual, struct err *err)
{
    char name[16], proposal[PROPOSAL_MAX], text[PROPOSAL_MAX + 32];
    struct spelled q;
    snprintf(name, sizeof name, "%.*s", (int)(value.at - word.at), word.at);
    bool known = spell(value, &q) && propose(name, &q, proposal);
    snprintf(text, sizeof text, "is no %s: %s", what, known ? proposal : usual);
    return refuse(word, text, err);
}

/* Refuses a word that no rule takes: a name of other programs, or a quantity without a name. */
static enum status refuse_word(struct span word, struct err *err)
{
    static const struct {
        const char *names[6], *ours;
        bool (*propose)(const char *, const struct spelled *, char[PROPOSAL_MAX]);
        const char *what;
    } others[] = {{{"rtt", "delay", "latency", "ping", "lag"}, "rtt=", propose_time, ", the delay of a round trip"},
                  {{"rate", "bw", "bandwidth", "speed", "link"}, "", propose_rate, ""},
                  {{"up", "upload", "uplink", "ul", "tx"}, "up=", propose_rate, ""},
                  {{"down", "download", "downlink", "dl", "rx"}, "down=", propose_rate, ""},
                  {{"jitter"}, "jitter=", propose_time, ""}};
    char name[16] = "", proposal[PROPOSAL_MAX], text[PROPOSAL_MAX + 64];
    const char *equal = memchr(word.at, '=', word.n);
    struct spelled q;
    for (size_t i = 0; equal && i < (size_t)(equal - word.at) && i + 1 < sizeof name; i++)
        name[i] = (char)tolower((unsigned char)word.at[i]);
    struct span value = equal ? (struct span){equal + 1, word.n - (size_t)(equal + 1 - word.at)} : word;
    for (size_t i = 0; spell(value, &q) && i < sizeof others / sizeof *others; i++) {
        bool bare = !equal && !i; /* a time without a name is a delay; a rate has no name */
        if (!bare && !is_one_of(name, others[i].names)) continue;
        if (!others[i].propose(others[i].ours, &q, proposal)) break;
        snprintf(text, sizeof text, "%s: %s%s", bare ? "is a time without a name" : "is unknown", proposal,
                 others[i].what);
        return refuse(word, text, err);
    }
    if (!strcmp(name, "loss")) return refuse(word, "is unknown: packet loss is not modelled", err);
    return refuse(word, "is unknown: use 100mbit, up=, down=, rtt=, jitter=, outage= or none", err);
}

/* --- words -------------------------------------------------------------------------------------------------------- */

static enum status set_rate(double *rate, struct span word, struct span value, struct err *err)
{
    if (*rate > 0) return refuse(word, "sets a rate that another word has set: give each direction one rate", err);
    if (!parse_quantity(value, rate_units, rate))
        return refuse_value(word, value, "rate", propose_rate, "write a number with kbit, mbit or gbit, like 100mbit",
                            err);
    if (!(*rate >= RATE_LEAST_MBIT && *rate <= RATE_MOST_MBIT))
        return refuse(word, "is out of range: a rate is 1kbit to 1000gbit; without a rate there is no limit", err);
    return STATUS_OK;
}

static enum status set_time(double *ms, struct span word, struct span value, struct err *err)
{
    if (*ms > 0) return refuse(word, "comes twice: give it once", err);
    if (!parse_quantity(value, time_units, ms))
        return refuse_value(word, value, "time", propose_time, "write a number with ms or s, like 50ms", err);
    if (*ms > TIME_MOST_MS) return refuse(word, "is no time: it is above 1000000s", err);
    return STATUS_OK;
}

/* Keeps the outages in order. */
static enum status add_outage(struct link_spec *spec, struct span word, struct span value, struct err *err)
{
    const char *plus = memchr(value.at, '+', value.n);
    size_t head = plus ? (size_t)(plus - value.at) : 0;
    struct link_outage o;
    if (!plus || !parse_quantity((struct span){value.at, head}, time_units, &o.start_s) ||
        !parse_quantity((struct span){plus + 1, value.n - head - 1}, time_units, &o.seconds) ||
        o.start_s > TIME_MOST_MS || o.seconds > TIME_MOST_MS || o.seconds <= 0)
        return refuse(word, "is no outage: write its start and its length, like outage=60s+10s", err);
    if (spec->n_outages == LINK_OUTAGES_MAX) return refuse(word, "is one outage too many: at most 16", err);
    o.start_s /= 1e3, o.seconds /= 1e3;
    size_t at = spec->n_outages;
    for (; at && spec->outages[at - 1].start_s > o.start_s; at--) spec->outages[at] = spec->outages[at - 1];
    spec->outages[at] = o;
    spec->n_outages++;
    for (size_t i = 1; i < spec->n_outages; i++)
        if (spec->outages[i - 1].start_s + spec->outages[i - 1].seconds > spec->outages[i].start_s)
            return refuse(word, "overlaps with another outage: make them one", err);
    return STATUS_OK;
}

static enum status parse_word(struct link_spec *spec, struct span word, struct err *err)
{
    struct span value = word;
    if (!word.n) return err_set(err, STATUS_INVALID, "the link has an empty word: write words like 100mbit,rtt=50ms");
    if (take_prefix(&value, "up=")) return set_rate(&spec->up_mbit, word, value, err);
    if (take_prefix(&value, "down=")) return set_rate(&spec->down_mbit, word, value, err);
    if (take_prefix(&value, "jitter=")) return set_time(&spec->jitter_ms, word, value, err);
    if (take_prefix(&value, "outage=")) return add_outage(spec, word, value, err);
    if (take_prefix(&value, "rtt=")) {
        double rtt_ms = spec->delay_ms * 2;
        TRY(set_time(&rtt_ms, word, value, err));
        spec->delay_ms = rtt_ms / 2;
        return STATUS_OK;
    }
    struct spelled q;
    char proposal[PROPOSAL_MAX];
    bool is_time = spell(word, &q) && q.unit[0] && propose_time("", &q, proposal);
    if (!strchr("0123456789.", *word.at) || is_time) return refuse_word(word, err);
    TRY(set_rate(&spec->up_mbit, word, value, err));
    return set_rate(&spec->down_mbit, word, value, err);
}

static enum status parse_span(struct link_spec *spec, struct span text, struct err *err)
{
    *spec = (struct link_spec){0};
    text = trimmed(text.at, text.n);
    if (equals(text, "none")) return STATUS_OK;
    for (const char *end = text.at + text.n;;) {
        const char *comma = memchr(text.at, ',', text.n);
        TRY(parse_word(spec, trimmed(text.at, comma ? (size_t)(comma - text.at) : text.n), err));
        if (!comma) return STATUS_OK;
        text = (struct span){comma + 1, (size_t)(end - comma) - 1};
    }
}

enum status link_spec_parse(struct link_spec *spec, const char *text, struct err *err)
{
    return parse_span(spec, (struct span){text, strlen(text)}, err);
}

enum status link_specs_parse(struct link_spec *specs, size_t n, const char *text, struct err *err)
{
    assert(n);
    size_t count = 1;
    for (const char *p = text; *p; p++) count += *p == ';';
    if (count != 1 && count != n)
        return err_set(err, STATUS_INVALID,
                       "%zu links for %zu workers: give one link for all, or one each, joined by ;", count, n);
    for (size_t i = 0; i < count; i++) {
        size_t length = strcspn(text, ";");
        TRY(parse_span(&specs[i], (struct span){text, length}, err));
        text += length + 1;
    }
    for (size_t i = count; i < n; i++) specs[i] = specs[0];
    return STATUS_OK;
}

/* Appends a word: name, value with at most 9 decimals, unit. */
static size_t append(char *out, size_t used, const char *name, double value, const char *unit)
{
    char digits[32];
    for (int decimals = 0; decimals <= 9; decimals++) {
        snprintf(digits, sizeof digits, "%.*f", decimals, value);
        if (strtod(digits, NULL) == value) break;
    }
    int n = snprintf(out + used, LINK_SPEC_MAX - used, "%s%s%s%s", used ? "," : "", name, digits, unit);
    assert(n > 0 && used + (size_t)n < LINK_SPEC_MAX);
    return used + (size_t)n;
}

const char *link_spec_print(const struct link_spec *spec, char out[LINK_SPEC_MAX])
{
    size_t used = 0;
    bool same = spec->up_mbit == spec->down_mbit;
    if (spec->up_mbit > 0) used = append(out, used, same ? "" : "up=", spec->up_mbit, "mbit");
    if (spec->down_mbit > 0 && !same) used = append(out, used, "down=", spec->down_mbit, "mbit");
    if (spec->delay_ms > 0) used = append(out, used, "rtt=", spec->delay_ms * 2, "ms");
    if (spec->jitter_ms > 0) used = append(out, used, "jitter=", spec->jitter_ms, "ms");
    for (size_t i = 0; i < spec->n_outages; i++) {
        char start[LINK_SPEC_MAX];
        append(start, 0, "outage=", spec->outages[i].start_s, "s+");
        used = append(out, used, start, spec->outages[i].seconds, "s");
    }
    if (!used) snprintf(out, LINK_SPEC_MAX, "none");
    return out;
}

bool link_spec_is_none(const struct link_spec *spec)
{
    return spec->up_mbit <= 0 && spec->down_mbit <= 0 && spec->delay_ms <= 0 && spec->jitter_ms <= 0 &&
           !spec->n_outages;
}
