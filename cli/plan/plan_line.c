#include "cli/plan/plan_line.h"

#include <math.h>
#include <string.h>

#include "worker/sync/sync.h"

static const double least_s = 20e-6; /* no message arrives in the step in which it is sent */

void plan_line_init(struct plan_line *line, const struct link_spec *spec, bool down)
{
    double mbit = down ? spec->down_mbit : spec->up_mbit, delay_s = 1e-3 * spec->delay_ms;
    *line = (struct plan_line){.spec = spec,
                               .byte_s = mbit > 0 ? 8e-6 / mbit : 0,
                               .delay_s = fmax(least_s, delay_s + 0.5e-3 * spec->jitter_ms),
                               .queue_s = fmax(0.05, 2 * delay_s)};
}

double plan_line_send(struct plan_line *line, double at_s, double bytes)
{
    double t = fmax(at_s, line->free_s), left = bytes * line->byte_s;
    for (size_t i = 0; i < line->spec->n_outages; i++) {
        const struct link_outage *o = &line->spec->outages[i];
        if (t + left <= o->start_s || t >= o->start_s + o->seconds) continue;
        left -= fmax(0, o->start_s - t);
        t = o->start_s + o->seconds;
    }
    line->free_s = t + left;
    line->bytes += bytes;
    return line->free_s + line->delay_s;
}

double plan_line_pass(struct plan_line *line, double at_s, double bytes)
{
    double own_s = bytes * line->byte_s, busy_s = fmax(0, line->free_s - at_s);
    if (busy_s > 0) line->free_s += own_s;
    line->bytes += bytes;
    return at_s + fmin(busy_s, line->queue_s) + own_s + line->delay_s;
}

void plan_flow_start(struct plan_flow *flow, double at_s, double bytes)
{
    *flow = (struct plan_flow){.at_s = at_s, .before_s = -INFINITY, .last_s = -INFINITY, .left = bytes};
}

void plan_flow_block(struct plan_flow *flow, struct plan_line *line, double block)
{
    double size = fmin(flow->left, block);
    flow->before_s = flow->last_s;
    flow->last_s = plan_line_send(line, flow->at_s, size);
    flow->left -= size;
    if (!(flow->left > 0)) flow->at_s = flow->last_s;
}

double plan_message_bytes(enum msg_type type, uint32_t n)
{
    static const uint8_t none;
    static struct msg m; /* large */
    memset(&m, 0, sizeof m);
    m.type = type;
    switch (type) {
    case MSG_CHUNK: m.chunk.data = &none; break;
    case MSG_METRICS: m.metrics.n_steps = n < WIRE_METRICS_MAX ? n : WIRE_METRICS_MAX; break;
    case MSG_HEARTBEAT: m.heartbeat.n_fragments = n; break;
    case MSG_ASSIGN:
        m.assign.n_fragments = n;
        m.assign.n_ranges = 1;
        break;
    default: break;
    }
    return (double)msg_encoded_size(&m);
}

double plan_object_bytes(double bytes)
{
    return bytes + ceil(bytes / SYNC_CHUNK) * plan_message_bytes(MSG_CHUNK, 0);
}
