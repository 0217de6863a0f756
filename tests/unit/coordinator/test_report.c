/* Reports for the user: log lines and metrics.jsonl. The file has only whole lines when the disk fills up or the
 * coordinator is killed, for its readers and for the next process.
 * A limit on the file size stands in for the disk: a write stops there in the middle. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "common/base/clock.h"
#include "common/config/config.h"
#include "common/os/fileio.h"
#include "coordinator/report/report.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static char path[FILEIO_PATH_MAX];
static struct config config;
static struct report report;
static FILE *lines;

static int begin(void **state)
{
    struct config_sources sources;
    config_defaults(&config, &sources);
    signal(SIGXFSZ, SIG_IGN); /* the write fails instead */
    lines = tmpfile();
    if (!lines || tmpdir_make(state) != 0) return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", tmpdir);
    return 0;
}

static int end(void **state)
{
    fclose(lines);
    return tmpdir_remove(state);
}

static void open_report(void)
{
    struct err err = {0};
    if (report_open(&report, &config, tmpdir, lines, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

/* Reports one event; each step is another one. */
static void emit_event(enum engine_event_kind kind, uint64_t round)
{
    static uint64_t step;
    struct engine_event event = {.kind = kind};
    switch (kind) {
    case ENGINE_EVENT_STEP:
        event.step = (struct engine_event_step){.worker = "w0", .step = ++step, .round = round, .tokens = 7, .loss = 1};
        break;
    case ENGINE_EVENT_ROUND:
        event.round = (struct engine_event_round){
            .round = round, .rounds = 1000, .tokens = 7, .loss = 1, .val_loss = 1, .slowest = "w0"};
        break;
    case ENGINE_EVENT_RESTART:
        event.restart = (struct engine_event_restart){"a line of some length", true, round, 1000};
        break;
    case ENGINE_EVENT_EVAL: event.eval = (struct engine_event_eval){round, 1, 7, 1, 1, false, false}; break;
    default: event.line = (struct engine_event_line){"w0", "a line of some length"}; break;
    }
    report_event(&report, &event);
}

static size_t size_of_file(void)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (size_t)st.st_size;
}

/* Limits file sizes to `bytes`; SIZE_MAX: no limit. */
static void set_room(size_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes == SIZE_MAX ? limit.rlim_max : bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Counts the lines of the file, which must all be whole; sets the round of the last one. */
static size_t whole_lines(uint64_t *round)
{
    char line[1024];
    size_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        json_t *o = strchr(line, '\n') ? json_loads(line, 0, NULL) : NULL;
        if (!o) fail_msg("line %zu is not whole: %s", n + 1, line);
        *round = (uint64_t)json_integer_value(json_object_get(o, "round"));
        json_decref(o);
        n++;
    }
    fclose(file);
    return n;
}

/* Space runs out `room` bytes after the first round's line, during `steps` steps and the end of their round. Later
 * there is space again. Only lines that fit stay. */
static void fill_up(size_t room, uint64_t steps)
{
    struct err err = {0};
    uint64_t last = 0;
    open_report();
    emit_event(ENGINE_EVENT_ROUND, 1);
    size_t before = size_of_file();
    set_room(before + room);
    for (uint64_t i = 0; i < steps; i++) emit_event(ENGINE_EVENT_STEP, 2);
    emit_event(ENGINE_EVENT_ROUND, 2);
    assert_int_equal(report_flush(&report, &err), STATUS_FULL);
    assert_non_null(strstr(err.msg, strerror(EFBIG)));
    size_t n = whole_lines(&last);
    assert_in_range(n, 1, steps + 1);
    set_room(SIZE_MAX);
    emit_event(ENGINE_EVENT_ROUND, 3);
    assert_int_equal(report_flush(&report, &err), STATUS_FULL); /* the error ends the run */
    report_close(&report);
    assert_int_equal(whole_lines(&last), n);

    open_report();
    assert_int_equal(report.metrics.rounds_in_file, 1);
    emit_event(ENGINE_EVENT_ROUND, 4);
    assert_int_equal(report_flush(&report, &err), STATUS_OK);
    report_close(&report);
    assert_int_equal(whole_lines(&last), n + 1);
    assert_int_equal(last, 4);
    assert_int_equal(unlink(path), 0);
}

/* The limit cuts the line itself. */
TEST(test_incomplete_line_is_removed)
{
    fill_up(10, 0);
}

/* Steps wait in the buffer until a round's line, or until it is full. */
TEST(test_full_disk_keeps_whole_lines)
{
    fill_up(10, 7);
    fill_up(300, 7);
    fill_up(4096 + 10, 200);
    fill_up(10, 200);
}

/* Steps in the buffer are written when the file is closed. */
TEST(test_close_keeps_whole_lines)
{
    uint64_t last = 0;
    open_report();
    emit_event(ENGINE_EVENT_ROUND, 1);
    set_room(size_of_file() + 10);
    emit_event(ENGINE_EVENT_STEP, 2);
    report_close(&report);
    set_room(SIZE_MAX);
    assert_int_equal(whole_lines(&last), 1);
    assert_int_equal(unlink(path), 0);
}

/* A killed process leaves an incomplete line. */
TEST(test_next_process_removes_incomplete_line)
{
    struct err err = {0};
    uint64_t last = 0;
    open_report();
    emit_event(ENGINE_EVENT_ROUND, 7);
    report_close(&report);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_true(fputs("{\"time\":1,\"event\":\"round\",\"round\":8", file) > 0);
    assert_int_equal(fclose(file), 0);

    open_report();
    assert_int_equal(report.metrics.rounds_in_file, 7);
    emit_event(ENGINE_EVENT_ROUND, 8);
    assert_int_equal(report_flush(&report, &err), STATUS_OK);
    report_close(&report);
    assert_int_equal(whole_lines(&last), 2);
    assert_int_equal(last, 8);
    assert_int_equal(unlink(path), 0);
}

/* The key by which a reader drops a step that a worker sent twice. */
TEST(test_step_has_key_for_readers)
{
    open_report();
    report_event(&report,
                 &(struct engine_event){.kind = ENGINE_EVENT_STEP, .step = {.worker = "w0", .round = 3, .step = 50}});
    report_close(&report);
    json_t *o = json_load_file(path, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "worker")), "w0");
    assert_int_equal(json_integer_value(json_object_get(o, "round")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "step")), 50);
    json_decref(o);
    assert_int_equal(unlink(path), 0);
}

/* A step has the time at which it ended, though it is reported later. */
TEST(test_step_has_its_own_time)
{
    open_report();
    double before = clock_epoch_s();
    report_event(&report, &(struct engine_event){.kind = ENGINE_EVENT_STEP, .step = {.worker = "w0", .age_s = 90}});
    report_close(&report);
    json_t *o = json_load_file(path, 0, NULL);
    double time = json_number_value(json_object_get(o, "time"));
    assert_true(time >= before - 90.01 && time <= clock_epoch_s() - 89.9);
    json_decref(o);
    assert_int_equal(unlink(path), 0);
}

/* Returns the log lines since forget_log. */
static const char *logged(void)
{
    static char text[4096];
    rewind(lines);
    text[fread(text, 1, sizeof text - 1, lines)] = '\0';
    return text;
}

static void forget_log(void)
{
    rewind(lines);
    assert_int_equal(ftruncate(fileno(lines), 0), 0);
}

/* Bits per byte are shown only if tokens are bytes. */
TEST(test_bits_per_byte_only_with_byte_tokens)
{
    for (int bytes = 0; bytes < 2; bytes++) {
        forget_log();
        config.model.vocab_size = bytes ? 256 : 50257;
        open_report();
        emit_event(ENGINE_EVENT_ROUND, 1);
        report_close(&report);
        assert_non_null(strstr(logged(), "val 1.0000"));
        assert_int_equal(strstr(logged(), "(1.44 bpb)") != NULL, bytes);
        assert_int_equal(unlink(path), 0);
    }
}

/* A loss is in the line of its round, or in a line of its own if the round's line is written. Lines of the previous
 * process count, unless their round is repeated. */
TEST(test_late_loss_names_its_round)
{
    for (int again = 0; again < 2; again++) {
        open_report();
        emit_event(ENGINE_EVENT_ROUND, 1);
        emit_event(ENGINE_EVENT_ROUND, 2);
        report_close(&report);
        forget_log();
        open_report();
        emit_event(ENGINE_EVENT_RESTART, again ? 1 : 2);
        emit_event(ENGINE_EVENT_EVAL, 2);
        assert_int_equal(strstr(logged(), "after round 2, 7 tokens") != NULL, !again);
        emit_event(ENGINE_EVENT_EVAL, 3);
        assert_null(strstr(logged(), "after round 3"));
        assert_int_equal(strstr(logged(), "repeating round 2: the journal lost it") != NULL, again);
        report_close(&report);
        assert_int_equal(unlink(path), 0);
    }
}

/* async: there may be more deltas than workers. */
TEST(test_round_line_counts_deltas)
{
    static const char *const words[] = {"  workers 3/4  up", "  deltas 5  workers 2  up"};
    for (int async = 0; async < 2; async++) {
        config.train.method = async ? METHOD_ASYNC : METHOD_DILOCO;
        forget_log();
        open_report();
        report_event(&report,
                     &(struct engine_event){
                         .kind = ENGINE_EVENT_ROUND,
                         .round = {.round = 1, .rounds = 9, .delivered = async ? 5 : 3, .workers = async ? 2 : 4}});
        assert_non_null(strstr(logged(), words[async]));
        report_close(&report);
        assert_int_equal(unlink(path), 0);
    }
    config.train.method = METHOD_DILOCO;
}

static const struct engine_event_round example = {.round = 2,
                                                  .rounds = 24,
                                                  .loss = 2.62571,
                                                  .val_loss = NAN,
                                                  .round_s = 5.25,
                                                  .compute_s = 0.0733,
                                                  .wait_s = 75.2,
                                                  .eta_s = 466.036,
                                                  .delivered = 2,
                                                  .workers = 2,
                                                  .slowest = "kitchen"};

static void report_round(struct engine_event_round round)
{
    forget_log();
    open_report();
    report_bytes(&report, 202406124, 1536);
    report_event(&report, &(struct engine_event){.kind = ENGINE_EVENT_ROUND, .round = round});
    report_close(&report);
    assert_int_equal(unlink(path), 0);
}

/* Three digits and a unit each, as in tests/golden/units.tsv. */
TEST(test_round_line_has_units)
{
    config.model.vocab_size = 50257;
    report_round(example);
    assert_string_equal(logged(),
                        "round  2/24  loss 2.6257  val      -  workers 2/2  up  202 MB  down 1.54 kB  in  5.25 s"
                        "  eta 7 min 46 s   computed 73.3 ms  waited 1 min 15 s  slowest kitchen\n");
}

/* The final evaluation follows the last round: no time is left for rounds. */
TEST(test_bar_has_no_time_at_its_end)
{
    struct engine_event_round last = example;
    setenv("ATOLL_PROGRESS_BAR", "1", 1);
    report_round(example);
    assert_non_null(strstr(logged(), "\n[##............................]  8 %  7 min 46 s left\r"));
    last.round = last.rounds;
    last.eta_s = 7;
    report_round(last);
    assert_non_null(strstr(logged(), "\n[##############################]  100 %\r"));
    last.round = 1;
    last.eta_s = NAN;
    report_round(last);
    assert_non_null(strstr(logged(), "\n[#.............................]  4 %\r"));
    unsetenv("ATOLL_PROGRESS_BAR");
}

TEST_MAIN(begin, end)
