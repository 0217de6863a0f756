/* Where the coordinator is: a join line, or a run folder on this machine. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/os/fileio.h"
#include "worker/session/session_impl.h"

enum { ADDRESS_MAX = 4096 };

enum status session_join_line(const char *path, char *out, size_t cap, struct err *err)
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

/* Reads the run's id from `path` (RUN/run_id); zeros if the file is missing or malformed. */
static void read_run_id(const char *path, uint8_t run_id[WIRE_UUID])
{
    void *data;
    size_t size;
    memset(run_id, 0, WIRE_UUID);
    if (file_read(path, ADDRESS_MAX, &data, &size, NULL) != STATUS_OK) return;
    if (!number_hex(data, run_id, WIRE_UUID)) memset(run_id, 0, WIRE_UUID);
    mem_free(data);
}

bool session_run_is_over(const char *run_dir)
{
    char summary[CONFIG_PATH_MAX + 16], lock[CONFIG_PATH_MAX + 16];
    snprintf(summary, sizeof summary, "%s/summary.json", run_dir);
    snprintf(lock, sizeof lock, "%s/lock", run_dir);
    return file_exists(summary) && !file_is_locked(lock);
}

void worker_session_set_target(struct worker_session_options *o, const struct join_target *target)
{
    memcpy(o->join, target->line, sizeof target->line);
    memcpy(o->run_dir, target->run_dir, sizeof target->run_dir);
    o->address_file[0] = '\0';
    if (o->run_dir[0]) snprintf(o->address_file, sizeof o->address_file, "%s/address", o->run_dir);
}

enum status worker_session_read_address(struct worker_session_options *o, struct err *err)
{
    char id_file[CONFIG_PATH_MAX + 16];
    if (!o->run_dir[0]) return STATUS_OK;
    if (session_run_is_over(o->run_dir)) return err_set(err, STATUS_END, "the run in %s is complete", o->run_dir);
    enum status status = session_join_line(o->address_file, o->join, sizeof o->join, err);
    snprintf(id_file, sizeof id_file, "%s/run_id", o->run_dir);
    read_run_id(id_file, o->run_id); /* the coordinator writes run_id before address */
    return status;
}

enum status worker_session_resolve(const struct worker_session_options *o, struct err *err)
{
    struct transport_address address;
    bool ipv6;
    TRY(transport_address_parse(&address, o->join, err));
    address.fail_fast = true;
    enum status status = transport_zmq_resolve(&address, &ipv6, err);
    if (status != STATUS_NOTFOUND || !err) return status;
    return err->code = o->max_wait_us == UINT64_MAX ? STATUS_INVALID : STATUS_AGAIN;
}

enum status worker_session_check_run(const struct worker_session_options *o, const uint8_t run_id[WIRE_UUID],
                                     const char *name, struct err *err)
{
    static const uint8_t any[WIRE_UUID];
    if (!memcmp(o->run_id, any, WIRE_UUID) || !memcmp(o->run_id, run_id, WIRE_UUID)) return STATUS_OK;
    return err_set(err, STATUS_MISMATCH,
                   "the coordinator of %s is not running, and its address now serves another "
                   "run, %s: start the coordinator again, or join that run",
                   o->run_dir, name);
}
