#include "tests/lib/net/transport_rig.h"
#include "tests/lib/test.h"

#include <pthread.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

static pthread_mutex_t warnings_lock = PTHREAD_MUTEX_INITIALIZER; /* threads of the listener warn, too */
static char warnings[4096];
static size_t warnings_size;

void listen_at(struct endpoints *p, const char *endpoint)
{
    struct err err = {0};
    if (!p->access.access.admits) test_access_make(&p->access);
    if (transport_zmq_listen(&p->listener, endpoint, &p->access.access, p->bound, sizeof p->bound, &err))
        fail_msg("%s", err.msg);
    p->address = test_access_address(&p->access, p->bound);
}

void dial(struct endpoints *p, int i)
{
    struct transport_worker self = test_access_worker(i);
    struct err err = {0};
    if (transport_zmq_dial(&p->diallers[i], &p->address, &self, &err)) fail_msg("%s", err.msg);
}

void close_all(struct endpoints *p)
{
    for (int i = 0; i < 4; i++)
        if (p->diallers[i]) p->diallers[i]->ops->close(p->diallers[i]);
    if (p->listener) p->listener->ops->close(p->listener);
    memset(p, 0, sizeof *p);
    assert_int_equal(mem_live_bytes(), 0);
}

enum status send_to(struct transport *t, uint64_t peer, enum wire_lane lane, const void *data, size_t size)
{
    return t->ops->send(t, peer, lane, data, size);
}

enum status recv_for(struct transport *t, uint64_t timeout_us, struct arrival *a)
{
    return t->ops->recv(t, timeout_us, &a->peer, &a->lane, &a->data, &a->size);
}

struct arrival expect(struct transport *t)
{
    struct arrival a;
    for (uint64_t end = clock_monotonic_us() + PATIENCE; clock_monotonic_us() < end;)
        if (recv_for(t, SECOND, &a) == STATUS_OK) return a;
    fail_msg("no message arrived");
    return a;
}

void expect_text(struct transport *t, enum wire_lane lane, const char *text, uint64_t *peer_p)
{
    struct arrival a = expect(t);
    assert_int_equal(a.lane, lane);
    assert_int_equal(a.size, strlen(text));
    assert_memory_equal(a.data, text, a.size);
    if (peer_p) *peer_p = a.peer;
}

void say(struct transport *t, uint64_t peer, enum wire_lane lane, const char *text)
{
    assert_int_equal(send_to(t, peer, lane, text, strlen(text)), STATUS_OK);
}

void greet(struct endpoints *p, int i, uint64_t peers[2])
{
    for (int lane = WIRE_CONTROL; lane <= WIRE_BULK; lane++) {
        say(p->diallers[i], 0, (enum wire_lane)lane, "hello");
        expect_text(p->listener, (enum wire_lane)lane, "hello", &peers[lane]);
    }
}

void keep_warning(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    pthread_mutex_lock(&warnings_lock);
    if (level == LOG_WARN && warnings_size + strlen(line) + 2 <= sizeof warnings)
        warnings_size += (size_t)sprintf(warnings + warnings_size, "%s\n", line);
    pthread_mutex_unlock(&warnings_lock);
}

bool warned(const char *text)
{
    pthread_mutex_lock(&warnings_lock);
    bool found = warnings_size && strstr(warnings, text);
    pthread_mutex_unlock(&warnings_lock);
    return found;
}

void forget_warnings(void)
{
    pthread_mutex_lock(&warnings_lock);
    warnings[0] = 0;
    warnings_size = 0;
    pthread_mutex_unlock(&warnings_lock);
}

void expect_healed(struct endpoints *p)
{
    uint64_t peers[2], end = clock_monotonic_us() + PATIENCE;
    struct arrival a;
    for (int lane = 0; lane < 2;) {
        assert_true(clock_monotonic_us() < end);
        assert_true(send_to(p->diallers[0], 0, (enum wire_lane)lane, "now?", 4) >= STATUS_OK);
        recv_for(p->diallers[0], SECOND / 50, &a); /* the transport handles its events in recv */
        if (recv_for(p->listener, SECOND / 50, &a) == STATUS_OK && a.lane == (enum wire_lane)lane)
            peers[lane++] = a.peer;
    }
    say(p->listener, peers[WIRE_BULK], WIRE_BULK, "welcome");
    expect_text(p->diallers[0], WIRE_BULK, "welcome", NULL);
}
