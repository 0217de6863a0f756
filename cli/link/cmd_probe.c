/* atoll probe: measures the link from this machine to a running coordinator, and prints it as a SPEC. */
#include <stdio.h>

#include "cli/link/link_probe.h"
#include "cli/verbs.h"
#include "common/base/units.h"
#include "common/config/link_spec.h"
#include "common/config/options.h"

static void print(const struct link_probe *p)
{
    char spec[LINK_SPEC_MAX];
    struct link_spec link = link_probe_spec(p);
    printf("round trip  %s (least of %d; median %s)\n", units_duration(p->least_ms * 1e-3).text, p->trips,
           units_duration(p->median_ms * 1e-3).text);
    printf("up          %g Mbit/s, to the coordinator\n", link.up_mbit);
    printf("down        %g Mbit/s\n", link.down_mbit);
    printf("link        %s\n", link_spec_print(&link, spec));
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct link_probe result;
    (void)ctx;
    TRY(link_probe_target(&result, o->n_args ? o->args[0] : NULL, err));
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
