/* The neighbours of a configuration (other method, H, codec, overlap), and which of them is recommended. */
#ifndef CLI_PLAN_CHOICE_H
#define CLI_PLAN_CHOICE_H

#include "cli/plan/plan.h"

enum { PLAN_NEIGHBOURS_MAX = 24, PLAN_REASON_MAX = 640 };

struct plan_neighbour {
    char what[PLAN_CHANGE_MAX]; /* "H 60", "codec int4:256+huff" */
    struct plan_changes changes;
    struct plan plan;
};

struct plan_choice {
    struct plan_neighbour neighbours[PLAN_NEIGHBOURS_MAX]; /* [n] */
    uint32_t n;
    struct plan_changes changes; /* the recommended settings; n 0: keep the configuration */
    struct plan recommended;     /* their plan, if changes.n */
    char reason[PLAN_REASON_MAX];
};

/* Plans all neighbours of `base` and chooses. Neighbours that the configuration does not allow are left out. */
enum status plan_choose(struct plan_choice *choice, const struct plan *base, const struct plan_request *request,
                        struct err *err) MUST_CHECK;

#endif
