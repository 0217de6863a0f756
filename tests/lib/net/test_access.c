#include "tests/lib/net/test_access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool admits(void *ctx, const uint8_t key[WIRE_KEY])
{
    struct test_access *t = ctx;
    const struct transport_key *admitted = t->admitted;
    memcpy(t->last, key, WIRE_KEY);
    return !t->strict || !memcmp(key, t->enrol.public_key, WIRE_KEY) ||
           (admitted && !memcmp(key, admitted->public_key, WIRE_KEY));
}

static struct transport_key key_of(uint8_t number)
{
    struct transport_key key = {.secret = {number, 1, 2, 3, [WIRE_KEY - 1] = 64}};
    if (transport_key_complete(&key, NULL) != STATUS_OK) abort();
    return key;
}

void test_access_make(struct test_access *t)
{
    *t = (struct test_access){.access = {.admits = admits, .ctx = t}, .server = key_of(200), .enrol = key_of(208)};
    memcpy(t->access.server_secret, t->server.secret, WIRE_KEY);
}

struct transport_address test_access_address(const struct test_access *t, const char *bound)
{
    struct transport_address a = {.has_secret = true};
    snprintf(a.endpoint, sizeof a.endpoint, "%s", bound);
    memcpy(a.server_key, t->server.public_key, WIRE_KEY);
    memcpy(a.secret, t->enrol.secret, WIRE_KEY);
    return a;
}

const char *test_access_line(const struct test_access *t, const char *bound)
{
    static char line[512];
    struct transport_address a = test_access_address(t, bound);
    transport_address_format(&a, line, sizeof line);
    return line;
}

struct transport_worker test_access_worker(int i)
{
    struct transport_worker w = {.key = key_of((uint8_t)(8 * (i + 1)))};
    snprintf(w.name, sizeof w.name, "w%d", i);
    return w;
}
