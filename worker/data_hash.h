/* Hash of all training and validation tokens, in a background thread of the lowest priority.
 *
 * tokens.hash, which JOIN carries, reads 64 places of each shard. This hash reads all of it after joining, and the
 * heartbeats carry the result, so a shard that differs anywhere is found. A shard is read once for each size, change
 * time and inode: DIR/data_hashes keeps the hashes, one line a shard:
 *
 *     hash (16 hexadecimal digits), bytes, change time (ns), inode, path */
#ifndef WORKER_DATA_HASH_H
#define WORKER_DATA_HASH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/config/config.h"
#include "common/tensor/tokens.h"
#include "worker/link/heartbeat.h"

/* Zeroed: not started. */
struct data_hash {
    pthread_t thread;
    bool started;
    atomic_bool stop;
    const struct tokens *train, *val; /* borrowed until data_hash_stop */
    struct heartbeat *heartbeat;      /* borrowed; receives the hashes */
    char path[CONFIG_PATH_MAX + 16];
};

/* Starts the thread. dir: the worker's folder; "": none. Without a thread the run goes on without these hashes: logged.
 */
void data_hash_start(struct data_hash *h, const struct tokens *train, const struct tokens *val, const char *dir,
                     struct heartbeat *heartbeat);
/* Ends the thread, finished or not. Accepts a zeroed struct. */
void data_hash_stop(struct data_hash *h);

/* The hash of all shards, never 0. *known: the text of DIR/data_hashes, moved behind the shards found. next (may be
 * NULL): receives the new text. *bytes_p grows by the bytes that were read. *stop: gives up. Returns 0 then, and
 * if a read fails. */
uint64_t data_hash_tokens(const struct tokens *tokens, const char **known, FILE *next, const atomic_bool *stop,
                          uint64_t *bytes_p);

#endif
