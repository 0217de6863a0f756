/* The coordinator's files in the run folder other than journal and checkpoints: lock, config.yaml, run_id, address,
 * keys. */
#ifndef COORDINATOR_RUN_DIR_H
#define COORDINATOR_RUN_DIR_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "wire/msg.h"
#include "wire/transport.h"

/* INVALID: a data set, a model or the state of a worker lies there, and no run: a slip. */
enum status run_dir_check_free(const char *dir, struct err *err) MUST_CHECK;
/* Make the folder, take its lock and remove files that a coordinator killed before left half written; *fd_p holds the
 * lock until closed. EXISTS when another coordinator has it, for two seconds; INVALID as above. */
enum status run_dir_lock(const char *dir, int *fd_p, struct err *err) MUST_CHECK;
/* config.yaml: resolved, with where each value came from. */
enum status run_dir_write_config(const char *dir, const struct config *config, const struct config_sources *sources,
                                 struct err *err) MUST_CHECK;
/* RUN/run_id, in hex: whoever finds RUN/address can tell whether this run still answers there. */
enum status run_dir_write_id(const char *dir, const uint8_t run_id[WIRE_UUID], struct err *err) MUST_CHECK;
/* Remove a summary of another run that was here: the one that begins or goes on would be taken for complete. */
void run_dir_forget_summary(const char *dir);
/* The keys of the run, made at the first call (RUN/keys, mode 0600). */
enum status run_dir_keys(const char *dir, struct transport_keys *keys, struct err *err) MUST_CHECK;
/* Where to listen: `listen`, with the port of RUN/address in place of "*" if there is one. */
void run_dir_last_endpoint(const char *dir, const char *listen, char *out, size_t cap);
/* Write RUN/address for what was bound: the join line with this machine's own address, which `atoll status RUN` dials,
 * and a second one where `advertise` (coordinator.advertise) is not auto. keys NULL: plain. line gets the last one. */
enum status run_dir_write_address(const char *dir, const char *bound, const char *advertise,
                                  const struct transport_keys *keys, char *line, size_t cap,
                                  struct err *err) MUST_CHECK;

#endif
