/* atoll probe: measures the link from this machine to a running coordinator, and prints it as a SPEC. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

#include "cli/link/link_probe.h"
#include "cli/link/link_target.h"
#include "cli/verbs.h"
#include "common/base/units.h"
#include "common/config/link_spec.h"
#include "common/config/options.h"
#include "wire/dial_failure.h"

enum { CONNECT_US = 5000000, SLOW_US = 30000000 /* a handshake over a long path */ };

/* A measurement has no more than three digits that mean something. */
static double three_digits(double value)
{
    double unit = value > 0 ? pow(10, floor(log10(value)) - 2) : 1;
    return unit >= 1 ? round(value / unit) * unit : round(value / unit) / round(1 / unit);
}

static void print(const struct link_probe *p)
{
    char spec[LINK_SPEC_MAX];
    struct link_spec link = {.up_mbit = three_digits(p->up_mbit),
                             .down_mbit = three_digits(p->down_mbit),
                             .delay_ms = three_digits(p->least_ms) / 2};
    printf("round trip  %s (least of %d; median %s)\n", units_duration(p->least_ms * 1e-3).text, p->trips,
           units_duration(p->median_ms * 1e-3).text);
    printf("up          %g Mbit/s, to the coordinator\n", link.up_mbit);
    printf("down        %g Mbit/s\n", link.down_mbit);
    printf("link        %s\n", link_spec_print(&link, spec));
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct transport_address address;
    struct transport *t;
    struct link_probe result;
    (void)ctx;
    TRY(link_target_find(&address, o->n_args ? o->args[0] : NULL, err));
    address.quiet = true;
    address.fail_fast = true;
    TRY(transport_zmq_dial(&t, &address, NULL, err));
    enum status status = link_probe_measure(&result, t, CONNECT_US, err), reason = STATUS_AGAIN;
    enum dial_failure seen = (enum dial_failure)atomic_load(&t->failure);
    struct err why = {0};
    if (status == STATUS_CLOSED && !atomic_load(&t->connected))
        reason = dial_failure_explain(&address, seen, DIAL_EXPLAIN_US, &why);
    if (reason == STATUS_OK) status = link_probe_measure(&result, t, SLOW_US, err);
    t->ops->close(t);
    if (reason < 0)
        *err = why;
    else if (status < 0)
        err_prefix(err, "%s", address.endpoint);
    if (status < 0) return err->code;
    print(&result);
    return STATUS_OK;
}

int cmd_probe(int argc, char **argv)
{
    struct options o = {
        .program = "atoll probe",
        .usage = "JOIN",
        .about =
            "Measure the link from this machine to a running coordinator: round trip, and rates in both directions.\n"
            "JOIN is what atoll-worker --join takes; without it ATOLL_JOIN counts. It takes about 4 s, over a\n"
            "long path a minute, and joins nothing. The last line is a SPEC for atoll launch --link. Workers that "
            "train at the same time share\n"
            "the link: for the whole rate, measure before the run begins.",
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, NULL);
}
