/* The page's numbers in the text format of Prometheus, version 0.0.4.
 *
 * - Counters come first. They are totals of the run, so a restart of page or coordinator does not lower them.
 * - What is unknown is left out. While the data is not current, so are all values that hold only now.
 * - No label holds a run's id: one page shows one run, and Prometheus adds the page's address itself. */
#ifndef CLI_PAGE_METRICS_H
#define CLI_PAGE_METRICS_H

#include <stdio.h>

#include "cli/page/page_run.h"

void page_metrics_write(const struct page_run *run, FILE *out);

#endif
