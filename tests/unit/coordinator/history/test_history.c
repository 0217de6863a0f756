/* A stopped run is taken back: rollback gives the run that stopped there, exclude the run in which a worker never
 * delivered, and an audit finds every changed bit. The workers' deltas depend on worker and round alone, so runs with
 * other parameters get the same ones. ctest: timeout=180 */
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/engine/engine_impl.h"
#include "coordinator/ledger/history/audit.h"
#include "coordinator/ledger/history/history.h"
#include "coordinator/ledger/history/take_back.h"
#include "coordinator/ledger/record.h"
#include "coordinator/ledger/store.h"
#include "coordinator/ledger/store_disk.h"
#include "tests/lib/history/history_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/object.h"

enum { C = 2, ROUNDS = 12 };

/* --- rollback ----------------------------------------------------------------------------------------------------- */

static const char *const *const methods[] = {
    (const char *const[]){"train.fragments=2", NULL},
    (const char *const[]){"train.fragments=2", "outer.state=fp32", NULL},
    (const char *const[]){"codec.up=topk:24/256", "codec.down=relay", "outer.optimizer=sgd", NULL},
    (const char *const[]){"codec.up=topk:24/256", "codec.down=auto", "outer.optimizer=sgd", NULL},
    (const char *const[]){"codec.up=bf16", "codec.down=bf16", "merge.rule=rda", NULL},
    (const char *const[]){"train.overlap=1", "train.sync_every=4", "train.max_steps=80", NULL},
    (const char *const[]){"merge.clip=auto", "outer.optimizer=sgd", "outer.learning_rate=0.7", NULL},
    (const char *const[]){"train.method=ddp", "codec.up=fp32", "codec.down=fp32", "train.sync_every=1", NULL},
};
enum { METHODS = sizeof methods / sizeof *methods };

static void rollback_method(int i, uint64_t to, bool restarted)
{
    struct history h;
    const char *const *settings = settings_of(methods[i]);
    play_run("stopped", settings, to, WORKERS);
    uint64_t stopped = rig_theta_hash(&rig);
    close_run();
    play_run("whole", settings, to, WORKERS);
    if (restarted) {
        close_run();
        open_run("whole", settings);
        for (int k = 0; k < WORKERS; k++) rig_join(&rig, k);
    }
    play(ROUNDS, WORKERS);
    close_run();
    take_back("whole", &(struct history_request){.round = to}, &h);
    if (h.theta_hash != stopped) fail_msg("method %d: round %d has other parameters", i, (int)to);
    assert_int_equal(h.rounds, to);
    assert_int_equal(h.before, ROUNDS);
    assert_true(h.workers[0].deltas >= ROUNDS - to);
    history_finish(&h);
    check_audit("whole", to);
    for (int k = 0; k < 2; k++) {
        const char *run = k ? "whole" : "stopped";
        open_run(run, settings);
        for (int w = 0; w < WORKERS; w++) rig_join(&rig, w);
        play(ROUNDS + 2, WORKERS);
        if (!k) stopped = rig_theta_hash(&rig);
        if (k && rig_theta_hash(&rig) != stopped) fail_msg("method %d: the run ends at other parameters", i);
        close_run();
        remove_run(run);
    }
}

TEST(test_rollback_continues_like_the_run_that_stopped_there)
{
    for (int i = 0; i < METHODS; i++)
        for (uint64_t to = 0; to < ROUNDS; to += i ? 7 : 3) rollback_method(i, to, to % 2);
}

static struct wire_range first_range(int worker)
{
    return rig.workers[worker].task.ranges[0];
}

/* What run.max_hours and run.max_gb count was used up, whatever happens to its result. */
TEST(test_rollback_gives_no_budget_back)
{
    struct history h;
    const char *const *settings = settings_of(NULL);
    play_run("whole", settings, 4, WORKERS);
    rig_wait(&rig, 400000000);
    assert_int_equal(engine_stop(rig.engine, &err), STATUS_OK);
    double hours = engine_hours(rig.engine);
    close_run();
    take_back("whole", &(struct history_request){.round = 2}, &h);
    history_finish(&h);
    open_run("whole", settings);
    double left = engine_hours(rig.engine);
    if (hours < 0.1 || left < hours - 1.0 / 60) fail_msg("%g h, after the rollback %g h", hours, left);
    close_run();
    check_audit("whole", 2);
    remove_run("whole");
}

/* A worker that was late takes part in the next round, before others in the order. After a rollback to that round the
 * others get the samples of that time again, though it is not there: they may still have a delta for them. */
TEST(test_rollback_gives_the_same_samples_again)
{
    struct history h;
    struct wire_range before[WORKERS];
    const char *const *settings = settings_of(NULL);
    play_run("whole", settings, 2, WORKERS);
    for (int i = 1; i < WORKERS; i++) deliver(i); /* worker 0 is late */
    while (rounds() < 3) rig_wait(&rig, 500000);
    for (int i = 0; i < WORKERS; i++) rig_catch_up(&rig, i);
    take_tasks();
    assert_true(assigned[0] && rig.workers[0].task.round == 3);
    for (int i = 0; i < WORKERS; i++) before[i] = first_range(i);
    play(ROUNDS, WORKERS);
    close_run();
    take_back("whole", &(struct history_request){.round = 3}, &h);
    history_finish(&h);
    open_run("whole", settings);
    for (int i = 1; i < WORKERS; i++) rig_join(&rig, i);
    take_tasks();
    for (int i = 1; i < WORKERS; i++) {
        assert_true(assigned[i] && rig.workers[i].task.round == 3);
        assert_int_equal(first_range(i).start, before[i].start);
        assert_int_equal(first_range(i).count, before[i].count);
    }
    close_run();
    remove_run("whole");
}

/* --- exclude ------------------------------------------------------------------------------------------------------ */

/* The excluded worker has no place any more: the next round does not wait for it. */
static void check_goes_on_without(const char *run, const char *const *settings)
{
    open_run(run, settings);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    const uint64_t before = rounds(), began = rig.now;
    for (int i = 0; i < 2; i++) deliver(i);
    if (rounds() != before + 1) fail_msg("the run waits for %s", rig_waiting(&rig));
    assert_true(rig.now - began < 100000); /* the messages alone */
    close_run();
}

/* Compares with a run in which the worker delivers nothing since round `since`; 0: never. */
static void exclude_method(int i, uint64_t since, bool open_round)
{
    struct history h;
    const char *const *settings = settings_of(methods[i]);
    play_run("without", settings, since ? since - 1 : 0, WORKERS);
    play(ROUNDS, 2);
    uint64_t hash = rig_theta_hash(&rig);
    close_run();
    play_run("whole", settings, ROUNDS, WORKERS);
    assert_true(rig_theta_hash(&rig) != hash);
    if (open_round) deliver(0);
    close_run();
    take_back("whole", &(struct history_request){.exclude = "worker-2", .round = since}, &h);
    if (h.theta_hash != hash) fail_msg("method %d since round %d: other parameters", i, (int)since);
    assert_int_equal(h.rounds, ROUNDS);
    assert_int_equal(h.n_again, ROUNDS - (since ? since - 1 : 0));
    history_finish(&h);
    check_audit("whole", ROUNDS);
    check_goes_on_without("whole", settings);
    uint64_t end = continue_run("whole", settings, ROUNDS + 3);
    if (end != continue_run("without", settings, ROUNDS + 3)) fail_msg("method %d: they continue differently", i);
    remove_run("whole");
    remove_run("without");
}

TEST(test_exclude_gives_the_run_without_the_worker)
{
    for (int i = 0; i < METHODS; i++)
        for (uint64_t since = 0; since <= ROUNDS; since += i ? 6 : 2) exclude_method(i, since, since % 3 == 1);
}

/* Lossless deltas travel as the parameters that a worker reached, with the excluded part in what it started from. */
TEST(test_exclude_moves_parameters_of_lossless_deltas)
{
    struct history h;
    float want[RIG_PARAMS], whole[RIG_PARAMS];
    double wrong = 0, moved = 0;
    const char *const *settings = settings_of((const char *const[]){"codec.up=fp32+lz4", "codec.down=fp32", NULL});
    rig_moves_theta = true;
    play_run("without", settings, 0, WORKERS);
    play(ROUNDS, 2);
    memcpy(want, engine_theta(rig.engine), sizeof want);
    close_run();
    play_run("whole", settings, ROUNDS, WORKERS);
    memcpy(whole, engine_theta(rig.engine), sizeof whole);
    close_run();
    take_back("whole", &(struct history_request){.exclude = "worker-2"}, &h);
    history_finish(&h);
    check_audit("whole", ROUNDS);
    open_run("whole", settings);
    for (int i = 0; i < RIG_PARAMS; i++) {
        wrong = fmax(wrong, fabs((double)engine_theta(rig.engine)[i] - (double)want[i]));
        moved = fmax(moved, fabs((double)whole[i] - (double)want[i]));
    }
    close_run();
    rig_moves_theta = false;
    if (wrong > 1e-5 * moved) fail_msg("off by %g, where the worker moved the run by %g", wrong, moved);
    remove_run("whole");
    remove_run("without");
}

/* The process stopped in the middle, and later waited for workers: both leave records between the rounds. */
TEST(test_exclude_from_a_run_that_stopped_and_waited)
{
    struct history h;
    const char *const *settings = settings_of(NULL);
    play_run("without", settings, 0, WORKERS);
    play(ROUNDS, 2);
    uint64_t hash = rig_theta_hash(&rig);
    close_run();
    play_run("whole", settings, 4, WORKERS);
    assert_int_equal(engine_stop(rig.engine, &err), STATUS_OK);
    close_run();
    open_run("whole", settings);
    for (int i = 0; i < WORKERS; i++) rig_join(&rig, i);
    play(7, WORKERS);
    rig_wait(&rig, 100000000); /* the clock is journaled each minute */
    for (int i = 0; i < WORKERS; i++) rig_join(&rig, i);
    play(ROUNDS, WORKERS);
    close_run();
    take_back("whole", &(struct history_request){.exclude = "worker-2"}, &h);
    assert_int_equal(h.rounds, ROUNDS);
    if (h.theta_hash != hash) fail_msg("other parameters");
    history_finish(&h);
    check_audit("whole", ROUNDS);
    remove_run("whole");
    remove_run("without");
}

/* Its first delta belongs to the round that is open, and the newest checkpoint is that of the round before. */
TEST(test_exclude_of_a_worker_that_just_began)
{
    struct history h;
    const char *const *settings = settings_of((const char *const[]){"checkpoint.every=1", NULL});
    play_run("whole", settings, 4, 2);
    uint64_t hash = rig_theta_hash(&rig);
    for (int i = 0; i < WORKERS; i++) rig_catch_up(&rig, i);
    deliver(C);
    assert_int_equal(rounds(), 4);
    close_run();
    take_back("whole", &(struct history_request){.exclude = "worker-2"}, &h);
    assert_int_equal(h.rounds, 4);
    assert_true(h.theta_hash == hash);
    history_finish(&h);
    check_audit("whole", 4);
    check_goes_on_without("whole", settings);
    remove_run("whole");
}

/* The process stopped in the middle of round 5, so a checkpoint holds it. The journal must also be whole when it is
 * read from an older checkpoint, as if the newer one were damaged. */
TEST(test_exclude_since_a_round_in_which_the_run_stopped)
{
    struct history h;
    play_run("whole", settings_of(NULL), 4, WORKERS);
    deliver(C);
    assert_int_equal(engine_stop(rig.engine, &err), STATUS_OK);
    close_run();
    open_run("whole", settings_of(NULL));
    for (int i = 0; i < WORKERS; i++) rig_join(&rig, i);
    play(8, WORKERS);
    close_run();
    take_back("whole", &(struct history_request){.exclude = "worker-2", .round = 5}, &h);
    history_finish(&h);
    check_audit("whole", 8);
    remove_run("whole");
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void refused(const struct history_request *request, enum status status, const char *words)
{
    struct history h;
    enum status got = try_take_back("whole", request, &h);
    if (got != status || !strstr(err.msg, words)) fail_msg("%d: %s", got, err.msg);
    history_finish(&h);
}

TEST(test_refusals_name_what_is_possible)
{
    const char *const *settings = settings_of((const char *const[]){"checkpoint.keep=2", NULL});
    struct stat st;
    play_run("whole", settings, ROUNDS, WORKERS);
    for (int i = 0; i < 5; i++) { /* old checkpoints go */
        for (int w = 0; w < WORKERS; w++) rig_catch_up(&rig, w);
        rig_wait(&rig, 200000);
    }
    close_run();
    refused(&(struct history_request){.round = 3}, STATUS_INVALID,
            "--to 3: the journal begins with the oldest checkpoint, round 9; possible are 9 to 11");
    refused(&(struct history_request){.round = 12}, STATUS_INVALID,
            "--to 12: the run has 12 rounds; possible are 9 to 11");
    refused(&(struct history_request){.exclude = "nobody", .round = 11}, STATUS_NOTFOUND,
            "no worker of the run is named nobody; its workers: worker-0, worker-1, worker-2");
    refused(&(struct history_request){.exclude = "worker-2"}, STATUS_INVALID,
            "worker-2 contributed before the oldest checkpoint, round 9: the journal no longer has those deltas; give "
            "--since, at the earliest 10");
    refused(&(struct history_request){.exclude = "worker-2", .round = 9}, STATUS_INVALID, "possible are 10 to 12");
    refused(&(struct history_request){.exclude = "worker-2", .round = 13}, STATUS_INVALID, "possible are 10 to 12");
    assert_int_equal(stat(tmpdir_path("whole/" STORE_SWITCH), &st), -1); /* nothing was prepared */
    assert_int_equal(stat(tmpdir_path("whole/journal" STORE_NEXT), &st), -1);
    remove_run("whole");
}

/* A round that one worker delivered alone. */
TEST(test_exclude_refuses_the_only_worker_of_a_round)
{
    const char *const *settings = settings_of((const char *const[]){"coordinator.quorum=1", NULL});
    play_run("whole", settings, 4, 1);
    close_run();
    refused(&(struct history_request){.exclude = "worker-0"}, STATUS_UNSUPPORTED,
            "worker-0 was the only one that delivered in round 1, so nothing is left of that round: take the run back "
            "before it, with atoll rollback RUN --to 0");
    remove_run("whole");
}

/* --- async -------------------------------------------------------------------------------------------------------- */

static const char *const async_settings[] = {"train.method=async", "outer.grace=0", "coordinator.quorum=all",
                                             "train.max_steps=60", NULL};

/* Updates that only the excluded worker made have no place in the new history; the versions of the others move. */
TEST(test_exclude_moves_the_versions_of_an_async_run)
{
    struct history h;
    const char *const *settings = settings_of(async_settings);
    play_run("whole", settings, ROUNDS, WORKERS);
    uint64_t before = engine_version(rig.engine, 0);
    close_run();
    take_back("whole", &(struct history_request){.exclude = "worker-2", .round = 4}, &h);
    const uint64_t now = h.rounds, theta = h.theta_hash;
    assert_true(h.kept >= 3 && now > h.kept && now < h.before && h.new_tokens < h.tokens);
    history_finish(&h);
    check_audit("whole", now);
    open_run("whole", settings);
    assert_true(engine_version(rig.engine, 0) < before);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    const uint64_t version = engine_version(rig.engine, 1);
    play(now + 1, 2);
    close_run();
    remove_run("whole");
    play_run("without", settings, 0, WORKERS);
    while (rounds() < 3) play(rounds() + 1, WORKERS);
    for (int turns = 0; engine_version(rig.engine, 1) < version; turns++) {
        assert_true(turns < 400);
        for (int i = 0; i < 2 && engine_version(rig.engine, 1) < version; i++) deliver(i);
        rig_wait(&rig, 200000);
        for (int i = 0; i < WORKERS; i++) rig_catch_up(&rig, i);
    }
    if (rig_theta_hash(&rig) != theta) fail_msg("other parameters than without the worker");
    close_run();
    remove_run("without");
}

/* A round of an async run is the work of min_workers, a number that stands in no checkpoint. */
TEST(test_rollback_of_an_async_run_counts_its_rounds)
{
    struct history h;
    const char *const *settings = settings_of(async_settings);
    play_run("whole", settings, ROUNDS, WORKERS);
    const uint64_t before = rounds();
    close_run();
    take_back("whole", &(struct history_request){.round = 4}, &h);
    assert_true(h.before == before && h.rounds == 4);
    history_finish(&h);
    check_audit("whole", 4);
    remove_run("whole");
}

/* --- audit -------------------------------------------------------------------------------------------------------- */

/* The bytes of a segment of the run, in memory. */
struct segment {
    char path[FILEIO_PATH_MAX];
    uint8_t *bytes;
    size_t size;
};

static struct segment read_segment(const char *run, int number)
{
    struct segment s;
    void *bytes;
    snprintf(s.path, sizeof s.path, "%s/journal/%08d.log", at(run), number);
    assert_int_equal(file_read(s.path, 1 << 28, &bytes, &s.size, &err), STATUS_OK);
    s.bytes = bytes;
    return s;
}

static void write_segment(const struct segment *s)
{
    assert_int_equal(file_write(s->path, s->bytes, s->size, &err), STATUS_OK);
}

static struct audit audit_wrong(const char *what)
{
    struct audit a;
    audit("whole", &a);
    if (!a.wrong) fail_msg("%s: the audit finds nothing", what);
    return a;
}

TEST(test_audit_finds_one_flipped_bit_in_a_thousand_rounds)
{
    enum { FLIPS = 24, THOUSAND = 1000 };
    char what[128];
    uint64_t draw = 7;
    play_run("whole", settings_of((const char *const[]){"train.max_steps=2100", "checkpoint.every=5000", NULL}),
             THOUSAND, WORKERS);
    close_run();
    struct audit a;
    audit("whole", &a);
    if (a.wrong) fail_msg("%s", a.what);
    assert_true(a.from == 0 && a.to == THOUSAND && a.updates == 2 * THOUSAND && a.deltas >= 4 * THOUSAND);
    struct segment s = read_segment("whole", 1);
    assert_true(s.size > 300000);
    for (int i = 0; i < FLIPS; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        size_t at_byte = i == 0 ? s.size - 1 : i == 1 ? 0 : i == 2 ? 23 : (size_t)((draw >> 33) % s.size);
        uint8_t bit = (uint8_t)(1u << (draw >> 61));
        s.bytes[at_byte] ^= bit;
        write_segment(&s);
        snprintf(what, sizeof what, "bit %02x of byte %zu of %zu", bit, at_byte, s.size);
        a = audit_wrong(what);
        unsigned long long named = 0;
        const char *place = strstr(a.what, "byte ");
        if (!strstr(a.what, "journal/00000001.log") || !place || sscanf(place, "byte %llu", &named) != 1)
            fail_msg("%s: %s", what, a.what);
        if (named > at_byte || (at_byte > 24 && named + 4096 < at_byte)) fail_msg("%s: %s", what, a.what);
        s.bytes[at_byte] ^= bit;
    }
    write_segment(&s);
    audit("whole", &a);
    assert_false(a.wrong);
    mem_free(s.bytes);
    remove_run("whole");
}

/* The record number `n` of this type. */
static uint8_t *find_record(const struct segment *s, enum record_type type, int n)
{
    for (size_t i = JOURNAL_SEGMENT_HEADER; i < s->size;) {
        uint8_t *head = s->bytes + i;
        uint64_t size;
        memcpy(&size, head + 8, sizeof size);
        if (head[4] == type && !n--) return head;
        i += JOURNAL_RECORD_HEADER + size;
    }
    fail_msg("no such record");
    return NULL;
}

static void put_crc(uint8_t *to, const uint8_t *from, size_t size)
{
    uint32_t crc = crc32c(0, from, size);
    memcpy(to, &crc, sizeof crc);
}

/* Gives a changed record checksums that fit. */
static void seal(uint8_t *head)
{
    uint64_t size;
    memcpy(&size, head + 8, sizeof size);
    put_crc(head + 24, head + JOURNAL_RECORD_HEADER, size);
    put_crc(head + 28, head, 28);
}

/* Somebody rewrites history, with right checksums. */
TEST(test_audit_names_the_update_that_does_not_follow)
{
    play_run("whole", settings_of(NULL), 8, WORKERS);
    close_run();
    struct segment s = read_segment("whole", 2);
    uint8_t *delta = find_record(&s, RECORD_DELTA, 1), *body = delta + JOURNAL_RECORD_HEADER;
    uint64_t size;
    memcpy(&size, delta + 8, sizeof size);
    uint8_t *payload = body + RECORD_DELTA_HEAD, was = payload[20];
    payload[20] ^= 64;
    put_crc(body + 60, payload, size - RECORD_DELTA_HEAD);
    seal(delta);
    write_segment(&s);
    struct audit a = audit_wrong("a changed delta");
    if (!strstr(a.what, "round 4, fragment 1, version 4 (journal/00000002.log, byte ") ||
        !strstr(a.what, "the deltas of worker-0, worker-1, worker-2 give parameters with hash "))
        fail_msg("%s", a.what);
    assert_int_equal(a.to, 3);
    payload[20] = was;
    put_crc(body + 60, payload, size - RECORD_DELTA_HEAD);
    seal(delta);
    uint8_t *update = find_record(&s, RECORD_UPDATE, 3);
    memcpy(&size, update + 8, sizeof size);
    update[JOURNAL_RECORD_HEADER + size - 8] ^= 1; /* its payload; the object ends with a checksum */
    put_crc(update + JOURNAL_RECORD_HEADER + size - 4, update + JOURNAL_RECORD_HEADER + RECORD_CLOCK_BYTES,
            size - RECORD_CLOCK_BYTES - 4);
    seal(update);
    write_segment(&s);
    a = audit_wrong("a changed update");
    if (!strstr(a.what, "round 5, fragment 1, version 5") || !strstr(a.what, "but other bytes than it sends"))
        fail_msg("%s", a.what);
    mem_free(s.bytes);
    remove_run("whole");
}

static void flip_file(const char *name, size_t from_end)
{
    void *bytes;
    size_t size;
    assert_int_equal(file_read(tmpdir_path(name), 1 << 28, &bytes, &size, &err), STATUS_OK);
    ((uint8_t *)bytes)[size - from_end] ^= 1;
    assert_int_equal(file_write(tmpdir_path(name), bytes, size, &err), STATUS_OK);
    mem_free(bytes);
}

TEST(test_audit_finds_a_changed_checkpoint)
{
    static const char *const files[] = {"whole/checkpoints/round_000006/model.safetensors",
                                        "whole/checkpoints/round_000006/coordinator_state.bin",
                                        "whole/checkpoints/round_000000/model.safetensors"};
    play_run("whole", settings_of(NULL), 8, WORKERS);
    close_run();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        flip_file(files[i], 5);
        struct audit a = audit_wrong(files[i]);
        if (!strstr(a.what, i == 2 ? "round_000000" : "round_000006")) fail_msg("%s: %s", files[i], a.what);
        flip_file(files[i], 5);
    }
    snprintf(err.msg, sizeof err.msg, "%s/journal/00000002.log", at("whole"));
    assert_int_equal(unlink(err.msg), 0);
    struct audit a = audit_wrong("a missing segment");
    assert_non_null(strstr(a.what, "journal/00000002.log is missing"));
    remove_run("whole");
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
