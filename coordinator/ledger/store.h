/* Where a run lives: journal segments (append-only files) and snapshots. The vtable has a disk implementation
 * (coordinator/ledger/store_disk*.c) and one in memory that loses and tears unsynced data at a crash
 * (tests/lib/store/store_mem.c).
 *
 * A store knows bytes, not records: framing and recovery are coordinator/ledger/journal.c, the meaning is
 * coordinator/ledger/ledger.c. One thread owns a store. After a failed append or sync the only thing left to do is to
 * stop: what is on disk stays a valid journal. */
#ifndef COORDINATOR_STORE_H
#define COORDINATOR_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"

struct store;

struct store_part {
    const void *data;
    size_t size;
};

/* A snapshot to be written. It is complete or absent after a crash: its state is what makes it a snapshot. */
struct store_snapshot {
    uint64_t round; /* its name: rounds merged into it */
    const struct layout *layout;
    const float *theta;             /* layout->n_params */
    const char *config_json;        /* the model's config.json */
    const struct store_part *state; /* the coordinator's state, parts laid end to end */
    size_t n_state;
};

struct store_ops {
    /* Start segment `segment` (a number that was not used before): appends go there from now on. Its existence is
     * durable on return. */
    enum status (*segment_begin)(struct store *s, uint64_t segment, struct err *err);
    /* Go on appending to an existing segment, cut to its first `size` bytes. */
    enum status (*segment_continue)(struct store *s, uint64_t segment, uint64_t size, struct err *err);
    enum status (*append)(struct store *s, const struct store_part *parts, size_t n, struct err *err);
    /* Everything appended so far survives a power cut. */
    enum status (*sync)(struct store *s, struct err *err);
    /* Exactly `size` bytes; CORRUPT past the end. */
    enum status (*segment_read)(struct store *s, uint64_t segment, uint64_t offset, void *dst, size_t size,
                                struct err *err);
    enum status (*segment_size)(struct store *s, uint64_t segment, uint64_t *size_p, struct err *err);
    /* Numbers in ascending order into out[cap]; LIMIT when there are more. */
    enum status (*segment_list)(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err);
    enum status (*segment_remove)(struct store *s, uint64_t segment, struct err *err);

    /* What every snapshot from now on has beside its model: the tokenizer and generation files of the Hugging Face
     * folder `init_dir` (NULL: none), and the tokenizer's file `tokenizer` (NULL: none) in place of another one there.
     * They are copied, durably. Not `anew`: only where nothing is kept yet. CORRUPT when `tokenizer` is none. NULL:
     * this store keeps none. */
    enum status (*files_keep)(struct store *s, const char *init_dir, const char *tokenizer, bool anew, struct err *err);

    /* Durable on return; an older snapshot of the same round is replaced. */
    enum status (*snapshot_write)(struct store *s, const struct store_snapshot *snapshot, struct err *err);
    /* Complete snapshots, rounds ascending. */
    enum status (*snapshot_list)(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err);
    enum status (*snapshot_state_size)(struct store *s, uint64_t round, uint64_t *size_p, struct err *err);
    enum status (*snapshot_state_read)(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                       struct err *err);
    /* theta[first .. first + count) of a snapshot; layout is the run's. */
    enum status (*snapshot_theta_read)(struct store *s, uint64_t round, const struct layout *layout, uint64_t first,
                                       float *dst, uint64_t count, struct err *err);
    /* On OK it is none any more, durably; files in its folder that are not a snapshot's stay, and the folder with
     * them. */
    enum status (*snapshot_remove)(struct store *s, uint64_t round, struct err *err);

    /* Room for what is arriving: bytes at any offset, gone with the process. Forgotten bytes are not read again; whole
     * multiples of SPOOL_ALIGN give their room back. */
    enum status (*spool_write)(struct store *s, uint64_t offset, const void *data, size_t size, struct err *err);
    enum status (*spool_read)(struct store *s, uint64_t offset, void *dst, size_t size, struct err *err);
    void (*spool_forget)(struct store *s, uint64_t offset, uint64_t size);

    void (*close)(struct store *s);
};

struct store {
    const struct store_ops *ops;
};

enum { SPOOL_ALIGN = 4096 };

typedef enum status (*store_list_fn)(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err);

/* Everything that segment_list or snapshot_list has to say, however much it is. The list is the caller's (mem_free);
 * not set after an error. */
enum status store_list(struct store *s, store_list_fn list, uint64_t **list_p, size_t *n_p, struct err *err) MUST_CHECK;

/* RUN/journal/00000000.log ..., RUN/checkpoints/round_000010/{model.safetensors, config.json, coordinator_state.bin},
 * RUN/checkpoints/latest, RUN/tokenizer/ where files are kept. Folders are made when missing; what a crash left
 * half-written is removed. What others put beside and into these folders is left alone. */
enum status store_disk_open(struct store **store_p, const char *run_dir, struct err *err) MUST_CHECK;

#endif
