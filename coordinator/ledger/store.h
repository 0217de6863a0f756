/* The storage of a run: journal segments (append-only files), checkpoints and a spool for incoming deltas.
 *
 * - The vtable has two implementations: on disk (coordinator/ledger/store_disk*.c), and in memory
 *   (tests/lib/store/store_mem.c). The second one loses and tears unsynced data at a crash.
 * - A store reads and writes bytes. Framing and recovery are in coordinator/ledger/journal.c, the meaning of records
 *   in coordinator/ledger/ledger.c.
 * - One thread owns a store.
 * - After a failed append or sync the caller must stop. The files on disk are then still a valid journal. */
#ifndef COORDINATOR_STORE_H
#define COORDINATOR_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/frozen.h"
#include "common/tensor/layout.h"

struct store;
struct init_folder;

struct store_part {
    const void *data;
    size_t size;
};

/* The content of a new checkpoint. After a crash a checkpoint is complete or absent: the state is written last. */
struct store_checkpoint {
    uint64_t round; /* its name: the number of merged rounds */
    const struct layout *layout;
    const float *theta;             /* [layout->n_params] */
    const char *config_json;        /* the model's config.json; "": it is one of the kept files, if there is one */
    const struct store_part *state; /* [n_state] the coordinator's state, concatenated */
    size_t n_state;
};

struct store_ops {
    /* Creates segment `segment` (an unused number), durably on return. Later appends go there. */
    enum status (*segment_begin)(struct store *s, uint64_t segment, struct err *err);
    /* Opens an existing segment for appending, truncated to its first `size` bytes. */
    enum status (*segment_continue)(struct store *s, uint64_t segment, uint64_t size, struct err *err);
    enum status (*append)(struct store *s, const struct store_part *parts, size_t n, struct err *err);
    /* On return all appended bytes survive a power cut. */
    enum status (*sync)(struct store *s, struct err *err);
    /* Reads exactly `size` bytes; CORRUPT past the end, and where the disk cannot read. */
    enum status (*segment_read)(struct store *s, uint64_t segment, uint64_t offset, void *dst, size_t size,
                                struct err *err);
    enum status (*segment_size)(struct store *s, uint64_t segment, uint64_t *size_p, struct err *err);
    /* Writes the segment numbers into out[cap], ascending; LIMIT: there are more. */
    enum status (*segment_list)(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err);
    enum status (*segment_remove)(struct store *s, uint64_t segment, struct err *err);
    /* Moves a damaged segment out of the way, durably; nothing is deleted. Its first `keep` bytes stay as the segment;
     * STORE_KEEP_NONE: the segment is gone. Writes the new place to name[cap]. */
    enum status (*segment_put_aside)(struct store *s, uint64_t segment, uint64_t keep, char *name, size_t cap,
                                     struct err *err);

    /* Bytes that the disk has left; UINT64_MAX: unknown. */
    uint64_t (*free_bytes)(struct store *s);
    /* All bytes of that disk; UINT64_MAX: unknown. */
    uint64_t (*total_bytes)(struct store *s);

    /* Copies, durably, the files that later checkpoints contain beside their model:
     * - the tokenizer and generation files of the Hugging Face folder `init_dir` (NULL: none), with `configs` also its
     *   config.json and adapter_config.json;
     * - the file `tokenizer` (NULL: none), which replaces the tokenizer of init_dir;
     * - the tensors `frozen` (NULL: none) of init_dir, as frozen.safetensors: later checkpoints hold them in their
     *   model.safetensors. If init_dir lacks one of them, a line of the log says so.
     * With `anew` false, files that were kept before stay. CORRUPT: `tokenizer` is not a tokenizer file.
     * A NULL slot: this store keeps no files. */
    enum status (*files_keep)(struct store *s, const char *init_dir, const char *tokenizer, bool configs,
                              const struct frozen *frozen, bool anew, struct err *err);

    /* Size of a kept file, by its name beside the model or frozen.safetensors. NOTFOUND: it is not kept. A NULL slot:
     * as files_keep. */
    enum status (*file_size)(struct store *s, const char *name, uint64_t *size_p);
    enum status (*file_read)(struct store *s, const char *name, uint64_t offset, void *dst, size_t size,
                             struct err *err);

    /* The run folder. A NULL slot: there is none. */
    const char *(*folder)(struct store *s);
    /* The model that a worker uploads, RUN/init (coordinator/ledger/init_folder.h). NULL: this store keeps none. */
    struct init_folder *(*init_folder)(struct store *s);

    /* Writes a checkpoint, durably on return; it replaces an older checkpoint of the same round. */
    enum status (*checkpoint_write)(struct store *s, const struct store_checkpoint *checkpoint, struct err *err);
    /* Writes the rounds of complete checkpoints into out[cap], ascending; LIMIT: there are more. */
    enum status (*checkpoint_list)(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err);
    enum status (*checkpoint_state_size)(struct store *s, uint64_t round, uint64_t *size_p, struct err *err);
    enum status (*checkpoint_state_read)(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                         struct err *err);
    /* Reads theta[first .. first + count) of a checkpoint; layout: the run's. */
    enum status (*checkpoint_theta_read)(struct store *s, uint64_t round, const struct layout *layout, uint64_t first,
                                         float *dst, uint64_t count, struct err *err);
    /* Renames a damaged checkpoint, so that no start loads it; its files stay. Writes the new name to name[cap]. */
    enum status (*checkpoint_put_aside)(struct store *s, uint64_t round, char *name, size_t cap, struct err *err);
    /* Removes a checkpoint, durably on OK. Foreign files in its folder stay, and then the folder stays, too. */
    enum status (*checkpoint_remove)(struct store *s, uint64_t round, struct err *err);
    /* Takes the model of a checkpoint out of the run: afterwards the checkpoint does not exist, but its model does, as
     * checkpoints/before_jump_000010, until keep_end is called for it. A NULL slot: this store only removes. */
    enum status (*checkpoint_keep)(struct store *s, uint64_t round, struct err *err);
    enum status (*checkpoint_keep_end)(struct store *s, uint64_t round, struct err *err);

    /* The spool holds incoming deltas and a snapshot, at offsets that the caller chooses, until the process ends. After
     * spool_forget the caller does not read these bytes again. Whole blocks of SPOOL_ALIGN bytes return to the disk. */
    enum status (*spool_write)(struct store *s, uint64_t offset, const void *data, size_t size, struct err *err);
    enum status (*spool_read)(struct store *s, uint64_t offset, void *dst, size_t size, struct err *err);
    void (*spool_forget)(struct store *s, uint64_t offset, uint64_t size);

    void (*close)(struct store *s);
};

struct store {
    const struct store_ops *ops;
};

/* The run folder of a store; NULL: it has none. */
const char *store_folder(struct store *s);

enum { SPOOL_ALIGN = 4096 };
#define STORE_KEEP_NONE UINT64_MAX

typedef enum status (*store_list_fn)(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err);

/* Calls segment_list or checkpoint_list with a large enough array. The caller owns *list_p (mem_free); it is unset
 * after an error. */
enum status store_list(struct store *s, store_list_fn list, uint64_t **list_p, size_t *n_p, struct err *err) MUST_CHECK;

/* Opens the store in a run folder:
 * - RUN/journal/00000000.log ...
 * - RUN/checkpoints/round_000010/{model.safetensors, config.json, coordinator_state.bin},
 *   and the link RUN/checkpoints/latest to the newest of them
 * - RUN/checkpoints/before_jump_000010/{model.safetensors, config.json}
 * - RUN/tokenizer/ (if files are kept)
 * - RUN/init/ (if a worker uploaded the initial model)
 * Creates missing folders and removes half-written files of a crash. Foreign files in these folders stay. */
enum status store_disk_open(struct store **store_p, const char *run_dir, struct err *err) MUST_CHECK;
/* For a reader: changes nothing there. The caller calls no function that writes. */
enum status store_disk_open_read(struct store **store_p, const char *run_dir, struct err *err) MUST_CHECK;

#endif
