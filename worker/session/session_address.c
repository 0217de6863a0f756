/* Where the coordinator is: a join line, or a run folder on this machine. */
#include <stdio.h>
#include <string.h>

#include "worker/link/join_line.h"
#include "worker/session/session_impl.h"

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
    if (join_run_is_over(o->run_dir)) return err_set(err, STATUS_END, "the run in %s is complete", o->run_dir);
    enum status status = join_line_read(o->address_file, o->join, sizeof o->join, err);
    snprintf(id_file, sizeof id_file, "%s/run_id", o->run_dir);
    join_run_id_read(id_file, o->run_id); /* the coordinator writes run_id before address */
    return status;
}

enum status worker_session_resolve(const struct worker_session_options *o, struct err *err)
{
    struct transport_address address;
    bool ipv6;
    TRY(transport_address_parse(&address, o->join, err));
    address.fail_fast = true;
    enum status status = transport_zmq_resolve(&address, &ipv6, err);
    return status == STATUS_NOTFOUND && err ? (err->code = STATUS_INVALID) : status;
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
