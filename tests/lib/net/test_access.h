/* Keys for tests with real sockets: a listener with keys of its own, and workers with keys that depend on a number. */
#ifndef TESTS_LIB_TEST_ACCESS_H
#define TESTS_LIB_TEST_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/transport.h"

struct test_access {
    struct transport_access access; /* for transport_zmq_listen */
    struct transport_key server, enrol;
    _Atomic bool strict;                          /* admit `enrol` and `admitted` only; false: every key */
    const struct transport_key *_Atomic admitted; /* NULL: none */
    uint8_t last[WIRE_KEY];                       /* the key that asked last */
};

/* Makes the keys. *t does not move afterwards. */
void test_access_make(struct test_access *t);
/* The address with the keys of `t`, for the endpoint that a listener is bound to. */
struct transport_address test_access_address(const struct test_access *t, const char *bound);
/* The join line of that address. Returns a static text. */
const char *test_access_line(const struct test_access *t, const char *bound);
/* Worker `i`: always the same key. */
struct transport_worker test_access_worker(int i);

#endif
