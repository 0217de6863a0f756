/* The file of one process (rank) of a worker in a saved state: its part of the optimizer and its random numbers.
 *
 *   state.rank-R.TAG.bin    of rank R, for the state with this tag (16 hexadecimal digits)
 *   state.rank-R.spare.bin  overwritten by the next save, then renamed
 *
 * A rank has at most three files: of the newest state (state.bin), of the one before (state.old.bin), and one whose
 * room the next save takes. So a disk that fills up later loses no state. All ranks write at the same time, past the
 * page cache if the file system can (O_DIRECT). A file is fsynced before its rank says so (worker/outer/rank_board.h),
 * and state.bin is renamed after all ranks have said so: every state that a restart finds has all its files.
 *
 * The file begins with rank_file_parts, and zeros up to RANK_FILE_HEAD. The body is the program's. */
#ifndef WORKER_RANK_FILE_H
#define WORKER_RANK_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "common/os/fileio.h"

enum { RANK_FILE_HEAD = 4096 };

extern const struct field_part rank_file_parts[]; /* of the head */

/* A file being written. */
struct rank_file {
    struct file_out out;
    uint32_t rank;
    uint64_t tag, size;
    uint32_t crc;
};

/* Takes a file that no state in the folder needs as the spare one, and begins to write. IO, NOMEM. */
enum status rank_file_begin(struct rank_file *f, const char *folder, uint32_t rank, uint64_t tag,
                            struct err *err) MUST_CHECK;
enum status rank_file_put(struct rank_file *f, const void *data, size_t size, struct err *err) MUST_CHECK;
/* Makes it durable under its name. After a failure only abort is allowed. */
enum status rank_file_end(struct rank_file *f, struct err *err) MUST_CHECK;
/* The spare file keeps its room. Does nothing if no file is open. */
void rank_file_abort(struct rank_file *f);

/* Maps the file of a rank, and checks its body. *body_p points into the map. NOTFOUND, CORRUPT, IO. */
enum status rank_file_map(struct file_map *map, const char *folder, uint32_t rank, uint64_t tag, const uint8_t **body_p,
                          size_t *size_p, struct err *err) MUST_CHECK;
/* All ranks below n_ranks have a file with this tag, with a whole head and of the right length. */
enum status rank_files_check(const char *folder, uint64_t tag, uint32_t n_ranks, struct err *err) MUST_CHECK;
/* A damaged file gets the end .damaged: the next start uses the state before. */
void rank_file_set_aside(const char *folder, uint32_t rank, uint64_t tag);
/* Removes the files of ranks from n_ranks on that no state in the folder needs: the worker had more ranks before. */
void rank_files_sweep(const char *folder, uint32_t n_ranks);

#endif
