#include "wire/zmq/zmq_auth.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/number.h"
#include "common/base/thread.h"

enum { KEY_Z85 = 41, ZAP_PARTS = 7, ZAP_PART_MAX = 255 };

/* Receives one part. Returns its length, which may exceed ZAP_PART_MAX (then it is cut), or -1 on shutdown. */
static int part_recv(void *socket, uint8_t part[ZAP_PART_MAX], int *more_p)
{
    size_t size = sizeof *more_p;
    int n;
    do n = zmq_recv(socket, part, ZAP_PART_MAX, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, more_p, &size)) return -1;
    return n;
}

/* ZAP request: version, request id, domain, address, identity, mechanism, CURVE public key. Answer: version, request
 * id, code, text, user, metadata. The user is the key in hex. */
static bool answer_one(struct zmq_auth *auth)
{
    static const char *const codes[] = {"400", "200"};
    uint8_t part[ZAP_PART_MAX], request[ZAP_PART_MAX];
    char address[64] = "", user[2 * WIRE_KEY + 1] = "";
    int more = 1, n_request = 0, n, i;
    bool curve = false, admitted = false;
    for (i = 0; more; i++) {
        n = part_recv(auth->socket, part, &more);
        if (n < 0) return false;
        if (n > ZAP_PART_MAX) n = ZAP_PART_MAX;
        if (i == 1) memcpy(request, part, (size_t)(n_request = n));
        if (i == 3 && n < (int)sizeof address) memcpy(address, part, (size_t)n);
        if (i == 5) curve = n == 5 && !memcmp(part, "CURVE", 5);
        if (i != 6 || !curve || n != WIRE_KEY) continue;
        admitted = auth->access.admits(auth->access.ctx, part);
        number_hex_text(part, WIRE_KEY, user);
    }
    assert(n_request >= 0 && n_request <= ZAP_PART_MAX);
    admitted = admitted && i == ZAP_PARTS;
    if (!admitted) strangers_add(&auth->refused, address, clock_monotonic_us());
    void *s = auth->socket;
    return zmq_send(s, "1.0", 3, ZMQ_SNDMORE) >= 0 && zmq_send(s, request, (size_t)n_request, ZMQ_SNDMORE) >= 0 &&
           zmq_send(s, codes[admitted], 3, ZMQ_SNDMORE) >= 0 && zmq_send(s, "", 0, ZMQ_SNDMORE) >= 0 &&
           zmq_send(s, user, strlen(user), ZMQ_SNDMORE) >= 0 && zmq_send(s, "", 0, 0) >= 0;
}

static void *answer_all(void *arg)
{
    struct zmq_auth *auth = arg;
    while (answer_one(auth)) continue;
    zmq_close(auth->socket);
    return NULL;
}

static bool start_thread(struct zmq_auth *auth)
{
    errno = thread_start(&auth->thread, answer_all, auth);
    return !errno;
}

bool zmq_auth_key(zmq_msg_t *part, uint8_t key[WIRE_KEY])
{
    const char *user = zmq_msg_gets(part, "User-Id");
    return user && number_hex(user, key, WIRE_KEY);
}

enum status zmq_auth_start(struct zmq_auth *auth, void *context, const struct transport_access *access, struct err *err)
{
    auth->access = *access;
    auth->refused = (struct strangers){.reason = "its key is not enrolled; a new worker needs this run's join line"};
    auth->socket = zmq_socket(context, ZMQ_REP);
    int zero = 0;
    if (auth->socket && !zmq_setsockopt(auth->socket, ZMQ_LINGER, &zero, sizeof zero) &&
        !zmq_bind(auth->socket, "inproc://zeromq.zap.01") && start_thread(auth))
        return STATUS_OK;
    if (auth->socket) zmq_close(auth->socket);
    return err_set(err, STATUS_IO, "cannot start the key check: %s", zmq_strerror(errno));
}

void zmq_auth_join(struct zmq_auth *auth)
{
    pthread_join(auth->thread, NULL);
}

static enum status curve_failed(struct err *err)
{
    if (!zmq_has("curve"))
        return err_set(err, STATUS_UNSUPPORTED, "this ZeroMQ library was built without CURVE: install one that has it");
    return err_set(err, STATUS_INVALID, "CURVE keys: %s", zmq_strerror(errno));
}

enum status zmq_auth_server(void *socket, const uint8_t secret[32], struct err *err)
{
    int one = 1;
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one) ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, WIRE_KEY) ||
        zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "atoll", strlen("atoll")))
        return curve_failed(err);
    return STATUS_OK;
}

enum status zmq_auth_client(void *socket, const uint8_t server_key[32], const struct transport_key *own,
                            struct err *err)
{
    if (zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server_key, WIRE_KEY) ||
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own->public_key, WIRE_KEY) ||
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, own->secret, WIRE_KEY))
        return curve_failed(err);
    return STATUS_OK;
}

enum status transport_key_make(struct transport_key *key, struct err *err)
{
    char public_text[KEY_Z85], secret_text[KEY_Z85];
    if (zmq_curve_keypair(public_text, secret_text) || !zmq_z85_decode(key->public_key, public_text) ||
        !zmq_z85_decode(key->secret, secret_text))
        return curve_failed(err);
    explicit_bzero(secret_text, sizeof secret_text);
    return STATUS_OK;
}

enum status transport_key_complete(struct transport_key *key, struct err *err)
{
    char public_text[KEY_Z85], secret_text[KEY_Z85];
    if (!zmq_z85_encode(secret_text, key->secret, WIRE_KEY) || zmq_curve_public(public_text, secret_text) ||
        !zmq_z85_decode(key->public_key, public_text))
        return curve_failed(err);
    explicit_bzero(secret_text, sizeof secret_text);
    return STATUS_OK;
}
