/* One direction of a worker's link as numbers: the time at which bytes arrive. */
#ifndef CLI_PLAN_LINE_H
#define CLI_PLAN_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/link_spec.h"
#include "wire/msg.h"

struct plan_line {
    const struct link_spec *spec; /* for its outages */
    double byte_s, delay_s;
    double queue_s; /* bytes that have entered the link's queue for at most so long are in front of every other */
    double free_s;  /* the last byte leaves */
    double bytes;
};

/* A transfer in blocks of half a window: a block may leave when the one before the last has been acknowledged. */
struct plan_flow {
    double at_s;             /* its next block may leave; with left 0: its last byte arrives; INFINITY: no transfer */
    double before_s, last_s; /* arrival of the last two blocks; -INFINITY: none */
    double left;             /* bytes */
};

void plan_line_init(struct plan_line *line, const struct link_spec *spec, bool down);
/* Sends bytes at at_s, behind all others. Returns the time at which the last of them arrives. */
double plan_line_send(struct plan_line *line, double at_s, double bytes);
/* Sends a small message, which passes the blocks that are not yet in the link's queue. */
double plan_line_pass(struct plan_line *line, double at_s, double bytes);
void plan_flow_start(struct plan_flow *flow, double at_s, double bytes);
/* Sends the next block. */
void plan_flow_block(struct plan_flow *flow, struct plan_line *line, double block);

/* Bytes of a message on the wire. n: its fragments, or of METRICS its steps. A chunk without its data. */
double plan_message_bytes(enum msg_type type, uint32_t n);
/* Bytes on the wire of an object of `bytes` bytes. */
double plan_object_bytes(double bytes);

#endif
