/* Addresses: the accepted forms, the error for each invalid one, and that no plain text leaves this machine. */

#include "common/base/mem.h"
#include "tests/lib/net/test_access.h"
#include "tests/lib/test.h"
#include "wire/endpoint.h"
#include "wire/transport.h"

#define HEX64 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static void assert_error(const struct err *err, enum status code, const char *words, const char *input)
{
    if (err->code != code || !strstr(err->msg, words))
        fail_msg("%s: %s, \"%s\"; expected \"%s\"", input, status_text(err->code), err->msg, words);
    assert_null(strchr(err->msg, '\n'));
}

TEST(test_valid_addresses_are_parsed)
{
    static const char *const good[] = {
        "tcp://127.0.0.1:29600/" HEX64,
        "tcp://[::1]:1/" HEX64,
        "tcp://islands.example.org:65535/" HEX64 "/" HEX64,
        "tcp://[2001:db8::1]:29600/" HEX64 "/" HEX64,
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct transport_address a, b;
        struct err err = {0};
        char text[512];
        if (transport_address_parse(&a, good[i], &err) != STATUS_OK) fail_msg("%s: %s", good[i], err.msg);
        assert_int_equal(a.has_secret, i >= 2);
        transport_address_format(&a, text, sizeof text);
        assert_int_equal(strcasecmp(text, good[i]), 0);
        assert_int_equal(transport_address_parse(&b, text, NULL), STATUS_OK);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

TEST(test_server_key_precedes_secret)
{
    struct transport_address a;
    struct transport_key server, enrol;
    char text[512] = "tcp://10.0.0.5:29600/";
    assert_int_equal(transport_key_make(&server, NULL), STATUS_OK);
    assert_int_equal(transport_key_make(&enrol, NULL), STATUS_OK);
    for (int i = 0; i < 64; i++)
        snprintf(text + strlen(text), 4, i == 32 ? "/%02x" : "%02x",
                 i < 32 ? server.public_key[i] : enrol.secret[i - 32]);
    assert_int_equal(transport_address_parse(&a, text, NULL), STATUS_OK);
    assert_memory_equal(a.server_key, server.public_key, 32);
    assert_memory_equal(a.secret, enrol.secret, 32);
    struct transport_key again = {.public_key = {0}};
    memcpy(again.secret, a.secret, 32);
    assert_int_equal(transport_key_complete(&again, NULL), STATUS_OK);
    assert_memory_equal(again.public_key, enrol.public_key, 32);
}

TEST(test_invalid_addresses_are_refused)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "expected tcp://HOST:PORT"},
        {"127.0.0.1:29600", "expected tcp://HOST:PORT"},
        {"http://127.0.0.1:80", "expected tcp://HOST:PORT"},
        {"ipc:///tmp/socket:1", "ipc:///tmp/socket:1: expected tcp://HOST:PORT"},
        {"/" HEX64, "address : expected tcp://HOST:PORT"},
        {"tcp://127.0.0.1", "expected tcp://HOST:PORT"},
        {"tcp://[fe80::1]", "expected tcp://HOST:PORT"},
        {"127.0.0.1:29600/" HEX64 "/" HEX64, "expected tcp://HOST:PORT"},
        {"tcp://", "expected tcp://HOST:PORT"},
        {"tcp://:29600", "host is missing"},
        {"tcp://*:29600", "host is missing"},
        {"tcp://two words:29600", "host is missing"},
        {"tcp://user@host:29600", "host is missing"},
        {"tcp://127.0.0.1;10.0.0.1:29600", "host is missing"},
        {"tcp://::1:29600", "in brackets"},
        {"tcp://127.0.0.1:", "from 1 to 65535"},
        {"tcp://127.0.0.1:0", "from 1 to 65535"},
        {"tcp://127.0.0.1:*", "from 1 to 65535"},
        {"tcp://127.0.0.1:65536", "from 1 to 65535"},
        {"tcp://127.0.0.1:-1", "from 1 to 65535"},
        {"tcp://127.0.0.1:29600x", "from 1 to 65535"},
        {"tcp://127.0.0.1:29600", "tcp://127.0.0.1:29600 has no keys: copy the whole join line"},
        {"tcp://127.0.0.1:29600/", "server key must be 64"},
        {"tcp://127.0.0.1:29600/" HEX64 "/", "secret must be 64"},
        {"tcp://127.0.0.1:29600/" HEX64 "/" HEX64 "0", "secret must be 64"},
        {"tcp://127.0.0.1:29600/" HEX64 "/" HEX64 "/", "secret must be 64"},
        {"tcp://127.0.0.1:29600/xx" HEX64 "/" HEX64, "server key must be 64"},
        {"tcp://127.0.0.1:29600/0011223344556677g899aabbccddeeff00112233445566778899aabbccddeeff/" HEX64, "server key"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct transport_address a;
        struct err err = {0};
        assert_int_equal(transport_address_parse(&a, bad[i].text, &err), STATUS_INVALID);
        assert_error(&err, STATUS_INVALID, bad[i].words, bad[i].text);
        assert_null(strstr(err.msg, HEX64)); /* the log must not show keys */
    }
    char longest[600] = "tcp://";
    memset(longest + 6, 'a', 500);
    struct transport_address a;
    assert_int_equal(transport_address_parse(&a, longest, NULL), STATUS_INVALID);
    strcpy(longest + 220, ":1");
    assert_int_equal(transport_address_parse(&a, longest, NULL), STATUS_INVALID);
}

/* The valid values of coordinator.advertise, for a coordinator at 10.0.0.1:29600. */
TEST(test_advertised_address_gets_default_port)
{
    static const char *const good[][2] = {
        {"islands.example.org", "tcp://islands.example.org:29600"},
        {"islands.example.org:443", "tcp://islands.example.org:443"},
        {"tcp://203.0.113.7", "tcp://203.0.113.7:29600"},
        {"tcp://203.0.113.7:1", "tcp://203.0.113.7:1"},
        {"2001:db8::1", "tcp://[2001:db8::1]:29600"},
        {"[2001:db8::1]", "tcp://[2001:db8::1]:29600"},
        {"tcp://[2001:db8::1]:1", "tcp://[2001:db8::1]:1"},
    };
    static const char *const bad[][2] = {
        {"", "host is missing"},
        {":1", "host is missing"},
        {"two words", "host is missing"},
        {"*", "host is missing"},
        {"host:*", "from 1 to 65535"},
        {"host:0", "from 1 to 65535"},
        {"host:", "from 1 to 65535"},
        {"http://host", "HOST or HOST:PORT"},
        {"host/path", "HOST or HOST:PORT"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char out[272];
        struct err err = {0};
        if (endpoint_advertised(out, sizeof out, good[i][0], "tcp://10.0.0.1:29600", &err) != STATUS_OK)
            fail_msg("%s: %s", good[i][0], err.msg);
        assert_string_equal(out, good[i][1]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char out[272];
        struct err err = {0};
        assert_int_equal(endpoint_advertised(out, sizeof out, bad[i][0], "tcp://10.0.0.1:29600", &err), STATUS_INVALID);
        assert_error(&err, STATUS_INVALID, bad[i][1], bad[i][0]);
    }
}

TEST(test_loopback_and_ipv6_are_detected)
{
    static const struct {
        const char *text;
        bool loopback, ipv6;
    } hosts[] = {{"tcp://127.0.0.1:1", true, false},
                 {"tcp://127.8.9.10:1", true, false},
                 {"tcp://[::1]:1", true, true},
                 {"tcp://[::ffff:127.0.0.1]:1", true, true},
                 {"tcp://[::ffff:10.0.0.1]:1", false, true},
                 {"tcp://10.0.0.1:1", false, false},
                 {"tcp://0.0.0.0:1", false, false},
                 {"tcp://*:*", false, true}};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        struct endpoint e;
        struct endpoint_found found;
        assert_int_equal(endpoint_parse(&e, hosts[i].text, true, NULL), STATUS_OK);
        assert_int_equal(endpoint_find(&found, &e, NULL), STATUS_OK);
        if (found.loopback != hosts[i].loopback || found.ipv6 != hosts[i].ipv6) fail_msg("%s", hosts[i].text);
    }
    struct endpoint unknown = {.host = "no-such-host.invalid", .port = "1"};
    struct endpoint_found found;
    struct err err = {0};
    enum status status = endpoint_find(&found, &unknown, &err); /* AGAIN on a machine without name service */
    assert_true(status == STATUS_NOTFOUND || status == STATUS_AGAIN);
    assert_error(&err, status, "no-such-host.invalid", unknown.host);
}

static enum status try_listen(const char *endpoint, struct err *err)
{
    static struct test_access access;
    struct transport *t;
    char bound[128];
    test_access_make(&access);
    enum status status = transport_zmq_listen(&t, endpoint, &access.access, bound, sizeof bound, err);
    if (status == STATUS_OK) t->ops->close(t);
    return status;
}

TEST(test_listen_refuses_invalid_endpoints)
{
    static const struct {
        const char *endpoint, *words;
        enum status code;
    } bad[] = {
        {"tcp://127.0.0.1:99999", "from 1 to 65535", STATUS_INVALID},
        {"/tmp/socket", "expected tcp://HOST:PORT", STATUS_INVALID},
        {"tcp://no-such-host.invalid:1", "no-such-host.invalid", STATUS_NOTFOUND},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err err = {0};
        enum status status = try_listen(bad[i].endpoint, &err);
        if (status != bad[i].code) fail_msg("%s: %s", bad[i].endpoint, status_text(status));
        if (!strstr(err.msg, bad[i].words)) fail_msg("%s: %s", bad[i].endpoint, err.msg);
    }
    struct err err = {0};
    assert_int_equal(try_listen("tcp://192.0.2.1:*", &err), STATUS_INVALID);
    assert_error(&err, err.code, "does not have that address", "192.0.2.1");
    assert_int_equal(endpoint_check_own("tcp://192.0.2.1:29600", &err), STATUS_INVALID);
    assert_error(&err, err.code, "does not have that address", "192.0.2.1");
    assert_int_equal(endpoint_check_own("tcp://no-such-host.invalid:1", &err), STATUS_INVALID);
    assert_int_equal(endpoint_check_own("tcp://127.0.0.1:*", &err), STATUS_OK);
    assert_int_equal(endpoint_check_own("tcp://*:*", &err), STATUS_OK);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_port_in_use_is_reported)
{
    struct transport *t;
    char bound[128];
    struct err err = {0};
    struct test_access access;
    test_access_make(&access);
    assert_int_equal(transport_zmq_listen(&t, "tcp://localhost:*", &access.access, bound, sizeof bound, NULL),
                     STATUS_OK);
    assert_int_equal(try_listen(bound, &err), STATUS_EXISTS);
    assert_int_equal(endpoint_check_own(bound, &err), STATUS_EXISTS);
    assert_error(&err, err.code, "address already in use, perhaps by another coordinator", bound);
    assert_error(&err, err.code, bound, bound);
    t->ops->close(t);
    assert_int_equal(try_listen(bound, &err), STATUS_OK);
}

TEST(test_dial_refuses_unusable_addresses)
{
    struct transport_worker self = test_access_worker(0);
    struct transport_address a;
    struct transport *t;
    struct err err = {0};
    assert_int_equal(transport_address_parse(&a, "tcp://no-such-host.invalid:1/" HEX64 "/" HEX64, NULL), STATUS_OK);
    a.fail_fast = true;
    assert_int_not_equal(transport_zmq_dial(&t, &a, &self, &err), STATUS_OK);
    assert_non_null(strstr(err.msg, "no-such-host"));
    assert_int_equal(transport_address_parse(&a, "tcp://127.0.0.1:1/" HEX64, NULL), STATUS_OK);
    assert_int_equal(transport_zmq_dial(&t, &a, NULL, &err), STATUS_INVALID); /* the status needs the secret */
    assert_error(&err, STATUS_INVALID, "has no secret: use the whole join line", a.endpoint);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_out_of_memory_is_reported)
{
    struct err err = {0};
    mem_fail_after(1);
    assert_int_equal(try_listen("tcp://127.0.0.1:*", &err), STATUS_NOMEM);
    struct transport *t;
    struct transport_address a = {.endpoint = "tcp://127.0.0.1:1"};
    struct transport_worker self = test_access_worker(0);
    mem_fail_after(1);
    assert_int_equal(transport_zmq_dial(&t, &a, &self, &err), STATUS_NOMEM);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
