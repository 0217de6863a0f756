/* Prints the plan of a box, as text or as JSON. */
#ifndef CLI_PLAN_BOX_TEXT_H
#define CLI_PLAN_BOX_TEXT_H

#include <jansson.h>

#include "cli/plan/plan.h"

/* A box's memory, and what an exchange costs. `lora`: the plan of its adapters. */
void plan_box_print_memory(const struct plan *plan, const struct plan_box *box);
void plan_box_print_exchange(const struct plan *plan, const struct plan *lora, const struct plan_box *box,
                             uint32_t workers);
/* The caller owns the object. */
json_t *plan_box_json(const struct plan *plan, const struct plan *lora, const struct plan_box *box, uint32_t workers);

#endif
