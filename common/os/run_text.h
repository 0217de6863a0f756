/* Texts about a run for people: the coordinator's lines and bar, and atoll status. */
#ifndef COMMON_RUN_TEXT_H
#define COMMON_RUN_TEXT_H

#include "common/base/units.h"

struct run_text {
    char text[96];
};

/* "8 %, 7 min 46 s left" with the separator ", ". Without the time if it is unknown (NaN), or if all rounds are done.
 * rounds > 0. */
struct run_text run_text_left(double round, double rounds, double eta_s, const char *separator);
/* Nats per token: "2.6257". A diverged run has losses with 40 digits: "1.2e+20". NaN gives "-". */
struct units_text run_text_loss(double loss);

#endif
