/* OUT of `atoll follow`: a link to the folder of the newest model, OUT.round_000040 beside it.
 *
 * - The link is replaced when the new folder is complete, so a reader never sees a half-written model. A reader of
 *   several files resolves the link first: the folder before the newest one stays, too.
 * - OUT/atoll.json says which model it is: run, run_id, round, versions, theta_hash.
 * - Only links and folders with an atoll.json of the same run are replaced or removed. */
#ifndef CLI_FOLLOW_OUT_H
#define CLI_FOLLOW_OUT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/os/fileio.h"
#include "common/tensor/layout.h"
#include "wire/msg.h"

#define FOLLOW_FILE "atoll.json"

/* A model of a run. */
struct follow_label {
    char run[WIRE_NAME_MAX], run_id[2 * WIRE_UUID + 1];
    uint64_t round, theta_hash;
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
};

struct follow_out {
    char path[FILEIO_PATH_MAX - 128]; /* OUT, without slashes at its end */
    bool written;                     /* OUT holds `label` */
    struct follow_label label;
};

/* Parameters in memory, or those of a checkpoint. */
struct follow_content {
    const struct layout *layout;
    const float *theta;      /* NULL: copy those of `files` */
    const char *config_json; /* "": it is one of the files */
    const char *files;       /* folder with the other files */
};

/* Reads what OUT holds. EXISTS: OUT is something else. LIMIT: its path is too long. */
enum status follow_out_open(struct follow_out *out, const char *path, struct err *err) MUST_CHECK;
/* EXISTS: OUT holds a model of another run. */
enum status follow_out_check(const struct follow_out *out, const char *run_id, struct err *err) MUST_CHECK;
/* Writes the folder, makes OUT a link to it, and removes older folders but one. */
enum status follow_out_write(struct follow_out *out, const struct follow_label *label,
                             const struct follow_content *content, struct err *err) MUST_CHECK;

#endif
