#include <stdio.h>
#include <string.h>

#include "wire/endpoint.h"
#include "wire/transport.h"

enum { KEY_BYTES = 32, KEY_DIGITS = 2 * KEY_BYTES };

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static enum status key_parse(uint8_t key[KEY_BYTES], const char *text, size_t n, const char *what, struct err *err)
{
    bool good = n == KEY_DIGITS;
    for (size_t i = 0; good && i < KEY_BYTES; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        good = high >= 0 && low >= 0;
        key[i] = (uint8_t)((high & 15) << 4 | (low & 15));
    }
    if (good) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "address: the %s must be %d hexadecimal digits: copy the whole join line", what,
                   KEY_DIGITS);
}

int transport_address_shown(const char *text)
{
    enum { LOOKS_LIKE_A_KEY = 16 };
    size_t n = strcspn(text, "/");
    while (text[n] && strspn(text + n + 1, "0123456789abcdefABCDEF") < LOOKS_LIKE_A_KEY)
        n += 1 + strcspn(text + n + 1, "/");
    return (int)n;
}

enum status transport_address_parse(struct transport_address *a, const char *text, struct err *err)
{
    *a = (struct transport_address){0};
    int shown = transport_address_shown(text);
    if (strncmp(text, "tcp://", 6) != 0)
        return err_set(err, STATUS_INVALID, "address %.*s: expected tcp://HOST:PORT", shown < 200 ? shown : 200, text);
    const char *keys = strchr(text + 6, '/');
    size_t n = keys ? (size_t)(keys - text) : strlen(text);
    if (n >= sizeof a->endpoint)
        return err_set(err, STATUS_INVALID, "address: longer than %zu bytes", sizeof a->endpoint);
    memcpy(a->endpoint, text, n);
    struct endpoint e;
    TRY(endpoint_parse(&e, a->endpoint, false, err));
    if (!keys) return STATUS_OK;
    const char *secret = strchr(++keys, '/');
    if (!secret)
        return err_set(err, STATUS_INVALID, "address: expected tcp://HOST:PORT or tcp://HOST:PORT/SERVERKEY/SECRET");
    TRY(key_parse(a->server_key, keys, (size_t)(secret - keys), "server key", err));
    TRY(key_parse(a->secret, secret + 1, strlen(secret + 1), "secret", err));
    a->curve = 1;
    return STATUS_OK;
}

void transport_address_format(const struct transport_address *a, char *out, size_t cap)
{
    char keys[2 * (1 + KEY_DIGITS) + 1] = "";
    if (a->curve) {
        char *p = keys;
        for (int k = 0; k < 2; k++) {
            *p++ = '/';
            for (size_t i = 0; i < KEY_BYTES; i++, p += 2) snprintf(p, 3, "%02x", k ? a->secret[i] : a->server_key[i]);
        }
    }
    snprintf(out, cap, "%s%s", a->endpoint, keys);
}
