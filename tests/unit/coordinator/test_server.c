/* The coordinator's loop around the engine, over a transport with scripted messages and signals. */
#include <signal.h>

#include "common/os/fileio.h"
#include "coordinator/server.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/transport.h"

static int received, answered, signal_at; /* messages; answers; message with the signal, from 1 */

static enum status fake_send(struct transport *t, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size)
{
    (void)t, (void)peer, (void)lane, (void)data, (void)size;
    answered++;
    return STATUS_OK;
}

/* Always returns an invalid message, which gets a REFUSE. */
static enum status fake_recv(struct transport *t, uint64_t timeout_us, uint64_t *peer_p, enum wire_lane *lane_p,
                             const uint8_t **data_p, size_t *size_p)
{
    static const uint8_t noise[4];
    (void)t, (void)timeout_us;
    *peer_p = 1;
    *lane_p = WIRE_CONTROL;
    *data_p = noise;
    *size_p = sizeof noise;
    if (++received == signal_at) raise(SIGTERM);
    assert_true(received <= signal_at); /* otherwise the loop would not end */
    return STATUS_OK;
}

static void fake_wake(struct transport *t)
{
    (void)t;
}

static void fake_bytes(const struct transport *t, uint64_t *sent_p, uint64_t *received_p)
{
    (void)t;
    *sent_p = *received_p = 0;
}

static void fake_close(struct transport *t)
{
    (void)t;
}

static bool fake_key(struct transport *t, uint64_t peer, uint8_t key[WIRE_KEY])
{
    (void)t, (void)peer;
    memset(key, 0, WIRE_KEY);
    return true;
}

/* Replaces ZeroMQ's. */
enum status transport_zmq_listen(struct transport **t_p, const char *endpoint, const struct transport_access *access,
                                 char *bound, size_t cap, struct err *err)
{
    static const struct transport_ops ops = {.send = fake_send,
                                             .recv = fake_recv,
                                             .wake = fake_wake,
                                             .key = fake_key,
                                             .bytes = fake_bytes,
                                             .close = fake_close};
    static struct transport transport = {.ops = &ops};
    (void)access, (void)err;
    snprintf(bound, cap, "%s", endpoint);
    *t_p = &transport;
    return STATUS_OK;
}

/* A worker that is stopped at the same time sends LEAVE. The coordinator must not read it, so that the worker keeps
 * its place. */
TEST_WITH(test_messages_after_signal_are_ignored, tmpdir_make, tmpdir_remove)
{
    static struct config config;
    static struct config_sources sources;
    struct err err = {0};
    config_defaults(&config, &sources);
    snprintf(config.coordinator.listen, sizeof config.coordinator.listen, "tcp://127.0.0.1:*");
    struct server_options options = {.config = &config, .sources = &sources, .run_dir = tmpdir_path("run")};
    tmpdir_put("run/summary.json", "{}"); /* of an earlier run */
    signal_at = 3;
    assert_int_equal(server_run(&options, &err), EXIT_RESUMABLE);
    assert_non_null(strstr(err.msg, "stopped by a signal"));
    assert_int_equal(received, 3);
    assert_int_equal(answered, 2);
    assert_false(file_exists(tmpdir_path("run/summary.json")));
}

TEST_MAIN(NULL, NULL)
