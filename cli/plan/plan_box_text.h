/* Prints the plan of a box, as text or as JSON. */
#ifndef CLI_PLAN_BOX_TEXT_H
#define CLI_PLAN_BOX_TEXT_H

#include <jansson.h>

#include "cli/plan/plan.h"

struct plan_box_view {
    const struct plan *plan, *lora; /* lora: the plan of the adapters alone */
    const struct plan_box *box;
    const struct link_spec *link; /* of the first box */
    uint32_t workers;
};

void plan_box_print_memory(const struct plan *plan, const struct plan_box *box);
/* What the exchange of a round costs. */
void plan_box_print_exchange(const struct plan_box_view *view);
/* The caller owns the object. */
json_t *plan_box_json(const struct plan_box_view *view);

#endif
