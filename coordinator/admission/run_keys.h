/* RUN/keys: the keys of a run, in hex, four lines. */
#ifndef COORDINATOR_RUN_KEYS_H
#define COORDINATOR_RUN_KEYS_H

#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

/* The keys of a run: the coordinator's own, and the one whose secret is in the join line. */
struct run_keys {
    uint8_t server_public[WIRE_KEY], server_secret[WIRE_KEY], enrol_public[WIRE_KEY], enrol_secret[WIRE_KEY];
};

/* Reads the keys of the run; the first call creates them (RUN/keys, mode 0600). */
enum status run_keys_read(const char *dir, struct run_keys *keys, struct err *err) MUST_CHECK;
/* Replaces the enrolment key, in *keys and in the file: join lines with the old secret enrol nobody any more. */
enum status run_keys_renew(const char *dir, struct run_keys *keys, struct err *err) MUST_CHECK;

#endif
