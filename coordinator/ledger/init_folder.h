/* RUN/init: the model that the first worker of a run uploads (model.family external), as a Hugging Face folder. Its
 * files are written to RUN/init.tmp, which is renamed when all of them are on the disk. */
#ifndef COORDINATOR_INIT_FOLDER_H
#define COORDINATOR_INIT_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/os/fileio.h"

struct init_folder {
    char dir[FILEIO_PATH_MAX], tmp[FILEIO_PATH_MAX + 8]; /* RUN/init, RUN/init.tmp */
    int fd;                                              /* of the file being written; -1: none */
    char name[64];                                       /* of that file */
};

/* `run` is the run folder. Removes the unfinished folder of an earlier process. */
enum status init_folder_open(struct init_folder *f, const char *run, struct err *err) MUST_CHECK;
/* Removes an unfinished folder. */
void init_folder_close(struct init_folder *f);
/* The complete folder; NULL: there is none. */
const char *init_folder_path(const struct init_folder *f);
/* Begins a new folder; an unfinished one is removed. */
enum status init_folder_begin(struct init_folder *f, struct err *err) MUST_CHECK;
/* Appends to the file `name`, a plain file name. Another name than that of the last call begins a new file. */
enum status init_folder_write(struct init_folder *f, const char *name, const void *data, size_t size,
                              struct err *err) MUST_CHECK;
/* Makes the bytes of the present file durable. The next file would do it, too. */
enum status init_folder_sync(struct init_folder *f, struct err *err) MUST_CHECK;
/* Makes the folder complete, durably; it replaces an earlier one. */
enum status init_folder_commit(struct init_folder *f, struct err *err) MUST_CHECK;
/* Removes the complete folder and the unfinished one. */
enum status init_folder_remove(struct init_folder *f, struct err *err) MUST_CHECK;

#endif
