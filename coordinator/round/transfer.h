/* The progress of one transfer and its measured rate, for waiting lines and the status. Pure. */
#ifndef COORDINATOR_TRANSFER_H
#define COORDINATOR_TRANSFER_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed: nothing moves. */
struct transfer {
    uint64_t have, total;   /* bytes; total 0: no transfer */
    uint64_t from, from_us; /* bytes and time at its first report */
    uint64_t moved_us;      /* time of the last report with more bytes */
    double rate;            /* bytes per second of the last transfer that was measured; 0: none */
};

/* Reports that `have` of `total` bytes have arrived. Another total or fewer bytes begin another transfer. */
void transfer_note(struct transfer *t, uint64_t have, uint64_t total, uint64_t now_us);
/* Writes ", 43 % at 9.8 Mbit/s", without the parts that are unknown; returns out. */
const char *transfer_text(const struct transfer *t, char *out, size_t cap);

#endif
