#include "coordinator/admission/run_keys.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/os/fileio.h"
#include "wire/transport.h"

enum { KEY_BYTES = 32, KEYS_BYTES = 4 * (2 * KEY_BYTES + 1) };

static void key_line(const uint8_t key[KEY_BYTES], char *out)
{
    number_hex_text(key, KEY_BYTES, out);
    out[2 * KEY_BYTES] = '\n';
    out[2 * KEY_BYTES + 1] = 0;
}

static bool key_read(const char *line, uint8_t key[KEY_BYTES])
{
    return number_hex(line, key, KEY_BYTES) && line[2 * KEY_BYTES] == '\n';
}

enum status run_keys_renew(const char *dir, struct run_keys *keys, struct err *err)
{
    const uint8_t *const fields[] = {keys->server_public, keys->server_secret, keys->enrol_public, keys->enrol_secret};
    struct transport_key enrol;
    char path[FILEIO_PATH_MAX], text[KEYS_BYTES + 1] = "";
    TRY(transport_key_make(&enrol, err));
    memcpy(keys->enrol_public, enrol.public_key, WIRE_KEY);
    memcpy(keys->enrol_secret, enrol.secret, WIRE_KEY);
    for (int i = 0; i < 4; i++) key_line(fields[i], text + strlen(text));
    snprintf(path, sizeof path, "%s/keys", dir);
    enum status status = file_write_private(path, text, strlen(text), err);
    explicit_bzero(&enrol, sizeof enrol);
    explicit_bzero(text, sizeof text);
    return status;
}

enum status run_keys_read(const char *dir, struct run_keys *keys, struct err *err)
{
    uint8_t *const fields[] = {keys->server_public, keys->server_secret, keys->enrol_public, keys->enrol_secret};
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/keys", dir);
    if (!file_exists(path)) {
        struct transport_key server;
        TRY(transport_key_make(&server, err));
        memcpy(keys->server_public, server.public_key, WIRE_KEY);
        memcpy(keys->server_secret, server.secret, WIRE_KEY);
        explicit_bzero(&server, sizeof server);
        return run_keys_renew(dir, keys, err);
    }
    void *data;
    size_t size;
    TRY(file_read(path, KEYS_BYTES, &data, &size, err));
    bool good = size == KEYS_BYTES;
    for (int i = 0; good && i < 4; i++) good = key_read((const char *)data + i * (2 * KEY_BYTES + 1), fields[i]);
    mem_free(data);
    return good ? STATUS_OK
                : err_set(err, STATUS_CORRUPT,
                          "%.300s is not a key file: restore it, or remove it to create new keys "
                          "(workers then need the new join line)",
                          path);
}
