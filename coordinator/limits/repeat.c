#include "coordinator/limits/repeat.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"

static uint64_t key_of(int kind, const char *worker, const char *text, bool same_text)
{
    char all[WIRE_NAME_MAX + 256 + 16];
    size_t n = (size_t)snprintf(all, sizeof all, "%d %s ", kind, worker);
    for (; same_text && *text && n < sizeof all; text++)
        if (*text < '0' || *text > '9') all[n++] = *text;
    uint64_t key = hash64(all, n);
    return key ? key : 1;
}

bool repeat_note(struct repeat *r, int kind, const char *worker, const char *text, bool same_text, uint64_t now_us)
{
    const char *name = worker ? worker : "";
    uint64_t key = key_of(kind, name, text, same_text);
    struct repeat_line *place = NULL;
    for (size_t i = 0; i < REPEAT_KINDS; i++) {
        struct repeat_line *line = &r->lines[i];
        bool live = line->key && (line->more || now_us < line->since_us + REPEAT_US);
        if (live && line->key == key) {
            line->more++;
            line->kind = kind;
            snprintf(line->worker, sizeof line->worker, "%s", name);
            snprintf(line->text, sizeof line->text, "%s", text);
            return false;
        }
        if (!live) place = line;
    }
    if (!place) {
        if (!r->lost++) r->lost_us = now_us;
        return false;
    }
    *place = (struct repeat_line){.key = key, .since_us = now_us};
    return true;
}

bool repeat_take(struct repeat *r, uint64_t now_us, struct repeat_line *line)
{
    for (size_t i = 0; i < REPEAT_KINDS; i++) {
        struct repeat_line *at = &r->lines[i];
        if (!at->more || now_us < at->since_us + REPEAT_US) continue;
        *line = *at;
        at->more = 0;
        at->since_us = now_us;
        return true;
    }
    return false;
}

uint32_t repeat_take_lost(struct repeat *r, uint64_t now_us)
{
    if (!r->lost || now_us < r->lost_us + REPEAT_US) return 0;
    uint32_t lost = r->lost;
    r->lost = 0;
    return lost;
}

uint64_t repeat_deadline_us(const struct repeat *r)
{
    uint64_t at = r->lost ? r->lost_us + REPEAT_US : UINT64_MAX;
    for (size_t i = 0; i < REPEAT_KINDS; i++)
        if (r->lines[i].more && r->lines[i].since_us + REPEAT_US < at) at = r->lines[i].since_us + REPEAT_US;
    return at;
}
