/* A run of model.family external without a model, and the object that its first worker uploads. */
#ifndef TESTS_LIB_INITIAL_RIG_H
#define TESTS_LIB_INITIAL_RIG_H

#include "tests/lib/rigs/engine_rig.h"
#include "worker/outer/outer_initial.h"

struct initial_rig {
    struct rig rig;
    float theta[RIG_PARAMS];
    uint8_t object[1 << 16];
    size_t size; /* of the object */
};

extern struct initial_rig up;

/* The test's folder (tmpdir.h) is the run's. */
void initial_open(void);
void initial_close(void);
/* Makes the bytes that a worker with this model sends, read `step` bytes at a time. */
void initial_object(struct outer_model model, size_t step);
void initial_plain_object(void);
/* The newest UPLOAD to this worker. */
struct msg_upload initial_uploads(int worker);
/* Sends n bytes of the object from `offset` on, or all from `from` on in pieces. */
void initial_send(uint64_t peer, uint64_t id, size_t offset, size_t n);
void initial_send_all(int worker, uint64_t id, size_t from, size_t step);
void initial_expect_theta(void);

#endif
