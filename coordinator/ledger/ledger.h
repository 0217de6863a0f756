/* The state of the run: everything that survives a restart, and nothing else. It is the fold of a snapshot and the
 * journal records after it: ledger_write appends a record and folds it in, ledger_replay folds in one that recovery
 * read, through the same functions. An outer step is recomputed in replay and compared with the update that was
 * published. */
#ifndef COORDINATOR_LEDGER_H
#define COORDINATOR_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "coordinator/ledger/update_log.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/round/round.h"
#include "wire/object.h"

struct ledger {
    const struct config *config; /* borrowed */
    const char *init_dir;        /* borrowed, or NULL */
    struct journal journal;

    bool begun; /* there is a RUN record */
    uint8_t run_id[WIRE_UUID];
    uint64_t config_hash;
    char *config_text;

    bool modelled; /* the first worker has joined: all below is there */
    struct layout layout;
    uint8_t *model_record; /* body of the MODEL record */
    size_t model_record_size;
    struct record_model model; /* points into model_record */
    char *model_config;
    struct round round;
    struct outer_state outer;
    struct update_log log;

    char down[64];       /* how the last update travels: relay, or its codec; "" before the first */
    uint64_t down_bytes; /* of its object */
    uint64_t down_relay; /* where its payload begins there, when that is relayed deltas; else 0 */

    uint64_t down_ways[2]; /* codec.down auto: what all workers get of it, relayed, or as a union; else 0 */

    uint64_t starts;            /* coordinator processes that took over */
    struct record_clock clock;  /* as of the last record that holds one */
    uint64_t eval_round;        /* rounds done at the last evaluation */
    bool evaluated, eval_final; /* there was one; it was the final one */
    double eval_loss_sum;
    uint64_t eval_tokens;
    bool done;

    struct round_grant *grants; /* room for a grant to every member */
    uint32_t cap_grants;
    struct update_named *named; /* [WIRE_NAMED_MAX] */
};

enum status ledger_init(struct ledger *l, const struct config *config, const char *init_dir,
                        struct err *err) MUST_CHECK;
void ledger_finish(struct ledger *l);

/* Append a record and fold it in. Payload: of RECORD_DELTA, behind its head. Not for RECORD_UPDATE. */
enum status ledger_write(struct ledger *l, enum record_type type, const uint8_t *body, size_t size,
                         const struct store_part *payload, struct err *err) MUST_CHECK;
/* Merge a fragment, take the outer step, append the update and fold it in. clock goes into the record. */
enum status ledger_close(struct ledger *l, const struct round_close *close, const struct record_clock *clock,
                         struct err *err) MUST_CHECK;
/* Fold in a record that recovery found. CORRUPT with a line when it does not fit or an update comes out differently. */
enum status ledger_replay(struct ledger *l, uint16_t type, struct journal_ref at, const uint8_t *body, size_t size,
                          struct err *err) MUST_CHECK;
/* Note where an update lies without applying it (it is older than the snapshot). */
enum status ledger_index(struct ledger *l, uint16_t type, struct journal_ref at, const uint8_t *body, size_t size,
                         struct err *err) MUST_CHECK;
/* Make layout, round and outer state from a MODEL record's body; theta stays zero. */
enum status ledger_set_model(struct ledger *l, const uint8_t *body, size_t size, struct err *err) MUST_CHECK;
enum status ledger_set_run(struct ledger *l, const struct record_run *run) MUST_CHECK;
/* Room in l->grants for every member. */
enum status ledger_room(struct ledger *l) MUST_CHECK;

#endif
