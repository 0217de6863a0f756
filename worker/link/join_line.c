#include "worker/link/join_line.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/config/config.h"
#include "common/os/fileio.h"
#include "wire/transport.h"

enum { ADDRESS_MAX = 4096 };

enum status join_line_read(const char *path, char *out, size_t cap, struct err *err)
{
    void *data;
    size_t size;
    enum status status = file_read(path, ADDRESS_MAX, &data, &size, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_NOTFOUND, "%s does not exist: start a coordinator in that folder", path);
    if (status != STATUS_OK && status != STATUS_LIMIT) return status;
    char line[ADDRESS_MAX] = "";
    struct transport_address address;
    if (status == STATUS_OK) {
        const char *text = data;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\r\n"), text);
        mem_free(data);
    }
    size_t length = strlen(line);
    if (length >= cap || transport_address_parse(&address, line, NULL) != STATUS_OK)
        return err_set(err, STATUS_CORRUPT, "%s holds no address: start the coordinator again, which writes it", path);
    memcpy(out, line, length + 1);
    return STATUS_OK;
}

void join_run_id_read(const char *path, uint8_t run_id[WIRE_UUID])
{
    void *data;
    size_t size;
    memset(run_id, 0, WIRE_UUID);
    if (file_read(path, ADDRESS_MAX, &data, &size, NULL) != STATUS_OK) return;
    if (!number_hex(data, run_id, WIRE_UUID)) memset(run_id, 0, WIRE_UUID);
    mem_free(data);
}

bool join_run_is_over(const char *run_dir)
{
    char summary[CONFIG_PATH_MAX + 16], lock[CONFIG_PATH_MAX + 16];
    snprintf(summary, sizeof summary, "%s/summary.json", run_dir);
    snprintf(lock, sizeof lock, "%s/lock", run_dir);
    return file_exists(summary) && !file_is_locked(lock);
}
