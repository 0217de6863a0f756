#include "coordinator/ledger/place/state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "coordinator/outer/outer_arrays.h"
#include "coordinator/outer/outer_state.h"

static bool is_short(const struct config *config, const struct layout *layout, uint64_t *free_p)
{
    uint64_t need, total;
    uint32_t workers = config->coordinator.min_workers;
    host_memory(free_p, &total);
    if (!total || outer_state_bytes(&need, config, layout, workers, NULL) != STATUS_OK) return false;
    return need + outer_buffer_bytes(workers, layout->n_params) > *free_p;
}

/* Reserves the room once, and gives it back: mem_map appends the arrays one by one. Otherwise errno says why not. */
static bool has_room(int fd, uint64_t bytes)
{
    errno = posix_fallocate(fd, 0, (off_t)bytes);
    return !errno && !ftruncate(fd, 0);
}

int state_file_open(const char *folder, const struct config *config, const struct layout *layout)
{
    char path[FILEIO_PATH_MAX], takes[MEMORY_TEXT_MAX], has[MEMORY_TEXT_MAX];
    uint64_t left;
    if (!is_short(config, layout, &left)) return -1;
    memory_text(outer_arrays_bytes(config, layout), takes);
    memory_text(left, has);
    snprintf(path, sizeof path, "%s/outer_state", folder);
    /* A killed coordinator may have left its file, in the moment between open and unlink. */
    int fd = unlink(path) && errno != ENOENT
                 ? -1
                 : descriptors_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, FILE_PRIVATE);
    if (fd < 0 || unlink(path) || !has_room(fd, outer_arrays_bytes(config, layout))) {
        log_warn("parameters and outer state (%s) stay in memory, of which %s are free: cannot make %s: %s", takes, has,
                 path, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    log_info("parameters and outer state (%s) are in a file of %s, because %s of memory are free: outer steps may wait "
             "for this disk",
             takes, folder, has);
    return fd;
}
