/* The ledger: the state of the run that survives a restart. It is the fold of a checkpoint and the journal records
 * after it.
 *
 * - ledger_write appends a record and folds it in; ledger_replay folds in a record that recovery read. Both use the
 *   same functions.
 * - Replay recomputes each outer step and compares it with the published update. */
#ifndef COORDINATOR_LEDGER_H
#define COORDINATOR_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/frozen.h"
#include "common/tensor/layout.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "coordinator/ledger/update_log.h"
#include "coordinator/outer/held.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/round/round.h"
#include "wire/object.h"

enum { LEDGER_EARLIER_MAX = 32, LEDGER_TAKEN_MAX = 32 };

struct ledger {
    struct config *config; /* borrowed; RUN records set the keys that belong to the run */
    const char *init_dir;  /* borrowed, or NULL */
    /* The open file that holds theta and the outer state, mapped; -1: they are in memory. `placed`: this was decided
     * (coordinator/ledger/place/state_file.h). */
    int state_file;
    bool placed;
    const char *folder; /* borrowed: of that file; NULL: there is none. Set after ledger_init */
    float *initial;     /* [n_params] theta_0, owned: of a MODEL record that is written now; NULL: fold computes it */
    struct journal journal;

    bool region; /* its updates are upstream's (coordinator/engine/engine_region.c); set after ledger_init */
    bool absent; /* region: theta of these versions is not here: before the first jump, or a crash cut one short */
    bool skims;  /* replay folds updates without the outer steps: all is right but the floats and their hashes */

    bool begun; /* the RUN record exists */
    uint8_t run_id[WIRE_UUID];
    uint64_t config_hash; /* config_run_hash of the settings now */
    char *config_text;
    uint64_t earlier[LEDGER_EARLIER_MAX]; /* [n_earlier] hashes before changes; the first one stays */
    uint32_t n_earlier;

    struct record_taken taken[LEDGER_TAKEN_MAX]; /* [n_taken] what operators took back; the newest ones */
    uint32_t n_taken;

    bool modelled; /* the MODEL record exists: the members below are set */
    struct layout layout;
    uint8_t *model_record; /* body of the MODEL record */
    size_t model_record_size;
    struct record_model model; /* points into model_record */
    struct frozen frozen;      /* of model.frozen */
    char *model_config;
    struct round round;
    struct outer_state outer;
    struct update_log log;
    struct held held; /* deltas in memory */

    char down[64];       /* encoding of the last update of trained tensors: "relay" or its codec; "": none yet */
    uint64_t down_bytes; /* bytes of its object */
    uint64_t down_relay; /* relayed: offset of the payload in that object; otherwise 0 */

    uint64_t down_ways[2]; /* codec.down auto: bytes to all workers, as relay and as union; otherwise 0 */

    uint64_t starts;            /* number of coordinator processes so far */
    struct record_clock clock;  /* from the last record with a clock */
    uint64_t eval_round;        /* rounds done at the last evaluation */
    bool evaluated, eval_final; /* an evaluation finished; it was the final one */
    bool eval_by_one;           /* of that evaluation: nobody checked the worker */
    double eval_loss_sum;
    uint64_t eval_tokens;
    bool done;

    struct round_grant *grants; /* [cap_grants], one for each member */
    uint32_t cap_grants;
    struct update_named *named; /* [WIRE_NAMED_MAX] */
};

enum status ledger_init(struct ledger *l, struct config *config, const char *init_dir, struct err *err) MUST_CHECK;
void ledger_finish(struct ledger *l);

/* Appends a record (record_encode) and folds it in. payload: for RECORD_DELTA, after its head; its checksum, part.crc,
 * is right. RECORD_UPDATE: use ledger_close. */
enum status ledger_write(struct ledger *l, enum record_type type, const void *record, const struct store_part *payload,
                         struct err *err) MUST_CHECK;
/* Merges a fragment, takes the outer step, appends the update with `clock` and folds it in. */
enum status ledger_close(struct ledger *l, const struct round_close *close, const struct record_clock *clock,
                         struct err *err) MUST_CHECK;
/* A region: publishes an update of upstream, byte for byte but for the deltas that it names: the sealed ones if
 * `taken`, otherwise none. MISMATCH: it gives other parameters than upstream's; the caller must not use the ledger
 * again. */
enum status ledger_publish(struct ledger *l, const struct update *upstream, bool taken,
                           const struct record_clock *clock, struct err *err) MUST_CHECK;
/* Folds in a record that recovery read. CORRUPT with text: it contradicts the state. MISMATCH with text: the recomputed
 * update differs from the published one, so another program version wrote it. */
enum status ledger_replay(struct ledger *l, const struct journal_record *record, struct err *err) MUST_CHECK;
/* Adds the position of an update to the log without applying it; the update is older than the checkpoint. */
enum status ledger_index(struct ledger *l, const struct journal_record *record, struct err *err) MUST_CHECK;
/* Decodes an UPDATE record; named[WIRE_NAMED_MAX] gets the deltas. CORRUPT. */
enum status ledger_read_update(const struct journal_record *record, struct update_named *named,
                               struct update *u) MUST_CHECK;
/* Creates layout, round and outer state from a MODEL record's body; theta stays zero. */
enum status ledger_set_model(struct ledger *l, const uint8_t *body, size_t size, struct err *err) MUST_CHECK;
/* Decides once where theta and the outer state of this layout go. */
void ledger_place(struct ledger *l, const struct layout *layout);
/* Takes identity and settings of the run, the first time or after a change. UNSUPPORTED: another release wrote them. */
enum status ledger_set_run(struct ledger *l, const struct record_run *run, struct err *err) MUST_CHECK;
/* Grows l->grants to the number of members. NOMEM. */
enum status ledger_room(struct ledger *l) MUST_CHECK;

/* The updates in a part of the journal that is cut away. */
struct ledger_lost {
    struct update_named *named;              /* [WIRE_NAMED_MAX] borrowed room */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* newest */
    uint64_t updates;
};

/* Counts the record if it is an update. Records that cannot be decoded are left out. */
void ledger_lost_count(struct ledger_lost *lost, const struct journal_record *record);
/* Rounds behind the ledger's state that the updates complete; 0 with async, where updates are no rounds. */
uint64_t ledger_lost_rounds(const struct ledger_lost *lost, const struct ledger *l);

#endif
