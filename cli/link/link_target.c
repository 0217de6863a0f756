#include "cli/link/link_target.h"

#include <stdint.h>
#include <string.h>

#include "common/os/fileio.h"
#include "coordinator/run_folder.h"
#include "wire/join_target.h"

enum status link_target_find(struct transport_address *address, const char *given, struct err *err)
{
    struct join_target target;
    char path[FILEIO_PATH_MAX];
    TRY(join_target_read(&target, (char *)(uintptr_t)given, err)); /* a word of argv */
    if (target.run_dir[0]) {
        TRY(run_folder_path(path, sizeof path, target.run_dir, "address", err));
        if (run_folder_read_line(path, target.line, sizeof target.line, NULL) != STATUS_OK)
            return err_set(err, STATUS_NOTFOUND, "%s has no address: no coordinator runs in that folder; start it",
                           target.run_dir);
    }
    enum status status = transport_address_parse(address, target.line, err);
    explicit_bzero(target.line, sizeof target.line);
    return status;
}

const char *link_target_host(const struct transport_address *address)
{
    return address->endpoint + strlen("tcp://");
}
