/* The coordinator's small files in the run folder: lock, config.yaml, run_id, address, keys. The list of workers:
 * coordinator/admission/worker_list.h. Journal and checkpoints: coordinator/ledger/store.h. */
#ifndef COORDINATOR_RUN_DIR_H
#define COORDINATOR_RUN_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "coordinator/admission/run_keys.h"
#include "wire/msg.h"
#include "wire/transport.h"

/* INVALID: the folder contains a data set, a model or a worker's state, but no run: the path is probably a mistake. */
enum status run_dir_check_free(const char *dir, struct err *err) MUST_CHECK;
/* Creates the folder, takes its lock and removes half-written files of a killed coordinator. *fd_p holds the lock until
 * the caller closes it. EXISTS: another coordinator has held the lock for 2 s. INVALID as above. */
enum status run_dir_lock(const char *dir, int *fd_p, struct err *err) MUST_CHECK;
/* What was in the run folder before a coordinator started. */
struct run_dir_before {
    size_t existing; /* length of the part of its path that existed */
    unsigned names;  /* bit i: name i of run_dir.c existed */
    bool begun;      /* it holds a journal */
};

void run_dir_look(struct run_dir_before *before, const char *dir);
/* Undoes a first start that failed: removes the files and empty folders that were not there before. The caller holds
 * the lock. Does nothing if the folder held a journal. */
void run_dir_undo(const struct run_dir_before *before, const char *dir);
/* Writes config.yaml: the resolved configuration with the source of each value. */
enum status run_dir_write_config(const char *dir, const struct config *config, const struct config_sources *sources,
                                 struct err *err) MUST_CHECK;
/* Writes RUN/run_id in hex. A program that dials RUN/address compares it, to see if this run still answers there. */
enum status run_dir_write_id(const char *dir, const uint8_t run_id[WIRE_UUID], struct err *err) MUST_CHECK;
/* Removes a file of the run folder that does not hold any more. */
void run_dir_forget(const char *dir, const char *file);
/* Makes a new enrolment key, in RUN/keys and in the join lines of RUN/address if that exists. */
enum status run_dir_renew_enrolment(const char *dir, struct err *err) MUST_CHECK;
/* Writes the endpoint to listen on into out: `listen`, with "*" replaced by the port of RUN/endpoint if that exists. */
void run_dir_last_endpoint(const char *dir, const char *listen, char *out, size_t cap);
/* Writes RUN/endpoint, the bound endpoint, and RUN/address for it (mode 0600). The first line of RUN/address is the
 * join line with this machine's own address, which `atoll status RUN` dials. If `advertise` (coordinator.advertise) is
 * not auto, a second join line follows. line[cap] gets the last join line. */
enum status run_dir_write_address(const char *dir, const char *bound, const char *advertise,
                                  const struct run_keys *keys, char *line, size_t cap, struct err *err) MUST_CHECK;

#endif
