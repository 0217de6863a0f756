/* How far the processes (ranks) of a worker are with writing their files of a saved state.
 *
 * The file FOLDER/state.ranks has a slot for each rank. A rank announces a save, and then says that its file is
 * durable, or why it is not. Rank 0 waits for all of them before the state becomes the newest one. A rank holds a lock
 * on its slot meanwhile, which ends with its process: rank 0 does not wait for a rank that was killed. The slots hold
 * nothing that a restart needs. */
#ifndef WORKER_RANK_BOARD_H
#define WORKER_RANK_BOARD_H

#include <stdint.h>

#include "common/base/status.h"

struct rank_board {
    int fd; /* -1: not open */
    uint32_t rank;
};

enum rank_news { RANK_WRITES = 1, RANK_DURABLE, RANK_FAILED };

/* Opens the board and takes the slot of `rank`. IO. */
enum status rank_board_open(struct rank_board *b, const char *folder, uint32_t rank, struct err *err) MUST_CHECK;
void rank_board_close(struct rank_board *b);
/* Writes this rank's slot. `text`: why it failed. IO. */
enum status rank_board_set(struct rank_board *b, uint64_t tag, enum rank_news news, const char *text,
                           struct err *err) MUST_CHECK;
/* Waits until the files of ranks 0 .. n_ranks - 1 with this tag are durable. All of them were announced before. IO: one
 * failed, and err has its reason, or its process has ended. */
enum status rank_board_wait(const char *folder, uint64_t tag, uint32_t n_ranks, struct err *err) MUST_CHECK;

#endif
