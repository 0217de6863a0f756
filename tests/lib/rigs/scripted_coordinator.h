/* Private to tests/lib/rigs/scripted*.c: the scripted coordinator, and the network to its worker, which may lose and
 * duplicate messages. */
#ifndef TESTS_LIB_SCRIPTED_COORDINATOR_H
#define TESTS_LIB_SCRIPTED_COORDINATOR_H

#include "tests/lib/rigs/scripted.h"

/* Create its codecs and version 0 from config and layout; no message is in transit. */
void scripted_coordinator_begin(void);
void scripted_coordinator_end(void);

/* Handle a message of the worker. */
void scripted_take(const struct msg *m);
/* Send REFUSE; assign the next round. */
void scripted_refuse(uint16_t code);
void scripted_give_work(void);
/* Return the number of floats of a fragment. */
size_t scripted_count(uint32_t f);

/* True with probability p, by the test's random sequence. */
bool scripted_chance(double p);
/* Take the next message to the worker; false if none is in transit. A chunk's bytes stay valid until later answers
 * have filled the queue. */
bool scripted_next_answer(struct msg *m);
bool scripted_answers_wait(void);
/* Close the connection. */
void scripted_lose_answers(void);

#endif
