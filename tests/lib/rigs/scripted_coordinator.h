/* Private to tests/lib/scripted*.c: the coordinator that does what a test tells it, and the network to its worker, that
 * may lose and double what passes. */
#ifndef TESTS_LIB_SCRIPTED_COORDINATOR_H
#define TESTS_LIB_SCRIPTED_COORDINATOR_H

#include "tests/lib/rigs/scripted.h"

/* Its codecs and version 0, from config and layout; nothing is under way to the worker. */
void scripted_coordinator_begin(void);
void scripted_coordinator_end(void);

/* A message of the worker has come. */
void scripted_take(const struct msg *m);
/* REFUSE; an assignment of the next round. */
void scripted_refuse(uint16_t code);
void scripted_give_work(void);
/* Floats of a fragment. */
size_t scripted_count(uint32_t f);

/* Whatever happens with probability p, by the test's random numbers. */
bool scripted_chance(double p);
/* What comes to the worker next; false: nothing is under way. A chunk's bytes stay until the answers that follow have
 * filled the queue. */
bool scripted_next_answer(struct msg *m);
bool scripted_answers_wait(void);
/* The connection ends. */
void scripted_lose_answers(void);

#endif
