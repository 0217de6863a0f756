#include "tests/lib/sim/sim_check.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/sim/sim_check_impl.h"

enum status sim_check_create(struct sim_check **c_p, int n_clients, const struct config *config, const struct toy *toy,
                             struct err *err)
{
    struct sim_check *c = mem_alloc(1, sizeof(*c));
    if (!c) return STATUS_NOMEM;
    c->config = *config;
    c->toy = *toy;
    c->n_clients = n_clients;
    c->ddp = config->train.method == METHOD_DDP;
    c->barrier = config->train.method != METHOD_ASYNC;
    c->singles = !c->barrier && !strcmp(config->outer.grace, "0");
    c->synced = config->train.method != METHOD_DDP && config->train.sync_every > 1;
    for (int i = 0; i < CHECK_IDS; i++) c->client_of_id[i] = c->durable_of_id[i] = -1;
    enum status status = STATUS_OK;
    TRY_GOTO(toy_layout(toy, config, &c->layout), err_check);
    assert(c->layout.n_fragments <= CHECK_FRAGMENTS);
    TRY_GOTO(check_log_init(c, err), err_check);
    for (int i = 0; i < n_clients; i++) TRY_GOTO(check_worker_init(c, &c->workers[i]), err_check);
    *c_p = c;
    return STATUS_OK;
err_check:
    sim_check_destroy(c);
    return status;
}

void sim_check_destroy(struct sim_check *c)
{
    if (!c) return;
    for (int i = 0; i < c->n_clients; i++) check_worker_finish(&c->workers[i]);
    check_deltas_free(c);
    check_log_finish(c);
    layout_finish(&c->layout);
    mem_free(c->trained);
    mem_free(c);
}

void sim_check_follow(struct sim_check *c, struct sim_check *upstream, int client)
{
    c->upstream = upstream;
    c->upstream_client = client;
    upstream->workers[client].region = true;
}

void sim_check_region_tokens(struct sim_check *c, int client, uint64_t tokens)
{
    c->workers[client].region = true;
    c->workers[client].tokens = tokens;
}

/* ---- notes and failures ------------------------------------------------------------------------------------------ */

void sim_check_note(struct sim_check *c, uint64_t now_us, const char *fmt, ...)
{
    char *note = c->notes[c->n_notes++ % CHECK_NOTES];
    int n = snprintf(note, CHECK_NOTE_SIZE, "%10.6f  ", (double)now_us / 1e6);
    va_list args;
    va_start(args, fmt);
    vsnprintf(note + n, CHECK_NOTE_SIZE - (size_t)n, fmt, args);
    va_end(args);
    c->now_us = now_us;
    if (c->trace) fprintf(stderr, "%s\n", note);
}

void sim_check_trace(struct sim_check *c, bool on)
{
    c->trace = on;
}

void sim_check_fail(struct sim_check *c, const char *fmt, ...)
{
    if (c->failure[0]) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->failure, sizeof(c->failure), fmt, args);
    va_end(args);
    sim_check_note(c, c->now_us, "FAILURE: %s", c->failure);
}

const char *sim_check_failure(const struct sim_check *c)
{
    return c->failure[0] ? c->failure : NULL;
}

void sim_check_print(const struct sim_check *c, FILE *out)
{
    uint64_t first = c->n_notes > CHECK_NOTES ? c->n_notes - CHECK_NOTES : 0;
    fprintf(out, "%s\nlast events:\n", c->failure[0] ? c->failure : "no invariant broken");
    for (uint64_t i = first; i < c->n_notes; i++) fprintf(out, "  %s\n", c->notes[i % CHECK_NOTES]);
}

struct sim_check_counts sim_check_counts(const struct sim_check *c)
{
    return c->counts;
}

void sim_check_script(struct sim_check *c, sim_check_script_fn fn, void *ctx)
{
    c->script = fn;
    c->script_ctx = ctx;
}

/* ---- the journal ------------------------------------------------------------------------------------------------- */

/* The client of the worker with this name; -1: none. */
static int client_named(const struct sim_check *c, const char *name)
{
    int client;
    return sscanf(name, "worker-%d", &client) == 1 && client >= 0 && client < c->n_clients ? client : -1;
}

static void appended_member(struct sim_check *c, const uint8_t *body, size_t size)
{
    struct record_member m = {0};
    int client = record_decode(RECORD_MEMBER, &m, body, size) == STATUS_OK ? client_named(c, m.name) : -1;
    if (client < 0 || m.id >= CHECK_IDS) {
        sim_check_fail(c, "the journal contains a member that does not exist");
        return;
    }
    static const char *const what[] = {"joins", "leaves", "is evicted"};
    sim_check_note(c, c->now_us, "journal: worker-%d (id %u) %s", client, (unsigned)m.id, what[m.what % 3]);
    c->client_of_id[m.id] = client;
    c->workers[client].id = m.id;
    c->counts.evicted += m.what == RECORD_MEMBER_EVICT;
    if (m.what == RECORD_MEMBER_EVICT) check_evicted(c, client);
    check_member_changed(&c->workers[client], m.what == RECORD_MEMBER_JOIN);
    if (c->ddp && m.what != RECORD_MEMBER_JOIN) check_dropped(c, client, UINT64_MAX, UINT32_MAX);
    if (m.what == RECORD_MEMBER_LEAVE) c->counts.left++;
}

/* The accepted delta must equal a delta that its worker made, byte for byte. */
static void appended_delta(struct sim_check *c, const uint8_t *body, size_t size)
{
    struct record_delta m = {0};
    if (record_decode(RECORD_DELTA, &m, body, size) != STATUS_OK || m.id >= CHECK_IDS || c->client_of_id[m.id] < 0) {
        sim_check_fail(c, "the journal contains a delta of an unknown member");
        return;
    }
    struct check_delta *found = NULL;
    const uint8_t *payload = body + RECORD_DELTA_HEAD;
    size_t bytes = size - RECORD_DELTA_HEAD;
    for (struct check_delta *d = c->deltas; d; d = d->next) {
        if (d->client != c->client_of_id[m.id] || d->round != m.round || d->fragment != m.fragment) continue;
        d->accepted = false;
        if (!found && d->offered && d->size == bytes && memcmp(d->payload, payload, bytes) == 0) found = d;
    }
    if (!found) {
        sim_check_fail(c, "the journal contains a delta of worker-%d round %llu fragment %u that the worker never sent",
                       c->client_of_id[m.id], (unsigned long long)m.round, m.fragment);
        return;
    }
    found->accepted = found->held = true;
    const struct msg_assign *given = &c->workers[found->client].given_last;
    bool other = given->n_ranges != found->n_ranges ||
                 memcmp(given->ranges, found->ranges, given->n_ranges * sizeof given->ranges[0]) != 0;
    if (given->round == m.round && other && !c->behind)
        sim_check_fail(c, "a delta of worker-%d round %llu is accepted for an assignment with other samples",
                       found->client, (unsigned long long)m.round);
    struct check_own *own = &c->workers[found->client].own[m.fragment];
    own->session = c->workers[found->client].given;
    own->round = m.round;
    sim_check_note(c, c->now_us, "journal: delta of worker-%d round %llu fragment %u", found->client,
                   (unsigned long long)m.round, m.fragment);
    uint64_t version = check_merged_in(c, m.fragment, m.id, m.round);
    if (version)
        sim_check_fail(
            c, "the journal contains a second delta of worker-%d round %llu fragment %u, merged in version %llu",
            found->client, (unsigned long long)m.round, m.fragment, (unsigned long long)version);
}

static void appended_jump(struct sim_check *c, const uint8_t *body, size_t size)
{
    struct record_jump m = {0};
    if (!c->upstream || record_decode(RECORD_JUMP, &m, body, size) != STATUS_OK ||
        m.n_fragments != c->layout.n_fragments) {
        sim_check_fail(c, "the journal contains a jump of a run that is no region, or a damaged one");
        return;
    }
    for (uint32_t f = 0; f < m.n_fragments; f++) check_log_jump(c, f, m.versions[f].version, m.versions[f].hash);
    sim_check_note(c, c->now_us, "journal: jump to version %llu", (unsigned long long)m.versions[0].version);
}

static void appended_drop(struct sim_check *c, const uint8_t *body, size_t size)
{
    struct record_drop m = {0};
    if (record_decode(RECORD_DROP, &m, body, size) != STATUS_OK)
        sim_check_fail(c, "the journal contains a damaged record");
    else
        sim_check_note(c, c->now_us, "journal: id %u round %llu fragment %d dropped, code %d", (unsigned)m.id,
                       (unsigned long long)m.round, (int)m.fragment, m.code);
    if (c->ddp && m.id < CHECK_IDS)
        check_dropped(c, c->client_of_id[m.id], m.round, UINT32_MAX); /* all close at once */
}

static void appended_open(struct sim_check *c, const uint8_t *body, size_t size)
{
    static struct round_grant grants[CHECK_IDS];
    struct record_open m = {.n_fragments = c->layout.n_fragments, .cap = CHECK_IDS, .open.grants = grants};
    if (record_decode(RECORD_OPEN, &m, body, size) != STATUS_OK)
        sim_check_fail(c, "the journal contains a damaged record");
    else
        check_opened(c, &m);
    c->moved_us = c->now_us;
    c->open_unsynced = true;
}

void sim_check_store_appended(struct sim_check *c, const struct store_part *parts, size_t n)
{
    size_t size = 0, at = 0;
    for (size_t i = 0; i < n; i++) size += parts[i].size;
    uint8_t *bytes = mem_alloc(size, 1);
    assert(bytes);
    for (size_t i = 0; i < n; i++) {
        if (parts[i].size) memcpy(bytes + at, parts[i].data, parts[i].size);
        at += parts[i].size;
    }
    for (at = 0; at + JOURNAL_RECORD_HEADER <= size && memcmp(bytes + at, "JRNL", 4) == 0;) {
        struct reader r = reader_of(bytes + at + 4, 12);
        uint16_t type = get_u16(&r);
        (void)get_u16(&r);
        size_t length = (size_t)get_u64(&r);
        const uint8_t *body = bytes + at + JOURNAL_RECORD_HEADER;
        assert(length <= size - at - JOURNAL_RECORD_HEADER);
        if (type == RECORD_MEMBER) appended_member(c, body, length);
        if (type == RECORD_DELTA) appended_delta(c, body, length);
        if (type == RECORD_UPDATE) check_log_append(c, body + RECORD_CLOCK_BYTES, length - RECORD_CLOCK_BYTES);
        if (type == RECORD_EVAL) c->counts.evals++;
        if (type == RECORD_DROP) appended_drop(c, body, length);
        if (type == RECORD_JUMP) appended_jump(c, body, length);
        if (type == RECORD_GRANT || type == RECORD_SEAL) sim_check_note(c, c->now_us, "journal: %s", record_name(type));
        if (type == RECORD_OPEN) appended_open(c, body, length);
        if (type == RECORD_DONE) c->moved_us = c->now_us;
        if (type != JOURNAL_MARK) c->unsynced = true;
        at += JOURNAL_RECORD_HEADER + length;
    }
    mem_free(bytes);
}

void sim_check_store_synced(struct sim_check *c)
{
    c->open_unsynced = c->unsynced = false;
    memcpy(c->durable_of_id, c->client_of_id, sizeof c->durable_of_id);
    for (uint32_t f = 0; f < c->layout.n_fragments; f++)
        for (size_t v = c->logs[f].n; v-- > 0 && !c->logs[f].versions[v].durable;)
            c->logs[f].versions[v].durable = true;
}

void sim_check_clock(struct sim_check *c, uint64_t now_us)
{
    c->now_us = now_us;
}

/* ---- the coordinator --------------------------------------------------------------------------------------------- */

static void engine_log(struct sim_check *c, const struct engine *engine, uint32_t f)
{
    uint64_t version = engine_version(engine, f);
    const struct check_version *v = check_version_at(c, f, version);
    if (!v || c->logs[f].n - 1 != version) {
        sim_check_fail(c, "the coordinator is at version %llu of fragment %u, its journal is at %zu",
                       (unsigned long long)version, f, c->logs[f].n - 1);
        return;
    }
    /* Of a large model only each new version and every 64th event is compared: that takes milliseconds. */
    bool same = version == c->engine_versions[f] && check_count(c, f) > CHECK_LARGE && c->counts.checks % 64;
    if (version < c->engine_versions[f])
        sim_check_fail(c, "the coordinator went back from version %llu to %llu of fragment %u",
                       (unsigned long long)c->engine_versions[f], (unsigned long long)version, f);
    c->engine_versions[f] = version;
    if (same) return;
    const float *theta = engine_theta(engine) + c->layout.fragments[f].offset;
    float *residual = mem_alloc(check_count(c, f), sizeof *residual);
    assert(residual);
    if (engine_residual(engine, f, residual)) check_owed(c, f, v, residual);
    mem_free(residual);
    if (v->hash != hash_floats(NULL, theta, check_count(c, f)) || engine_version_hash(engine, f, version) != v->hash)
        sim_check_fail(c, "the coordinator's fragment %u differs from version %llu of the log", f,
                       (unsigned long long)version);
}

/* A worker keeps its place through a restart, unless a power cut lost the record that gave it. */
static void recover_places(struct sim_check *c, const struct engine *engine)
{
    for (uint32_t id = 0; id < CHECK_IDS; id++) {
        const char *name = engine_member_name(engine, id);
        int client = name ? client_named(c, name) : -1, before = c->client_of_id[id];
        if (client != before && !c->id_unsure[id])
            sim_check_fail(c, "id %u belongs to worker-%d after a restart, before it to worker-%d", id, client, before);
        c->client_of_id[id] = c->durable_of_id[id] = client;
        c->id_unsure[id] = false;
    }
}

void sim_check_engine_started(struct sim_check *c, const struct engine *engine, uint64_t now_us)
{
    c->now_us = c->moved_us = now_us;
    c->engine_up = true;
    check_engine_forgot(c);
    recover_places(c, engine);
    if (!engine_theta(engine)) return;
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        uint64_t version = engine_version(engine, f);
        check_log_recovered(c, f, version);
        c->engine_versions[f] = version;
        for (uint64_t v = 0; v < c->logs[f].n; v++) {
            uint64_t hash = engine_version_hash(engine, f, v);
            if (hash && hash != c->logs[f].versions[v].hash)
                sim_check_fail(c, "version %llu of fragment %u has another hash after a restart", (unsigned long long)v,
                               f);
        }
    }
}

void sim_check_worked(struct sim_check *c, uint64_t begin_us, uint64_t now_us)
{
    if (c->moved_us < begin_us) c->moved_us += now_us - begin_us;
}

void sim_check_engine(struct sim_check *c, const struct engine *engine, uint64_t now_us)
{
    struct err err;
    char text[WIRE_TEXT_MAX];
    c->now_us = now_us;
    c->counts.checks++;
    if (!engine_theta(engine)) return;
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) engine_log(c, engine, f);
    if (engine_check(engine, &err) != STATUS_OK) sim_check_fail(c, "the state is inconsistent: %s", err.msg);
    if (now_us > c->moved_us + CHECK_QUIET_US && !engine_finished(engine)) {
        engine_waiting(engine, text, sizeof(text));
        if (text[0] == '\0')
            sim_check_fail(c, "no progress for 20 s, and the coordinator names nothing that it waits for");
    }
}

void sim_check_engine_stopped(struct sim_check *c, bool power)
{
    /* Without a sync at each update, a power cut may put the coordinator behind the workers' versions and assignments.
     */
    c->behind = c->behind || (power && !c->synced);
    c->cut = c->cut || power;
    for (int i = 0; power && i < CHECK_IDS; i++)
        c->id_unsure[i] = c->id_unsure[i] || c->client_of_id[i] != c->durable_of_id[i];
    c->engine_up = false;
    memset(c->engine_versions, 0, sizeof(c->engine_versions));
}

void sim_check_event(struct sim_check *c, uint64_t now_us, const struct engine_event *event)
{
    c->now_us = now_us;
    switch (event->kind) {
    case ENGINE_EVENT_ROUND:
        sim_check_note(c, now_us, "round %llu is over", (unsigned long long)event->round.round);
        /* A power cut may lose the record that ended the round (async: of a dropped part). The round then ends again.
         */
        if (event->round.round != c->rounds_reported + 1 && !c->behind && !c->upstream &&
            !(c->cut && event->round.round <= c->rounds_reported))
            sim_check_fail(c, "round %llu is reported after round %llu", (unsigned long long)event->round.round,
                           (unsigned long long)c->rounds_reported);
        c->rounds_reported = event->round.round;
        break;
    case ENGINE_EVENT_FAULT:
        sim_check_note(c, now_us, "fault: %s", event->line.text);
        c->counts.faults++;
        break;
    case ENGINE_EVENT_WAITING:
        sim_check_note(c, now_us, "waiting: %s", event->line.text);
        if (!event->line.text[0]) sim_check_fail(c, "a waiting event without a text");
        break;
    case ENGINE_EVENT_UPDATE:
        sim_check_note(c, now_us, "fragment %llu is at version %llu", (unsigned long long)event->update.fragment,
                       (unsigned long long)event->update.version);
        break;
    default: break;
    }
}

uint64_t sim_check_rounds_reported(const struct sim_check *c)
{
    return c->rounds_reported;
}

/* The samples of a region are committed as a whole, also if it had fewer workers than it said. */
static bool any_region(const struct sim_check *c)
{
    for (int i = 0; i < c->n_clients; i++)
        if (c->workers[i].region) return true;
    return false;
}

void sim_check_finished(struct sim_check *c, const struct engine *engine)
{
    uint64_t merged = 0;
    for (uint64_t p = 0; p < c->n_trained; p++) merged += c->trained[p] != 0;
    if (merged != engine_samples_committed(engine) && !c->behind && !c->upstream && !any_region(c))
        sim_check_fail(c, "the coordinator counts %llu samples, the log has %llu",
                       (unsigned long long)engine_samples_committed(engine), (unsigned long long)merged);
    check_budget(c, merged);
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) engine_log(c, engine, f);
    /* Every validation window is counted once, at the final theta. */
    struct engine_summary summary;
    engine_summary(engine, &summary);
    if (c->rounds_reported != summary.rounds && !c->upstream)
        sim_check_fail(c, "%llu rounds are done, but the last one reported is round %llu",
                       (unsigned long long)summary.rounds, (unsigned long long)c->rounds_reported);
    uint64_t windows = c->toy.val_samples, tokens = windows * c->toy.sample_tokens;
    double loss = toy_val_loss(&c->toy, engine_theta(engine), c->layout.n_params, 0, windows) / (double)tokens;
    if (c->upstream) return; /* it evaluates */
    if (summary.val_tokens != tokens || fabs(summary.final_val_loss - loss) > 1e-9 * loss)
        sim_check_fail(c, "the final loss is %.12g over %llu tokens, expected %.12g over %llu", summary.final_val_loss,
                       (unsigned long long)summary.val_tokens, loss, (unsigned long long)tokens);
}
