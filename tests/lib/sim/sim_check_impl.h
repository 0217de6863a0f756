/* The checker's books; see tests/lib/sim/sim_check.h. sim_check.c: failures, the coordinator; sim_check_log.c: the log
 * of updates and what each should be; sim_check_net.c: messages; sim_check_worker.c: what workers train and send. */
#ifndef TESTS_LIB_SIM_CHECK_IMPL_H
#define TESTS_LIB_SIM_CHECK_IMPL_H

#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "tests/lib/sim/sim_check.h"
#include "wire/object.h"

enum {
    CHECK_FRAGMENTS = 8,
    CHECK_NAMED = SIM_NET_CLIENTS_MAX,
    CHECK_IDS = 256,
    CHECK_NOTES = 64,
    CHECK_NOTE_SIZE = 160,
    CHECK_QUIET_US = 20 * 1000000 /* nothing moved for so long: somebody must say what it waits for */
};

/* A delta a worker made: every (client, round, fragment) may have several, when a worker lost its state and trained the
 * round again. */
struct check_delta {
    int client;
    uint64_t round;
    uint32_t fragment;
    uint8_t form;
    uint64_t base_version, tokens;
    uint8_t *payload;
    size_t size;
    uint32_t crc;
    bool offered, accepted;                    /* accepted: the coordinator journaled it */
    struct wire_range ranges[WIRE_RANGES_MAX]; /* samples it was trained on */
    uint32_t n_ranges;
    struct check_delta *next;
};

struct check_named {
    uint32_t id;
    uint64_t round, tokens;
    const struct check_delta *delta;
};

/* theta_f after an update, with what the outer optimizer should hold then. */
struct check_version {
    uint8_t *object; /* update_encode bytes; NULL for version 0 */
    size_t size;
    bool relayed; /* it carries the deltas it names */
    bool visible; /* somebody outside the coordinator may know it */
    bool durable; /* survives a power cut */
    uint64_t round, hash;
    float *theta;                   /* (count) */
    double *ideal;                  /* (count) what theta would be without rounding and without the downlink's codec */
    double *momentum;               /* (2 * count) outer optimizer */
    double slack;                   /* how far theta may be from ideal */
    uint64_t merged, merged_tokens; /* async: of this fragment so far */
    uint32_t n_named;
    struct check_named named[CHECK_NAMED];
};

struct check_log {
    struct check_version *versions; /* [n], versions[v] is version v */
    size_t n, cap;
    struct codec *up, *down;
};

/* A delta of which the coordinator may suppose that its worker has the bytes, and what the worker asked for last. */
struct check_own {
    uint64_t session, round; /* of the delivery */
    uint64_t get_version, get_offset;
};

/* What the error feedback of a worker should hold. */
struct check_worker {
    struct feedback feedback[CHECK_FRAGMENTS];
    const struct check_delta *pending[CHECK_FRAGMENTS]; /* encoded, neither merged nor refused as far as we know */
    int64_t refused[CHECK_FRAGMENTS];                   /* round of the REJECT that came since it trained; -1: none */
    int64_t remembers;                                  /* the last round it trained and has not forgotten; -1: none */
    uint64_t welcomed;                                  /* session of the last WELCOME */
    uint64_t given;                                     /* session of the last WELCOME sent to it */
    struct check_own own[CHECK_FRAGMENTS];
    uint64_t beat_session, beat_versions[CHECK_FRAGMENTS];
    struct msg_assign given_last; /* sent to it last; steps 0: none */
    uint32_t id;                  /* merge order; UINT32_MAX: not told yet */
    uint64_t waits_since, active_us;
};

struct sim_check_mark {
    int64_t remembers, refused[CHECK_FRAGMENTS];
    float *residual[CHECK_FRAGMENTS];
    bool feedback_pending[CHECK_FRAGMENTS];
    const struct check_delta *pending[CHECK_FRAGMENTS];
};

struct sim_check {
    struct config config;
    struct toy toy;
    struct layout layout;
    int n_clients;
    bool barrier, ddp, synced; /* synced: updates are durable before they are visible */
    uint64_t now_us;
    struct sim_check_counts counts;
    char failure[512];
    bool trace, behind, cut; /* cut: there was a power cut */
    uint64_t rounds_reported;    /* the last round there was an event of */
    char notes[CHECK_NOTES][CHECK_NOTE_SIZE];
    uint64_t n_notes;
    sim_check_script_fn script;
    void *script_ctx;

    struct check_log logs[CHECK_FRAGMENTS];
    struct check_delta *deltas; /* newest first */
    struct check_worker workers[SIM_NET_CLIENTS_MAX];
    int client_of_id[CHECK_IDS];             /* -1: unknown */
    uint64_t moved_us;                       /* something trained, sent, merged or evaluated */
    bool engine_up, open_unsynced, unsynced; /* since the last sync assignments, anything were journaled */
    uint64_t engine_versions[CHECK_FRAGMENTS];
    uint8_t *trained; /* [n_trained] times a sample position was merged */
    uint64_t n_trained;
};

size_t check_count(const struct sim_check *c, uint32_t fragment);
/* Version v of fragment f, NULL when the log has no such version. */
struct check_version *check_version_at(struct sim_check *c, uint32_t fragment, uint64_t version);
/* The version in which (id, round) was merged into a fragment; 0: none. */
uint64_t check_merged_in(const struct sim_check *c, uint32_t fragment, uint32_t id, uint64_t round);
/* These bytes, not others of the same round. */
bool check_is_merged(const struct sim_check *c, const struct check_delta *d);
enum status check_log_init(struct sim_check *c, struct err *err) MUST_CHECK;
void check_log_finish(struct sim_check *c);
/* What theta lacks of version v lies in the coordinator's residual: nothing is lost. */
void check_owed(struct sim_check *c, uint32_t f, const struct check_version *v, const float *residual);

/* --- sim_check_merge.c --- */
/* mean[] = what the deltas a version names make together; false: one does not decode, or is not finite. */
bool check_merge(struct sim_check *c, uint32_t f, const struct check_version *v, double *mean);
/* What is applied to theta of version v - 1; false: the update is not what the configuration says. */
bool check_update_decode(struct sim_check *c, const struct update *u, const struct check_version *v, float *x);

/* An update was appended to the journal. */
void check_log_append(struct sim_check *c, const uint8_t *object, size_t size);
/* The coordinator came back with this version: forget what it lost, unless somebody saw it. */
void check_log_recovered(struct sim_check *c, uint32_t fragment, uint64_t version);
/* A version is shown to the outside: it must exist and be durable. */
void check_log_show(struct sim_check *c, uint32_t fragment, uint64_t version, const char *how);

enum status check_worker_init(struct sim_check *c, struct check_worker *w);
void check_worker_finish(struct check_worker *w);
/* Its residual is gone (it starts from a snapshot). */
void check_worker_reset(struct sim_check *c, int client);
struct check_delta *check_delta_find(struct sim_check *c, int client, uint64_t round, uint32_t fragment, uint32_t crc);
void check_deltas_free(struct sim_check *c);

#endif
