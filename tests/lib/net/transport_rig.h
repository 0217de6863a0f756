/* A listener and diallers over loopback, for the tests of the transport. A missing message fails the test. */
#ifndef TESTS_LIB_TRANSPORT_RIG_H
#define TESTS_LIB_TRANSPORT_RIG_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/log.h"
#include "tests/lib/net/test_access.h"
#include "wire/transport.h"

enum { SECOND = 1000 * 1000, PATIENCE = 20 * SECOND };

/* A listener and up to four diallers on an ephemeral port. */
struct endpoints {
    struct transport *listener, *diallers[4];
    struct test_access access;
    char bound[128];
    struct transport_address address;
};

struct arrival {
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
};

/* Listens with the keys of p->access, and sets p->address. */
void listen_at(struct endpoints *p, const char *endpoint);
void dial(struct endpoints *p, int i);
void close_all(struct endpoints *p);
enum status send_to(struct transport *t, uint64_t peer, enum wire_lane lane, const void *data, size_t size);
enum status recv_for(struct transport *t, uint64_t timeout_us, struct arrival *a);
/* Returns the next message, or fails the test. */
struct arrival expect(struct transport *t);
void expect_text(struct transport *t, enum wire_lane lane, const char *text, uint64_t *peer_p);
void say(struct transport *t, uint64_t peer, enum wire_lane lane, const char *text);
/* Introduces dialler i on both lanes; sets peers[lane] to the listener's number for it. */
void greet(struct endpoints *p, int i, uint64_t peers[2]);
/* Both lanes of dialler 0 must reach the listener, after any earlier fault, and get an answer. */
void expect_healed(struct endpoints *p);
/* A sink of the log that keeps the last warning. */
void keep_warning(void *ctx, enum log_level level, const char *line);
/* Whether a warning since forget_warnings() has this text; "": whether there is one. */
bool warned(const char *text);
void forget_warnings(void);

#endif
