/* The state of the checker (tests/lib/sim/sim_check.h).
 * - sim_check.c: failures, the coordinator
 * - sim_check_log.c: the log of updates and the expected value of each
 * - sim_check_net.c: messages
 * - sim_check_rules.c: bytes in flight, retries, presence, budgets
 * - sim_check_worker.c: the workers' training and deltas */
#ifndef TESTS_LIB_SIM_CHECK_IMPL_H
#define TESTS_LIB_SIM_CHECK_IMPL_H

#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/sim/sim_check.h"
#include "wire/object.h"

enum {
    CHECK_FRAGMENTS = 8,
    CHECK_NAMED = SIM_NET_CLIENTS_MAX,
    CHECK_IDS = 256,
    CHECK_ASKED = 4,    /* objects whose requests are remembered, per fragment */
    CHECK_LARGE = 4096, /* floats of a fragment whose hash takes long */
    CHECK_NOTES = 64,
    CHECK_NOTE_SIZE = 160,
    CHECK_QUIET_US = 20 * 1000000 /* after this time without progress, a process must name what it waits for */
};

/* A delta that a worker made. One (client, round, fragment) has several if a worker lost its state and trained the
 * round again. */
struct check_delta {
    int client;
    uint64_t round;
    uint32_t fragment;
    uint8_t form;
    uint64_t base_version, tokens;
    double step0; /* of its assignment */
    uint8_t *payload;
    size_t size;
    uint32_t crc;
    bool offered, accepted;                    /* accepted: the coordinator appended it to the journal */
    bool held;                                 /* accepted, neither merged nor dropped */
    struct wire_range ranges[WIRE_RANGES_MAX]; /* the samples that the worker trained on */
    uint32_t n_ranges;
    struct check_delta *next;
};

struct check_named {
    uint32_t id;
    uint64_t round, tokens;
    const struct check_delta *delta;
};

/* theta_f after an update, and the expected state of the outer optimizer. */
struct check_version {
    uint8_t *object; /* bytes of update_encode; NULL for version 0 */
    size_t size;
    bool relayed; /* the update carries the deltas that it names */
    bool visible; /* a process other than the coordinator may know this version */
    bool durable; /* survives a power cut */
    uint64_t round, hash;
    float *theta;     /* [count] */
    double *ideal;    /* [count] theta without rounding and without the downlink's codec */
    double *momentum; /* [count] outer optimizer */
    /* [count] bounds on what outer.state bf16 rounded off: of theta plus residual, and of the momentum */
    double *loose, *loose_momentum;
    double slack; /* bound on |theta - ideal|, beside `loose` */
    uint32_t n_named;
    struct check_named named[CHECK_NAMED];
};

struct check_log {
    struct check_version *versions; /* [n], versions[v] is version v */
    size_t n, cap;
    struct codec *up, *down;
};

/* A delta that the coordinator may expect its worker to hold, and the last request of that worker. */
struct check_own {
    uint64_t session, round; /* of the delivery */
    uint64_t get_version, get_offset;
};

/* Bytes [have, end) of an object are requested. */
struct check_get {
    bool used, known; /* known: some of its bytes came */
    uint8_t kind;
    uint64_t version, have, end;
};

/* The last CREDIT that the worker received; upto: the largest. */
struct check_credit {
    bool used;
    uint64_t round, have, upto;
};

struct check_flow {
    uint64_t down_now;                     /* window of the last message */
    uint64_t down, up;                     /* largest window of this process */
    struct check_get get[CHECK_FRAGMENTS]; /* as the worker knows it */
    struct check_get asked[CHECK_FRAGMENTS]
                          [CHECK_ASKED]; /* the latest, as the coordinator knows them; have: the first byte */
    struct check_credit credit[CHECK_FRAGMENTS];
};

/* A request that was sent n + 1 times without an answer. */
struct check_again {
    bool used;
    uint64_t what, at_us;
    uint32_t n;
};

/* The expected error feedback of a worker, and its transfers. */
struct check_worker {
    struct check_flow flow;
    struct check_again again, again_offer[CHECK_FRAGMENTS], again_get[CHECK_FRAGMENTS]; /* again: HELLO and JOIN */
    bool unsaved;
    bool in_session;                 /* this process of the coordinator has welcomed it */
    uint64_t heard_us;               /* its last heartbeat reached the coordinator; 0: never */
    uint64_t holds[CHECK_FRAGMENTS]; /* the coordinator was told of this version + 1; 0: of none */
    struct feedback feedback[CHECK_FRAGMENTS];
    const struct check_delta *pending[CHECK_FRAGMENTS]; /* encoded; the checker saw neither merge nor refusal */
    int64_t refused[CHECK_FRAGMENTS];                   /* round of the REJECT received since the training; -1: none */
    int64_t remembers[CHECK_FRAGMENTS]; /* by fragment, the last round in the worker's memory; -1: none */
    uint64_t welcomed;                  /* session of the last WELCOME received */
    uint64_t given;                     /* session of the last WELCOME sent to the worker */
    struct check_own own[CHECK_FRAGMENTS];
    uint64_t beat_session, beat_versions[CHECK_FRAGMENTS];
    struct msg_assign given_last; /* the last ASSIGN sent to the worker; steps 0: none */
    uint32_t id;                  /* merge order; UINT32_MAX: not assigned yet */
    bool region;
    uint64_t tokens; /* of the next delta of a region */
    uint64_t waits_since, active_us;
};

struct sim_check_mark {
    int64_t remembers[CHECK_FRAGMENTS], refused[CHECK_FRAGMENTS];
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
    bool singles;              /* async without a grace window: each delta is an update */
    uint64_t now_us;
    struct sim_check_counts counts;
    char failure[512];
    bool trace, behind, cut;  /* cut: a power cut happened */
    uint64_t rounds_reported; /* the last round that was reported */
    bool budget_fell;         /* before that: more steps may be done already */
    uint32_t budget_workers;  /* async: coordinator.min_workers of the first start with which a round ended */
    char notes[CHECK_NOTES][CHECK_NOTE_SIZE];
    uint64_t n_notes;
    sim_check_script_fn script;
    void *script_ctx;

    struct sim_check *upstream; /* of a region; NULL: a whole run */
    int upstream_client;
    struct check_log logs[CHECK_FRAGMENTS];
    struct check_delta *deltas; /* newest first */
    struct check_worker workers[SIM_NET_CLIENTS_MAX];
    int client_of_id[CHECK_IDS];             /* by the journal; -1: unknown */
    int durable_of_id[CHECK_IDS];            /* by the part of the journal that survives a power cut */
    bool id_unsure[CHECK_IDS];               /* a power cut may have lost the record that gave this place */
    uint64_t moved_us;                       /* time of the last training, send, merge or evaluation */
    bool engine_up, open_unsynced, unsynced; /* appended since the last sync: an OPEN, any record */
    uint64_t engine_versions[CHECK_FRAGMENTS];
    uint8_t *trained; /* [n_trained] number of merges of each sample position */
    uint64_t n_trained;
};

size_t check_count(const struct sim_check *c, uint32_t fragment);
/* Return version v of fragment f; NULL if the log has no such version. */
struct check_version *check_version_at(struct sim_check *c, uint32_t fragment, uint64_t version);
/* Return the version that merged (id, round) into a fragment; 0: none. */
uint64_t check_merged_in(const struct sim_check *c, uint32_t fragment, uint32_t id, uint64_t round);
/* Return whether these bytes were merged, and not other bytes of the same round. */
bool check_is_merged(const struct sim_check *c, const struct check_delta *d);
enum status check_log_init(struct sim_check *c, struct err *err) MUST_CHECK;
void check_log_finish(struct sim_check *c);
/* The coordinator's residual must hold the difference between theta and version v: nothing is lost. */
void check_owed(struct sim_check *c, uint32_t f, const struct check_version *v, const float *residual);

/* The rate of the outer step that made version v of fragment f. */
double check_outer_rate(const struct sim_check *c, uint32_t f, const struct check_version *v);

/* --- sim_check_merge.c --- */
/* Set mean[] to the merge of the deltas that a version names. False if a delta does not decode or is not finite. */
bool check_merge(struct sim_check *c, uint32_t f, const struct check_version *v, double *mean);
/* Decode the update that is applied to theta of version v - 1. False if the update contradicts the configuration. */
bool check_update_decode(struct sim_check *c, const struct update *u, const struct check_version *v, float *x);

/* A region loaded the parameters of upstream at this version: fills the log with upstream's. */
void check_log_jump(struct sim_check *c, uint32_t fragment, uint64_t version, uint64_t hash);
/* The coordinator appended an update to the journal. */
void check_log_append(struct sim_check *c, const uint8_t *object, size_t size);
/* The coordinator restarted at this version: drop the lost versions, and fail if a process saw one of them. */
void check_log_recovered(struct sim_check *c, uint32_t fragment, uint64_t version);
/* A process sees a version: the version must exist and be durable. */
void check_log_show(struct sim_check *c, uint32_t fragment, uint64_t version, const char *how);

/* --- sim_check_rules.c --- */
void check_flow_reset(struct check_worker *w); /* a new process of the worker */
void check_flow_message(struct sim_check *c, enum sim_net_moment moment, int client, bool to_client,
                        const struct msg *m);
void check_evicted(struct sim_check *c, int client);
/* MEMBER says that it joined, or lost its place. */
void check_member_changed(struct check_worker *w, bool joined);
void check_engine_forgot(struct sim_check *c); /* a new process of the coordinator */
void check_opened(struct sim_check *c, const struct record_open *record);
/* An update of this fragment was appended. */
void check_left_behind(struct sim_check *c, uint32_t f);
/* Deltas of this worker are not held any more. round UINT64_MAX, fragment UINT32_MAX: all. */
void check_dropped(struct sim_check *c, int client, uint64_t round, uint32_t fragment);
void check_budget(struct sim_check *c, uint64_t merged);

enum status check_worker_init(struct sim_check *c, struct check_worker *w);
void check_worker_finish(struct check_worker *w);
/* The worker's residual is gone: it starts from a snapshot. */
void check_worker_reset(struct sim_check *c, int client);
/* It loads a snapshot and keeps its residual, with the deltas that were not merged. */
void check_worker_returns(struct sim_check *c, int client);
struct check_delta *check_delta_find(struct sim_check *c, int client, uint64_t round, uint32_t fragment, uint32_t crc);
void check_deltas_free(struct sim_check *c);

#endif
