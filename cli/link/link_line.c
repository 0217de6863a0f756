#include "cli/link/link_line.h"

#include <math.h>

#include "common/base/rng.h"

static const double QUEUE_LEAST_US = 50e3, QUEUE_CHECK_US = 500;
static const double TRANSIT_LEAST = 64 << 20; /* bytes; also the bound without a rate */

enum { PIECE_MIN = 1448, PIECE_US = 2000 };

static double queue_us(const struct line *line)
{
    return fmax(QUEUE_LEAST_US, 2000 * line->delay_ms);
}

/* Bytes in the queue and under way. A receiver that reads slower than the line fills them. */
static double transit_most(const struct line *line)
{
    double way_us = queue_us(line) + 1000 * (line->delay_ms + line->jitter_ms);
    return fmax(TRANSIT_LEAST, 2 * way_us * line->rate_mbit / 8);
}

size_t line_piece(const struct line *line)
{
    double bytes = line->rate_mbit > 0 ? line->rate_mbit / 8 * PIECE_US : LINE_PIECE_MAX;
    return bytes > LINE_PIECE_MAX ? LINE_PIECE_MAX : bytes < PIECE_MIN ? PIECE_MIN : (size_t)bytes;
}

double line_wait_us(const struct line *line, uint64_t now_us)
{
    if ((double)line->in_transit > transit_most(line)) return QUEUE_CHECK_US;
    return fmax(0, line->free_us - (double)now_us - queue_us(line));
}

double line_accept(struct line *line, uint64_t arrival_us, size_t size)
{
    double start = fmax(line->free_us, (double)arrival_us);
    line->free_us = line->rate_mbit > 0 ? start + (double)size * 8 / line->rate_mbit : start;
    line->in_transit += size;
    double jitter_ms = line->jitter_ms > 0 ? line->jitter_ms * rng_uniform(line->seed, RNG_LINK, line->drawn++) : 0;
    return line->free_us + 1000 * (line->delay_ms + jitter_ms);
}
