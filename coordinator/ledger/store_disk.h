/* Private to coordinator/store_disk*.c: a store in a run folder (coordinator/ledger/store.h says how it is laid out).
 *
 *     store_disk.c             open, close, journal segments, the spool
 *     store_disk_files.c       tokenizer/: what snapshots have beside their models
 *     store_disk_snapshots.c   checkpoints/: a folder a snapshot */
#ifndef COORDINATOR_STORE_DISK_H
#define COORDINATOR_STORE_DISK_H

#include <stdbool.h>

#include "common/os/fileio.h"
#include "common/tensor/safetensors.h"
#include "coordinator/ledger/spool.h"
#include "coordinator/ledger/store.h"

struct store_disk {
    struct store base;
    char *dir; /* RUN */
    int fd;    /* segment that takes appends, -1 */
    uint64_t segment, size;
    int read_fd; /* segment read last, -1 */
    uint64_t read_segment;
    bool mapped; /* model.safetensors of a snapshot, read last */
    uint64_t map_round;
    struct safetensors map;
    struct spool spool;
    bool warned; /* of an old checkpoint that stays */
};

static inline struct store_disk *store_disk_of(struct store *s)
{
    return (struct store_disk *)s;
}

/* --- store_disk.c --- */
/* IO: "cannot <what> <path>: <cause>", the cause from errno. */
enum status store_disk_fail(struct err *err, const char *what, const char *path);
/* Exactly `size` bytes of an open file, from `offset` on; `path` is for the error: IO, CORRUPT past the end. */
enum status store_disk_read_exact(int fd, uint64_t offset, void *dst, size_t size, const char *path,
                                  struct err *err) MUST_CHECK;
/* Numbers of names PREFIX<digits>SUFFIX in a folder, ascending, into out[cap]; LIMIT when there are more. */
enum status store_disk_list_numbers(const char *path, const char *prefix, const char *suffix, uint64_t *out, size_t cap,
                                    size_t *n_p, struct err *err) MUST_CHECK;

/* --- store_disk_files.c --- */
/* As struct store_ops says. */
enum status store_disk_files_keep(struct store *s, const char *init_dir, const char *tokenizer, bool anew,
                                  struct err *err) MUST_CHECK;
/* The folder they are in, which may not be there. */
void store_disk_files_path(const struct store_disk *d, char out[FILEIO_PATH_MAX]);

/* --- store_disk_snapshots.c --- */
/* What is at `path`, of somebody else, is kept under another name, NAME.kept-PID. */
enum status store_disk_make_way(const char *path, struct err *err) MUST_CHECK;
/* As struct store_ops says. */
enum status store_disk_snapshot_write(struct store *s, const struct store_snapshot *in, struct err *err) MUST_CHECK;
enum status store_disk_snapshot_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p,
                                     struct err *err) MUST_CHECK;
enum status store_disk_snapshot_state_size(struct store *s, uint64_t round, uint64_t *size_p,
                                           struct err *err) MUST_CHECK;
enum status store_disk_snapshot_state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                           struct err *err) MUST_CHECK;
enum status store_disk_snapshot_theta_read(struct store *s, uint64_t round, const struct layout *layout, uint64_t first,
                                           float *dst, uint64_t count, struct err *err) MUST_CHECK;
enum status store_disk_snapshot_remove(struct store *s, uint64_t round, struct err *err) MUST_CHECK;
/* Removes folders a crash left under temporary names, or without the state that makes them snapshots. Only those of a
 * run, under names that we give, with nothing in them but the files that we write. Then `latest` names the newest. */
enum status store_disk_sweep(struct store_disk *d, struct err *err) MUST_CHECK;
/* Lets go of the snapshot whose theta was read last. */
void store_disk_unmap(struct store_disk *d);

#endif
