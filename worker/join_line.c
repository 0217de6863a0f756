#include "worker/join_line.h"

#include <stdio.h>
#include <string.h>

#include "common/config.h"
#include "common/fileio.h"
#include "common/mem.h"
#include "common/number.h"

enum { ADDRESS_MAX = 4096 };

enum status join_line_read(const char *path, char *out, size_t cap, struct err *err)
{
    void *data;
    size_t size;
    enum status status = file_read(path, ADDRESS_MAX, &data, &size, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_NOTFOUND, "no file %s: is a coordinator running in that folder?", path);
    if (status != STATUS_OK) return status;
    const char *text = data;
    size_t length = strcspn(text, "\r\n");
    bool fits = length > 0 && length < cap;
    if (fits) snprintf(out, cap, "%.*s", (int)length, text);
    mem_free(data);
    return fits ? STATUS_OK : err_set(err, STATUS_CORRUPT, "%s holds no address: start the coordinator again", path);
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
