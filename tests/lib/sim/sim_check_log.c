#include "common/config/codec_choice.h"
#include "tests/lib/sim/sim_check_impl.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/tensor/apply.h"

size_t check_count(const struct sim_check *c, uint32_t fragment)
{
    return c->layout.fragments[fragment].count;
}

struct check_version *check_version_at(struct sim_check *c, uint32_t fragment, uint64_t version)
{
    if (fragment >= c->layout.n_fragments || version >= c->logs[fragment].n) return NULL;
    return &c->logs[fragment].versions[version];
}

uint64_t check_merged_in(const struct sim_check *c, uint32_t fragment, uint32_t id, uint64_t round)
{
    const struct check_log *log = &c->logs[fragment];
    for (size_t v = log->n; v-- > 1;)
        for (uint32_t i = 0; i < log->versions[v].n_named; i++)
            if (log->versions[v].named[i].id == id && log->versions[v].named[i].round == round) return v;
    return 0;
}

bool check_is_merged(const struct sim_check *c, const struct check_delta *d)
{
    const struct check_log *log = &c->logs[d->fragment];
    for (size_t v = log->n; v-- > 1;)
        for (uint32_t i = 0; i < log->versions[v].n_named; i++) {
            const struct check_delta *m = log->versions[v].named[i].delta;
            bool alike = m->crc == d->crc && m->size == d->size; /* a retrained round may be, too */
            if (alike && m->client == d->client && m->round == d->round && m->base_version == d->base_version)
                return true;
        }
    return false;
}

static void version_clear(struct check_version *v)
{
    mem_free(v->object);
    mem_free(v->theta);
    mem_free(v->ideal);
    mem_free(v->momentum);
    mem_free(v->loose);
    mem_free(v->loose_momentum);
    *v = (struct check_version){0};
}

/* Append one version; copy its arrays from the last version. */
static struct check_version *log_grow(struct sim_check *c, uint32_t f)
{
    struct check_log *log = &c->logs[f];
    size_t n = check_count(c, f);
    if (log->n == log->cap) {
        size_t cap = log->cap ? 2 * log->cap : 32;
        log->versions = mem_resize(log->versions, log->cap * sizeof(*log->versions), cap * sizeof(*log->versions));
        assert(log->versions);
        log->cap = cap;
    }
    struct check_version *v = &log->versions[log->n++];
    *v = (struct check_version){.theta = mem_alloc(n, sizeof(float)),
                                .ideal = mem_alloc(n, sizeof(double)),
                                .momentum = mem_alloc(n, sizeof(double)),
                                .loose = mem_alloc(n, sizeof(double)),
                                .loose_momentum = mem_alloc(n, sizeof(double))};
    assert(v->theta && v->ideal && v->momentum && v->loose && v->loose_momentum);
    if (log->n > 1) {
        memcpy(v->theta, v[-1].theta, n * sizeof(float));
        memcpy(v->ideal, v[-1].ideal, n * sizeof(double));
        memcpy(v->momentum, v[-1].momentum, n * sizeof(double));
        memcpy(v->loose, v[-1].loose, n * sizeof(double));
        memcpy(v->loose_momentum, v[-1].loose_momentum, n * sizeof(double));
        v->slack = v[-1].slack;
    }
    return v;
}

enum status check_log_init(struct sim_check *c, struct err *err)
{
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        struct check_log *log = &c->logs[f];
        TRY(codec_create_for_fragment(&log->up, c->config.codec.up, &c->layout, f, err));
        char down[CODEC_SPEC_MAX];
        config_down_spec(&c->config, false, down);
        if (down[0]) TRY(codec_create_for_fragment(&log->down, down, &c->layout, f, err));
        struct check_version *v = log_grow(c, f);
        layout_fill(&c->layout, f, c->config.run.seed, v->theta);
        for (size_t i = 0; i < check_count(c, f); i++) v->ideal[i] = (double)v->theta[i];
        v->hash = hash_floats(NULL, v->theta, check_count(c, f));
        v->visible = v->durable = true;
    }
    return STATUS_OK;
}

void check_log_finish(struct sim_check *c)
{
    for (uint32_t f = 0; f < CHECK_FRAGMENTS; f++) {
        struct check_log *log = &c->logs[f];
        for (size_t v = 0; v < log->n; v++) version_clear(&log->versions[v]);
        mem_free(log->versions);
        codec_destroy(log->up);
        codec_destroy(log->down);
    }
}

/* ---- the expected value of an update ----------------------------------------------------------------------------- */

double check_outer_rate(const struct sim_check *c, uint32_t f, const struct check_version *v)
{
    const struct config *config = &c->config;
    uint64_t version = (uint64_t)(v - c->logs[f].versions);
    return version <= config->train.start_step ? 1 : config->outer.learning_rate; /* 1: an averaged round */
}

#define HALF_BIT 0x1p-7 /* bf16: bound on the relative error of one stochastic rounding */

static void outer_step(const struct sim_check *c, uint32_t f, struct check_version *v, const double *g)
{
    double lr = check_outer_rate(c, f, v), mu = c->config.outer.momentum;
    bool averaged = v->round < c->config.train.start_step;
    size_t n = check_count(c, f);
    bool nesterov = c->config.outer.optimizer == OPTIMIZER_NESTEROV;
    for (size_t i = 0; i < n; i++) {
        double *m = &v->momentum[i];
        if (averaged) {
            v->ideal[i] -= g[i];
        } else {
            *m = mu * *m + g[i];
            if (nesterov && config_outer_half(&c->config)) {
                double *loose = &v->loose_momentum[i], before = mu * *loose;
                v->loose[i] += lr * mu * before;
                *loose = before + HALF_BIT * (fabs(*m) + before);
            }
            v->ideal[i] -= lr * (nesterov ? g[i] + mu * *m : g[i]);
        }
    }
}

/* The checker can compute the expected theta of runs with local steps and a barrier. Weights of async depend on the
 * workers that are active at each merge; test_outer_step and test_grace_golden check those. */
static bool predictable(const struct sim_check *c)
{
    return c->barrier && !c->ddp;
}

/* The coordinator owes the workers the difference between ideal and theta; a sparse downlink forgets a part of it. */
static void forget(const struct sim_check *c, uint32_t f, struct check_version *v)
{
    double decay = (double)codec_feedback_decay(c->logs[f].down);
    for (size_t i = 0; i < check_count(c, f); i++) {
        double before = (double)v[-1].theta[i];
        v->ideal[i] = before + decay * (v->ideal[i] - before);
    }
}

/* The residual of version v was rounded, too. It is what theta lacks. */
static void loosen(const struct sim_check *c, uint32_t f, struct check_version *v)
{
    if (!config_outer_half(&c->config)) return;
    for (size_t i = 0; i < check_count(c, f); i++)
        v->loose[i] += HALF_BIT * (fabs(v->ideal[i] - (double)v->theta[i]) + v->loose[i]);
}

static void check_value(struct sim_check *c, uint32_t f, struct check_version *v, const float *decoded)
{
    size_t n = check_count(c, f);
    double *mean = mem_alloc(n, sizeof(double)), largest = 0.0;
    assert(mean);
    if (!check_merge(c, f, v, mean))
        sim_check_fail(c, "fragment %u: a merged delta does not decode or is not finite", f);
    enum config_down down = config_down(&c->config);
    bool increment = down == CONFIG_DOWN_CODEC && !codec_lossless(c->logs[f].down);
    if (increment) forget(c, f, v);
    outer_step(c, f, v, mean);
    for (size_t i = 0; increment && i < n; i++) /* fmax here stops gcc 12 for ARM with an internal error */
        if (fabs((double)decoded[i]) > largest) largest = fabs((double)decoded[i]);
    v->slack = 2e-4 + largest / 100.0; /* rounding, and the largest residual of a dense quantizer */
    bool sparse = down == CONFIG_DOWN_CODEC && codec_sparse(c->logs[f].down);
    if (sparse || down == CONFIG_DOWN_UNION || down == CONFIG_DOWN_AUTO) v->slack = INFINITY; /* check_owed is exact */
    loosen(c, f, v);
    for (size_t i = 0; i < n; i++) {
        if (fabs((double)v->theta[i] - v->ideal[i]) <= v->slack + v->loose[i]) continue;
        sim_check_fail(c, "fragment %u version %zu: element %zu is %.9g, but its deltas give %.9g", f, c->logs[f].n - 1,
                       i, (double)v->theta[i], v->ideal[i]);
        break;
    }
    mem_free(mean);
}

void check_owed(struct sim_check *c, uint32_t f, const struct check_version *v, const float *residual)
{
    if (!predictable(c) || c->failure[0]) return;
    for (size_t i = 0; i < check_count(c, f); i++) {
        double all = (double)v->theta[i] + (double)residual[i];
        if (fabs(all - v->ideal[i]) <= 2e-4 + v->loose[i]) continue;
        sim_check_fail(c, "fragment %u: element %zu of theta plus the residual is %.9g, but the deltas give %.9g", f, i,
                       all, v->ideal[i]);
        return;
    }
}

/* The samples of (id, round) are counted once, for the fragment that is merged first. A round that was dropped and
 * assigned again has other samples. */
static bool samples_counted(const struct sim_check *c, const struct check_named *named, uint32_t fragments)
{
    for (uint32_t f = 0; f < fragments; f++) {
        uint64_t version = check_merged_in(c, f, named->id, named->round);
        if (version == 0 || f == named->delta->fragment) continue;
        const struct check_version *v = &c->logs[f].versions[version];
        for (uint32_t i = 0; i < v->n_named; i++)
            if (v->named[i].id == named->id && v->named[i].delta->ranges[0].start == named->delta->ranges[0].start)
                return true;
    }
    return false;
}

static void count_samples(struct sim_check *c, const struct check_named *named, bool complain)
{
    for (uint32_t r = 0; r < named->delta->n_ranges; r++) {
        struct wire_range range = named->delta->ranges[r];
        uint64_t end = range.start + range.count;
        if (end > c->n_trained) {
            c->trained = mem_resize(c->trained, c->n_trained, 2 * end);
            assert(c->trained);
            c->n_trained = 2 * end;
        }
        for (uint64_t p = range.start; p < end; p++)
            if (c->trained[p]++ && complain)
                sim_check_fail(c, "sample position %llu is merged a second time, by worker-%d round %llu",
                               (unsigned long long)p, named->delta->client, (unsigned long long)named->round);
    }
}

static void recount_samples(struct sim_check *c)
{
    if (c->n_trained) memset(c->trained, 0, c->n_trained);
    for (uint32_t f = 0; f < c->layout.n_fragments; f++)
        for (size_t v = 1; v < c->logs[f].n; v++)
            for (uint32_t i = 0; i < c->logs[f].versions[v].n_named; i++)
                if (!samples_counted(c, &c->logs[f].versions[v].named[i], f))
                    count_samples(c, &c->logs[f].versions[v].named[i], false);
}

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static const struct check_delta *named_delta(struct sim_check *c, uint32_t f, const struct update_named *named)
{
    int client = named->worker_id < CHECK_IDS ? c->client_of_id[named->worker_id] : -1;
    if (client < 0) {
        sim_check_fail(c, "an update names worker id %u, which no worker has", (unsigned)named->worker_id);
        return NULL;
    }
    for (const struct check_delta *d = c->deltas; d; d = d->next)
        if (d->client == client && d->round == named->round && d->fragment == f && d->accepted) return d;
    sim_check_fail(c, "fragment %u: an update names worker-%d round %llu, which the coordinator never accepted", f,
                   client, (unsigned long long)named->round);
    return NULL;
}

static void check_named_all(struct sim_check *c, const struct update *u, struct check_version *v)
{
    uint32_t f = u->fragment;
    for (uint32_t i = 0; i < u->n_named && !c->failure[0]; i++) {
        const struct update_named *n = &u->named[i];
        uint64_t before = check_merged_in(c, f, n->worker_id, n->round);
        if (before)
            sim_check_fail(c, "fragment %u: worker id %u round %llu is merged in version %llu and again in %llu", f,
                           (unsigned)n->worker_id, (unsigned long long)n->round, (unsigned long long)before,
                           (unsigned long long)u->version);
        const struct check_delta *d = named_delta(c, f, n);
        if (!d) return;
        if (n->tokens != d->tokens) sim_check_fail(c, "fragment %u: tokens of worker-%d are wrong", f, d->client);
        if (i && u->named[i - 1].worker_id >= n->worker_id)
            sim_check_fail(c, "fragment %u version %llu: merge order is not by worker id", f,
                           (unsigned long long)u->version);
        if (c->barrier && (d->base_version != u->version - 1 || n->round != u->round))
            sim_check_fail(c, "fragment %u version %llu merges a delta made from version %llu (round %llu)", f,
                           (unsigned long long)u->version, (unsigned long long)d->base_version,
                           (unsigned long long)n->round);
        if (d->base_version >= u->version) sim_check_fail(c, "fragment %u: a delta is older than its base", f);
        sim_check_note(c, c->now_us, "journal: version %llu of fragment %u merges worker-%d round %llu",
                       (unsigned long long)u->version, f, d->client, (unsigned long long)n->round);
        v->named[i] = (struct check_named){n->worker_id, n->round, n->tokens, d};
        check_dropped(c, d->client, d->round, f);
        c->counts.merged++;
        if (!samples_counted(c, &v->named[i], c->layout.n_fragments))
            count_samples(c, &v->named[i], !c->behind && !c->upstream);
    }
    v->n_named = c->failure[0] ? 0 : u->n_named;
}

/* A region publishes upstream's bytes. */
static void check_payload(struct sim_check *c, const struct update *u)
{
    struct update theirs;
    struct update_named named[CHECK_NAMED];
    const struct check_version *v = check_version_at(c->upstream, u->fragment, u->version);
    bool same = v && v->object && update_decode(&theirs, named, CHECK_NAMED, v->object, v->size) == STATUS_OK;
    same = same && theirs.theta_hash == u->theta_hash && theirs.round == u->round && theirs.form == u->form &&
           theirs.payload_size == u->payload_size && !memcmp(theirs.payload, u->payload, u->payload_size);
    if (!same)
        sim_check_fail(c, "fragment %u: version %llu differs from that of the run upstream", u->fragment,
                       (unsigned long long)u->version);
    const struct check_worker *client = &c->upstream->workers[c->upstream_client];
    bool merged = false;
    uint64_t tokens = 0, offered = 0;
    for (uint32_t i = 0; i < u->n_named; i++) tokens += u->named[i].tokens;
    for (uint32_t i = 0; same && i < theirs.n_named; i++) {
        if (theirs.named[i].worker_id != client->id) continue;
        merged = true;
        offered = theirs.named[i].tokens;
    }
    /* A round that upstream assigned again, for fewer workers, bounds the tokens. */
    uint64_t given = 0;
    for (uint32_t i = 0; same && i < v->n_named; i++)
        for (uint32_t k = 0; v->named[i].id == client->id && k < v->named[i].delta->n_ranges; k++)
            given += v->named[i].delta->ranges[k].count;
    bool bounded = offered == given * c->toy.sample_tokens && offered < tokens;
    if (merged && u->n_named && tokens != offered && !bounded)
        sim_check_fail(c, "fragment %u version %llu: the region names deltas of %llu tokens, its own had %llu",
                       u->fragment, (unsigned long long)u->version, (unsigned long long)tokens,
                       (unsigned long long)offered);
    if (merged && !u->n_named)
        sim_check_fail(c, "fragment %u version %llu: upstream merged deltas that the region gives back", u->fragment,
                       (unsigned long long)u->version);
    if (u->n_named && !merged && client->remembers[u->fragment] != (int64_t)u->round)
        sim_check_fail(c, "fragment %u version %llu: the region takes deltas that it never offered upstream",
                       u->fragment, (unsigned long long)u->version);
}

void check_log_jump(struct sim_check *c, uint32_t f, uint64_t version, uint64_t hash)
{
    const struct check_version *theirs = check_version_at(c->upstream, f, version);
    if (!theirs || theirs->hash != hash || version + 1 < c->logs[f].n) {
        sim_check_fail(c, "fragment %u jumps to version %llu, which the run upstream does not have", f,
                       (unsigned long long)version);
        return;
    }
    while (c->logs[f].n <= version) {
        struct check_version *v = log_grow(c, f);
        theirs = check_version_at(c->upstream, f, c->logs[f].n - 1);
        memcpy(v->theta, theirs->theta, check_count(c, f) * sizeof(float));
        v->hash = theirs->hash;
        v->round = theirs->round;
    }
}

void check_log_append(struct sim_check *c, const uint8_t *object, size_t size)
{
    struct update u;
    struct update_named named[CHECK_NAMED];
    if (update_decode(&u, named, CHECK_NAMED, object, size) != STATUS_OK) {
        sim_check_fail(c, "the journal contains an update that does not decode");
        return;
    }
    uint32_t f = u.fragment;
    if (f >= c->layout.n_fragments || u.version != c->logs[f].n || (u.n_named == 0 && !c->upstream) ||
        (c->singles && u.n_named != 1)) {
        sim_check_fail(c, "the journal contains version %llu of fragment %u naming %u deltas after version %zu",
                       (unsigned long long)u.version, f, u.n_named, f < CHECK_FRAGMENTS ? c->logs[f].n - 1 : 0);
        return;
    }
    size_t n = check_count(c, f);
    struct check_version *v = log_grow(c, f);
    float *decoded = mem_alloc(n, sizeof(float));
    v->object = mem_alloc(size, 1);
    assert(v->object && decoded);
    memcpy(v->object, object, size);
    v->size = size;
    v->round = u.round;
    v->relayed = !strcmp(u.codec, "relay");
    check_named_all(c, &u, v);
    check_left_behind(c, f);
    if (!c->failure[0] && !check_update_decode(c, &u, v, decoded))
        sim_check_fail(c, "the payload of an update does not decode");
    apply_update(v->theta, u.form == UPDATE_PARAMETERS, decoded, n);
    v->hash = hash_floats(NULL, v->theta, n);
    if (v->hash != u.theta_hash)
        sim_check_fail(c, "fragment %u version %llu: its hash differs from the hash of theta", f,
                       (unsigned long long)u.version);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v->theta[i])) sim_check_fail(c, "fragment %u: theta is not finite", f);
    if (c->upstream)
        check_payload(c, &u);
    else if (!c->failure[0] && predictable(c))
        check_value(c, f, v, decoded);
    mem_free(decoded);
    c->counts.updates++;
    c->moved_us = c->now_us;
}

void check_log_recovered(struct sim_check *c, uint32_t f, uint64_t version)
{
    struct check_log *log = &c->logs[f];
    if (version >= log->n) {
        sim_check_fail(c, "fragment %u: version %llu after a restart was never appended to the journal", f,
                       (unsigned long long)version);
        return;
    }
    while (log->n - 1 > version) {
        if (log->versions[log->n - 1].visible && c->synced)
            sim_check_fail(c, "fragment %u: version %zu was visible and is lost after a restart", f, log->n - 1);
        version_clear(&log->versions[--log->n]);
        c->counts.lost_versions++;
    }
    recount_samples(c);
}

void check_log_show(struct sim_check *c, uint32_t f, uint64_t version, const char *how)
{
    struct check_version *v = check_version_at(c, f, version);
    if (!v) {
        sim_check_fail(c, "%s shows version %llu of fragment %u, which does not exist", how,
                       (unsigned long long)version, f);
        return;
    }
    if (v->visible) return;
    v->visible = true;
    if (c->synced && !v->durable)
        sim_check_fail(c, "%s shows version %llu of fragment %u before it is durable", how, (unsigned long long)version,
                       f);
}
