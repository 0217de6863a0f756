/* Measurements of the link (`atoll probe`): the coordinator answers PROBE with as many bytes as it asks for. All probes
 * together get 10 s, then nobody for 20 s, so that they never slow a run down for long. */
#include "common/base/log.h"
#include "coordinator/engine/engine_impl.h"

enum { PROBING_US = 10 * 1000 * 1000, RESTING_US = 20 * 1000 * 1000 };

void engine_on_probe(struct engine *e, uint64_t peer, const struct msg_probe *m)
{
    static const uint8_t filling[WIRE_PROBE_MAX];
    struct msg reply = {.type = MSG_PROBE_REPLY, .probe_reply = {.id = m->id, .data = filling, .size = m->want}};
    uint64_t rested_us = e->probing_until_us + RESTING_US;
    if (!e->probing_until_us || e->now_us >= rested_us) {
        e->probing_until_us = e->now_us + PROBING_US;
        log_info("a client measures its link");
    } else if (e->now_us >= e->probing_until_us) {
        reply.probe_reply.wait_s = (uint32_t)((rested_us - e->now_us) / 1000000 + 1);
        reply.probe_reply.size = 0;
    }
    /* A full queue drops the reply: the client has more under way than it needs. */
    if (engine_send(e, peer, WIRE_BULK, &reply) != STATUS_OK) log_debug("cannot send PROBE_REPLY");
}
