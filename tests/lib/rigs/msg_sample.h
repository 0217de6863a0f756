/* Messages of random valid content, for tests of the wire. */
#ifndef TESTS_LIB_MSG_SAMPLE_H
#define TESTS_LIB_MSG_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

/* Every type, ended by 0. */
extern const enum msg_type msg_sample_types[];

/* Make a valid message from (type, seed), by its table of fields. Every field is set, lists hold up to `most` elements,
 * texts about as many characters; padding is zero. Pointers refer to static memory, valid until the next call. */
void msg_sample(struct msg *m, enum msg_type type, uint64_t seed, uint32_t most);
/* Compare type and content; compares the structs, not their encodings. */
bool msg_sample_equal(const struct msg *a, const struct msg *b);

#endif
