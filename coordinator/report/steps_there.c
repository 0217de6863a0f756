#include "coordinator/report/steps_there.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

enum { TEXT_MAX = 512 };

/* What the worker said; the rest of a line is of the moment when it was written. Of its digits those that the file
 * has. */
static uint64_t key_of(const json_t *step)
{
    static const char *const said[] = {"worker", "step", "round", "loss", "lr", "grad_norm", "tokens_per_s"};
    char text[TEXT_MAX];
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) json_object_set(o, said[i], json_object_get(step, said[i]));
    size_t n = json_dumpb(o, text, sizeof text, JSON_COMPACT | JSON_REAL_PRECISION(STEPS_THERE_DIGITS));
    json_decref(o);
    uint64_t key = hash64(text, n < sizeof text ? n : sizeof text);
    return key ? key : 1;
}

bool steps_there_add(struct steps_there *s, const json_t *step)
{
    uint64_t key = key_of(step), *set = s->sets[key % STEPS_THERE_SETS];
    for (int i = 0; i < STEPS_THERE_WAYS; i++)
        if (set[i] == key) return false;
    memmove(set + 1, set, (STEPS_THERE_WAYS - 1) * sizeof *set);
    set[0] = key;
    return true;
}

static void read_tail(struct steps_there *s, FILE *file)
{
    char *line = NULL;
    size_t cap = 0;
    if (fseek(file, 0, SEEK_END)) return;
    long end = ftell(file);
    bool cut = end > STEPS_THERE_TAIL;
    if (fseek(file, cut ? end - STEPS_THERE_TAIL : 0, SEEK_SET)) return;
    for (ssize_t n; (n = getline(&line, &cap, file)) > 0; cut = false) {
        if (cut || !strstr(line, "\"event\":\"step\"")) continue;
        json_t *o = json_loadb(line, (size_t)n, 0, NULL);
        if (o) (void)steps_there_add(s, o);
        json_decref(o);
    }
    free(line);
}

enum status steps_there_init(struct steps_there *s, FILE *file)
{
    s->sets = mem_alloc(STEPS_THERE_SETS, sizeof *s->sets);
    if (!s->sets) return STATUS_NOMEM;
    read_tail(s, file);
    return STATUS_OK;
}

void steps_there_finish(struct steps_there *s)
{
    mem_free(s->sets);
    s->sets = NULL;
}
