#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/number.h"
#include "wire/endpoint.h"
#include "wire/transport.h"

enum { KEY_DIGITS = 2 * WIRE_KEY };

static enum status key_parse(uint8_t key[WIRE_KEY], const char *text, size_t n, const char *what, struct err *err)
{
    if (n == KEY_DIGITS && number_hex(text, key, WIRE_KEY)) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "address: the %s must be %d hexadecimal digits: copy the whole join line", what,
                   KEY_DIGITS);
}

int transport_address_shown_length(const char *text)
{
    enum { LOOKS_LIKE_A_KEY = 16 };
    size_t part = 0, n = 0;
    for (size_t digits = 0; text[n]; n++) {
        if (text[n] == '/') part = n;
        digits = isxdigit((unsigned char)text[n]) ? digits + 1 : 0;
        if (digits == LOOKS_LIKE_A_KEY) return (int)part;
    }
    return (int)n;
}

enum status transport_address_parse(struct transport_address *a, const char *text, struct err *err)
{
    *a = (struct transport_address){0};
    int shown = transport_address_shown_length(text);
    if (strncmp(text, "tcp://", 6) != 0)
        return err_set(err, STATUS_INVALID, "address %.*s: expected tcp://HOST:PORT", shown < 200 ? shown : 200, text);
    const char *keys = strchr(text + 6, '/');
    size_t n = keys ? (size_t)(keys - text) : strlen(text);
    if (n >= sizeof a->endpoint)
        return err_set(err, STATUS_INVALID, "address: longer than %zu bytes", sizeof a->endpoint);
    memcpy(a->endpoint, text, n);
    struct endpoint e;
    TRY(endpoint_parse(&e, a->endpoint, false, err));
    if (!keys) return err_set(err, STATUS_INVALID, "address %s has no keys: copy the whole join line", a->endpoint);
    const char *secret = strchr(++keys, '/');
    TRY(key_parse(a->server_key, keys, secret ? (size_t)(secret - keys) : strlen(keys), "server key", err));
    if (!secret) return STATUS_OK;
    TRY(key_parse(a->secret, secret + 1, strlen(secret + 1), "secret", err));
    a->has_secret = true;
    return STATUS_OK;
}

void transport_address_format(const struct transport_address *a, char *out, size_t cap)
{
    char key[KEY_DIGITS + 1], secret[KEY_DIGITS + 1];
    snprintf(out, cap, "%s/%s%s%s", a->endpoint, number_hex_text(a->server_key, WIRE_KEY, key),
             a->has_secret ? "/" : "", a->has_secret ? number_hex_text(a->secret, WIRE_KEY, secret) : "");
}
