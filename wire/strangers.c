#include "wire/strangers.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/log.h"

enum { MINUTE_US = 60 * 1000 * 1000 };

void strangers_log(struct strangers *s, uint64_t now_us)
{
    if (!s->count || now_us < s->next_us) return;
    if (s->count == 1)
        log_warn("refused a connection from %s: %s", s->address, s->reason);
    else
        log_warn("refused %" PRIu64 " connections within a minute, the last one from %s: %s", s->count, s->address,
                 s->reason);
    s->count = 0;
    s->next_us = now_us + MINUTE_US;
}

void strangers_add(struct strangers *s, const char *address, uint64_t now_us)
{
    s->count++;
    snprintf(s->address, sizeof s->address, "%s", address);
    strangers_log(s, now_us);
}
