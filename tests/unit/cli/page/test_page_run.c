/* The page's state from metrics.jsonl and from statuses: history, totals that do not fall, workers' times. */
#include <math.h>
#include <unistd.h>

#include "cli/page/page_log.h"
#include "cli/page/page_run.h"
#include "common/os/run_status.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct page_run run;
static struct page_log file;

static void assert_near(double a, double b, double most)
{
    if (!(fabs(a - b) <= most)) fail_msg("%.17g is not %.17g", a, b);
}

static void on_event(void *ctx, const json_t *event, const char *kind)
{
    page_run_event(ctx, event, kind);
}

static void on_again(void *ctx)
{
    page_run_again(ctx);
}

static void read_file(void)
{
    const struct page_log_reader reader = {on_event, on_again, &run};
    assert_true(page_log_read(&file, &reader));
}

static int begin(void **state)
{
    int failed = tmpdir_make(state);
    page_run_init(&run);
    file = (struct page_log){.run = tmpdir};
    return failed;
}

static int end(void **state)
{
    page_log_end(&file);
    page_run_finish(&run);
    return tmpdir_remove(state);
}

/* Appends a line to metrics.jsonl. */
static void put(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void put(const char *fmt, ...)
{
    FILE *out = fopen(tmpdir_path("metrics.jsonl"), "a");
    va_list args;
    va_start(args, fmt);
    vfprintf(out, fmt, args);
    va_end(args);
    fclose(out);
}

static void put_round(int round, double loss)
{
    put("{\"time\":%d.5,\"event\":\"round\",\"round\":%d,\"rounds\":20,\"tokens\":%d,\"loss\":%g,\"bytes_up\":%d,"
        "\"bytes_down\":%d,\"round_s\":2,\"eval_s\":1}\n",
        1000 + round, round, 100 * round, loss, 10 * round, 20 * round);
}

#define TEST_RUN(name) TEST_WITH(name, begin, end)

TEST_RUN(test_history_of_the_file)
{
    for (int round = 1; round <= 3; round++) put_round(round, 5 - round);
    put("{\"time\":1004,\"event\":\"eval\",\"round\":3,\"tokens\":300,\"val_loss\":2.5}\n");
    read_file();
    assert_int_equal(run.train.n, 3);
    assert_near(run.train.points[2].place.seconds, 9, 0);
    assert_near(run.train.points[2].place.bytes, 90, 0);
    assert_int_equal(run.validation.n, 1);
    assert_near(run.validation.points[0].sum, 2.5, 0);
    assert_near(run.totals.rounds, 3, 0);
    assert_near(run.totals.bytes_down, 60, 0);
    assert_near(run.round_s, 2, 0);
    read_file();
    assert_int_equal(run.train.n, 3); /* no line counts twice */
}

/* The coordinator is writing: the rest of the line comes later. */
TEST_RUN(test_line_in_two_parts)
{
    put_round(1, 4);
    put("{\"time\":1002.5,\"event\":\"round\",\"round\":2,\"tok");
    read_file();
    assert_int_equal(run.train.n, 1);
    put("ens\":200,\"loss\":3}\n");
    read_file();
    assert_int_equal(run.train.n, 2);
    assert_int_equal(file.damaged, 0);
}

TEST_RUN(test_damaged_lines_are_counted)
{
    put("no json\n{\"event\":7}\n[1]\n\n");
    put_round(1, 4);
    read_file();
    assert_int_equal(file.damaged, 3);
    assert_int_equal(run.train.n, 1);
}

/* A file that was written anew, by a rollback or a restored backup: its history counts, and its faults count once. */
TEST_RUN(test_replaced_file)
{
    for (int round = 1; round <= 5; round++) put_round(round, 9);
    put("{\"event\":\"fault\",\"text\":\"a\"}\n{\"event\":\"fault\",\"text\":\"b (3 times in 1 s)\"}\n");
    read_file();
    assert_int_equal(run.totals.faults[PAGE_FAULT], 4);
    assert_int_equal(unlink(tmpdir_path("metrics.jsonl")), 0);
    put("{\"event\":\"fault\",\"text\":\"a\"}\n");
    for (int round = 1; round <= 2; round++) put_round(round, 7);
    read_file();
    assert_int_equal(run.train.n, 2);
    assert_near(run.train.points[1].sum, 7, 0);
    assert_near(run.train.points[1].place.seconds, 6, 0);
    assert_near(run.totals.rounds, 2, 0);
    assert_int_equal(run.totals.faults[PAGE_FAULT] + run.kept[PAGE_FAULT], 1);
}

/* A file that goes on with an old one: nothing is lost. */
TEST_RUN(test_rotated_file)
{
    for (int round = 1; round <= 5; round++) put_round(round, 9);
    put("{\"event\":\"evict\",\"worker\":\"w\",\"text\":\"silent\"}\n");
    read_file();
    assert_int_equal(rename(tmpdir_path("metrics.jsonl"), tmpdir_path("old")), 0);
    put("{\"event\":\"evict\",\"worker\":\"v\",\"text\":\"silent\"}\n");
    for (int round = 6; round <= 7; round++) put_round(round, 8);
    read_file();
    assert_int_equal(run.train.n, 7);
    assert_int_equal(run.totals.faults[PAGE_EVICT] + run.kept[PAGE_EVICT], 2);
}

TEST_RUN(test_truncated_file)
{
    for (int round = 1; round <= 5; round++) put_round(round, 9);
    read_file();
    assert_int_equal(truncate(tmpdir_path("metrics.jsonl"), 0), 0);
    put_round(1, 3);
    read_file();
    assert_int_equal(run.train.n, 1);
    assert_near(run.train.points[0].sum, 3, 0);
}

/* Of the steps only the last one of a round has times. The link's rate is what was sent in the time of sending. */
TEST_RUN(test_times_of_a_worker)
{
    put("{\"event\":\"step\",\"worker\":\"w\",\"round\":1,\"step\":1,\"tokens_per_s\":5}\n");
    put("{\"event\":\"step\",\"worker\":\"w\",\"round\":1,\"step\":2,\"tokens_per_s\":7,\"bytes_up\":1000000,"
        "\"send_s\":1}\n");
    read_file();
    assert_near(page_number(json_object_get(run.times, "w"), "tokens_per_s"), 7, 0);
    assert_true(isnan(page_number(json_object_get(run.times, "w"), "mbit")));
    put("{\"event\":\"step\",\"worker\":\"w\",\"round\":2,\"step\":4,\"tokens_per_s\":7,\"bytes_up\":3000000,"
        "\"send_s\":2}\n");
    read_file();
    assert_near(page_number(json_object_get(run.times, "w"), "mbit"), 8, 1e-9);
}

TEST_RUN(test_events_are_bounded)
{
    for (int i = 0; i < 3 * PAGE_EVENTS_MAX; i++) put("{\"event\":\"note\",\"text\":\"%d\"}\n", i);
    put("{\"event\":\"update\",\"version\":3}\n");
    read_file();
    assert_int_equal(json_array_size(run.events), PAGE_EVENTS_MAX);
    assert_int_equal(run.n_events, 3 * PAGE_EVENTS_MAX);
}

/* --- statuses ----------------------------------------------------------------------------------------------------- */

static void take(int round, int tokens, int refused, uint64_t now_s)
{
    json_t *s = run_status_new();
    run_status_set(s, "run_id", json_string("aa"));
    run_status_progress(s, round, 20);
    run_status_set(s, "tokens", json_integer(tokens));
    run_status_set(s, "bytes_up", json_integer(round * 10));
    run_status_set(s, "bytes_down", json_integer(0));
    run_status_set(s, "deltas_refused", json_integer(refused));
    run_status_real(s, "train_loss", 3);
    run_status_real(s, "val_loss", 2);
    json_object_set_new(s, "alerts_total", json_pack("{s:i}", "disk", refused));
    page_run_status(&run, s, "", now_s * 1000000);
    json_decref(s);
}

/* With a join line there is no file: each new round of the status is a point. */
TEST_RUN(test_history_of_statuses)
{
    take(1, 100, 0, 10);
    take(1, 100, 0, 11);
    take(3, 300, 0, 14);
    assert_int_equal(run.train.n, 2);
    assert_int_equal(run.train.points[1].last, 3);
    assert_int_equal(run.validation.n, 1);
    assert_near(run.round_s, 2, 1e-9);
    assert_near(run.totals.rounds, 3, 0);
    take(2, 200, 0, 15); /* rolled back */
    assert_int_equal(run.train.n, 1);
    assert_near(run.totals.rounds, 2, 0);
}

/* The coordinator counts refused deltas and alerts since its start; the sums go on after a restart. */
TEST_RUN(test_sums_survive_a_restart)
{
    take(1, 100, 4, 10);
    take(2, 200, 5, 11);
    take(2, 200, 1, 12);
    assert_near(run.refused.sum, 6, 0);
    assert_near(json_number_value(json_array_get(json_object_get(run.alerts, "disk"), 1)), 6, 0);
}

TEST_RUN(test_no_answer_keeps_the_numbers)
{
    take(2, 200, 0, 10);
    assert_true(run.current);
    page_run_status(&run, NULL, "no answer from \xff", 12000000);
    assert_false(run.current);
    assert_string_equal(run.reason, "no answer from ?");
    assert_near(run.totals.rounds, 2, 0);
    assert_non_null(run.status);
}

TEST_RUN(test_another_run_empties_the_page)
{
    take(5, 500, 3, 10);
    json_t *s = run_status_new();
    run_status_set(s, "run_id", json_string("bb"));
    assert_true(page_run_status(&run, s, "", 11000000));
    json_decref(s);
    assert_int_equal(run.train.n, 0);
    assert_near(run.totals.rounds, 0, 0);
    assert_near(run.refused.sum, 0, 0);
}

/* The file is the truth where there is one: a status that is ahead of it adds nothing. */
TEST_RUN(test_file_goes_before_the_status)
{
    run.from_file = true;
    take(2, 200, 0, 10);
    assert_near(run.totals.rounds, 0, 0);
    put_round(1, 5);
    put_round(2, 4);
    read_file();
    take(4, 400, 0, 12);
    assert_int_equal(run.train.n, 2);
    assert_near(run.train.points[1].sum, 4, 0);
    assert_near(run.totals.rounds, 2, 0);
}

TEST_MAIN(NULL, NULL)
