/* A follower's copy of the run's model: description, parameters, versions. Snapshots and updates change it as they
 * change a worker's copy, so the hashes agree. */
#ifndef CLI_FOLLOW_MODEL_H
#define CLI_FOLLOW_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/follow/follow_link.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "wire/model_object.h"
#include "wire/object.h"

struct pool;

struct follow_model {
    bool described; /* the members below are set */
    struct layout layout;
    struct config config;
    char *config_json;
    uint32_t n_files;
    struct model_file files[MODEL_FILES_MAX];
    bool updates;                             /* false: the run relays deltas, so only snapshots are read */
    struct codec *down[LAYOUT_FRAGMENTS_MAX]; /* of its updates */
    uint64_t update_bytes;                    /* of the last update of each fragment, together; 0: not known */
    uint64_t last_bytes[LAYOUT_FRAGMENTS_MAX];
    float *theta;                                   /* [n_params] */
    struct wire_version held[LAYOUT_FRAGMENTS_MAX]; /* of theta, if `loaded` */
    bool loaded;
    uint64_t round; /* of theta */

    struct pool *pool;
    struct update_named *named; /* [WIRE_NAMED_MAX] */
    uint8_t *object;            /* [cap] an update, or the description */
    size_t size, cap;
};

void follow_model_finish(struct follow_model *m);
/* Reads the description; a second call does nothing. */
enum status follow_model_describe(struct follow_model *m, struct follow_link *l, struct err *err) MUST_CHECK;
/* True: so many rounds of updates have more bytes than the parameters themselves. */
bool follow_model_is_costly(const struct follow_model *m, uint64_t rounds);
/* Brings theta to the newest versions of `newest`: by updates, or a snapshot and the updates after it, whichever has
 * fewer bytes. With relayed deltas: to the newest snapshot. Then m->round says which round it is.
 *
 * NOTFOUND: the coordinator has removed what was needed: ask again. MISMATCH: theta has another hash; it is loaded
 * again with the next call. Errors of follow_link_fetch, CORRUPT, NOMEM. */
enum status follow_model_read(struct follow_model *m, struct follow_link *l, const struct msg_model_reply *newest,
                              struct err *err) MUST_CHECK;
/* theta holds these parameters already, from a folder written before. False: they have other hashes. */
bool follow_model_resume(struct follow_model *m, const uint64_t *versions, uint64_t round, uint64_t theta_hash);

#endif
