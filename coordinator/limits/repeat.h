/* Repeated lines: the first one of a kind is written at once, the others within the same second are counted. Pure: no
 * clock, no allocation.
 *
 * The table has a fixed size. If it is full of kinds of this second, further kinds are only counted. */
#ifndef COORDINATOR_REPEAT_H
#define COORDINATOR_REPEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/msg.h"

enum { REPEAT_KINDS = 64, REPEAT_US = 1000000 };

struct repeat_line {
    uint64_t key;      /* 0: free */
    uint64_t since_us; /* time of the line that was written */
    uint32_t more;     /* lines that were not written since then */
    int kind;          /* of the last of them, with its worker ("": none) and text */
    char worker[WIRE_NAME_MAX], text[256];
};

struct repeat {
    struct repeat_line lines[REPEAT_KINDS];
    uint32_t lost; /* lines of kinds that found no room */
    uint64_t lost_us;
};

/* A line of this kind is due. True: write it now. Lines of one kind and worker are repetitions if `same_text` is false
 * or their texts differ in digits only. worker may be NULL. */
bool repeat_note(struct repeat *r, int kind, const char *worker, const char *text, bool same_text, uint64_t now_us);
/* The next line whose second is over and that has repetitions; the caller writes it with its count. False: none. */
bool repeat_take(struct repeat *r, uint64_t now_us, struct repeat_line *line);
/* Lines without room since the last call, once a second; 0: none. */
uint32_t repeat_take_lost(struct repeat *r, uint64_t now_us);
/* When repeat_take may return a line; UINT64_MAX: never. */
uint64_t repeat_deadline_us(const struct repeat *r);

#endif
