/* Messages of random valid content, for tests of everything that carries them. */
#ifndef TESTS_LIB_MSG_SAMPLE_H
#define TESTS_LIB_MSG_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

/* Every type, ended by 0. */
extern const enum msg_type msg_sample_types[];

/* A valid message that is a function of (type, seed): every field is set, lists hold up to `most` elements and texts
 * about as many characters. What no field covers is zero. Pointers go to static memory, valid until the next call. */
void msg_sample(struct msg *m, enum msg_type type, uint64_t seed, uint32_t most);
/* Same type and content; compares the structs, not their encodings. */
bool msg_sample_equal(const struct msg *a, const struct msg *b);

#endif
