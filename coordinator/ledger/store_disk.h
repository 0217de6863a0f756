/* Private to coordinator/ledger/store_disk*.c: a store in a run folder. Its layout: coordinator/ledger/store.h.
 *
 * A part calls only parts further down in this list.
 *
 *     store_disk.c              open, close, journal segments, the spool
 *     store_disk_aside.c        damaged files are renamed, not removed
 *     store_disk_checkpoints.c  checkpoints/: one folder per checkpoint
 *     store_disk_switch.c       a new history takes the place of the old one
 *     store_disk_files.c        tokenizer/: the files that checkpoints contain beside their models
 *     store_disk_base.c         errors, paths, lists, foreign files that are in the way */
#ifndef COORDINATOR_STORE_DISK_H
#define COORDINATOR_STORE_DISK_H

#include <stdbool.h>

#include "common/os/fileio.h"
#include "common/tensor/safetensors.h"
#include "coordinator/ledger/init_folder.h"
#include "coordinator/ledger/spool.h"
#include "coordinator/ledger/store.h"

struct store_disk {
    struct store base;
    char *dir;        /* RUN */
    const char *next; /* behind the names of its folders there: "", or STORE_NEXT; static */
    int fd;           /* the segment open for appending, or -1 */
    uint64_t segment, size;
    int read_fd; /* the segment read last, or -1 */
    uint64_t read_segment;
    bool mapped; /* `map` is model.safetensors of checkpoint map_round */
    uint64_t map_round;
    struct safetensors map;
    struct spool spool;
    char aside[80]; /* name of the folder for damaged segments, made at the first need; "": none yet */
    struct init_folder init;
    bool warned; /* a warning about a checkpoint that cannot be removed was logged */
};

static inline struct store_disk *store_disk_of(struct store *s)
{
    return (struct store_disk *)s;
}

/* --- store_disk_base.c --- */
/* IO: "cannot <what> <path>: <cause>", the cause from errno. */
enum status store_disk_fail(struct err *err, const char *what, const char *path);
/* The same of a call that reads: CORRUPT for damage of the disk (status_of_read). */
enum status store_disk_fail_read(struct err *err, const char *what, const char *path);
/* Reads exactly `size` bytes of an open file at `offset`; `path` is for error texts. IO. CORRUPT past the end, and
 * where the disk cannot read. */
enum status store_disk_read_exact(int fd, uint64_t offset, void *dst, size_t size, const char *path,
                                  struct err *err) MUST_CHECK;
/* RUN/journal/00000012.log */
void store_disk_segment_path(const struct store_disk *d, uint64_t segment, char out[FILEIO_PATH_MAX]);
/* Writes the numbers of names PREFIX<digits>SUFFIX in a folder into out[cap], ascending. LIMIT: there are more. */
enum status store_disk_list_numbers(const char *path, const char *prefix, const char *suffix, uint64_t *out, size_t cap,
                                    size_t *n_p, struct err *err) MUST_CHECK;
/* Renames a foreign file or folder at `path` to NAME.kept-PID. */
enum status store_disk_make_way(const char *path, struct err *err) MUST_CHECK;
/* Unmaps the checkpoint whose theta was read last. */
void store_disk_unmap(struct store_disk *d);

/* --- store_disk_files.c --- */
/* See struct store_ops. */
enum status store_disk_files_keep(struct store *s, const char *init_dir, const char *tokenizer, bool configs,
                                  const struct frozen *frozen, bool anew, struct err *err) MUST_CHECK;
enum status store_disk_file_size(struct store *s, const char *name, uint64_t *size_p) MUST_CHECK;
enum status store_disk_file_read(struct store *s, const char *name, uint64_t offset, void *dst, size_t size,
                                 struct err *err) MUST_CHECK;
/* The path of their folder, which may not exist. */
void store_disk_files_path(const struct store_disk *d, char out[FILEIO_PATH_MAX]);

/* --- store_disk_checkpoints.c --- */
/* See struct store_ops. */
enum status store_disk_checkpoint_write(struct store *s, const struct store_checkpoint *in, struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p,
                                       struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_state_size(struct store *s, uint64_t round, uint64_t *size_p,
                                             struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                             struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_theta_read(struct store *s, uint64_t round, const struct layout *layout,
                                             uint64_t first, float *dst, uint64_t count, struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_remove(struct store *s, uint64_t round, struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_keep(struct store *s, uint64_t round, struct err *err) MUST_CHECK;
enum status store_disk_checkpoint_keep_end(struct store *s, uint64_t round, struct err *err) MUST_CHECK;
/* Removes folders that a crash left under temporary names or without coordinator_state.bin. Only folders of a run, with
 * names and files that only Atoll writes, are removed. Then makes `latest` a link to the newest checkpoint. */
enum status store_disk_sweep(struct store_disk *d, struct err *err) MUST_CHECK;
/* Makes `latest` a link to the newest checkpoint, if there is one. */
enum status store_disk_name_latest(struct store_disk *d, struct err *err) MUST_CHECK;

/* --- store_disk_aside.c --- */
/* See struct store_ops. */
enum status store_disk_checkpoint_put_aside(struct store *s, uint64_t round, char *name, size_t cap,
                                            struct err *err) MUST_CHECK;
enum status store_disk_segment_put_aside(struct store *s, uint64_t segment, uint64_t keep, char *name, size_t cap,
                                         struct err *err) MUST_CHECK;

/* --- store_disk_switch.c --- */
/* A new history of the run is prepared as RUN/journal.take-back, ..., beside the old one. With the file RUN/take-back,
 * which holds the suffix that the old names get, the new history counts (coordinator/ledger/history/take_back.h). */
#define STORE_NEXT ".take-back"
#define STORE_SWITCH "take-back"
/* Opens the store of the new history. */
enum status store_disk_open_next(struct store **store_p, const char *run_dir, struct err *err) MUST_CHECK;
/* The new history counts from here on. `suffix`: ".taken-back-20261128-143015". */
enum status store_disk_switch_decide(const char *run, const char *suffix, struct err *err) MUST_CHECK;
/* For the holder of the run folder's lock, before anything reads the folder: gives the new history the names of the old
 * one, if it counts; otherwise removes what was prepared. *switched_p: the run has another history now. */
enum status store_disk_switch(const char *run, bool *switched_p, struct err *err) MUST_CHECK;
/* Writes a suffix for the old names that is free. */
enum status store_disk_switch_suffix(const char *run, char *suffix, size_t cap, struct err *err) MUST_CHECK;

#endif
