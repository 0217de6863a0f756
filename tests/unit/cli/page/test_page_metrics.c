/* The text for Prometheus: names, order, labels that strangers chose, and what is left out. */
#include "cli/page/page_metrics.h"
#include "common/os/run_status.h"
#include "tests/lib/test.h"

static struct page_run run;
static char text[1 << 16];

static int begin(void **state)
{
    (void)state;
    page_run_init(&run);
    return 0;
}

static int end(void **state)
{
    (void)state;
    page_run_finish(&run);
    return 0;
}

static void print(void)
{
    FILE *out = fmemopen(text, sizeof text, "w");
    page_metrics_write(&run, out);
    fclose(out);
}

static void take(const char *workers, const char *reason)
{
    json_t *s = run_status_new(), *list = json_loads(workers, 0, NULL);
    assert_non_null(list);
    run_status_set(s, "workers", list);
    run_status_real(s, "train_loss", 2.5);
    run_status_real(s, "tokens_per_s", 1000);
    json_object_set_new(s, "alerts", json_loads("[{\"rule\": \"disk\", \"text\": \"full\"}]", 0, NULL));
    json_object_set_new(s, "alerts_total", json_pack("{s:i, s:i}", "disk", 2, "loss", 0));
    json_object_set_new(s, "budget",
                        json_pack("{s:f, s:i, s:f, s:n}", "hours", 1.5, "max_hours", 10, "gb", 2.0, "max_gb"));
    (void)page_run_status(&run, s, reason, 1);
    json_decref(s);
    print();
}

static void expect(const char *line)
{
    if (!strstr(text, line)) fail_msg("no \"%s\" in\n%s", line, text);
}

static void expect_none(const char *line)
{
    if (strstr(text, line)) fail_msg("\"%s\" in\n%s", line, text);
}

TEST_WITH(test_counters_come_first, begin, end)
{
    take("[]", "");
    bool gauges = false;
    for (const char *at = text; (at = strstr(at, "# TYPE ")); at++) {
        const char *type = strchr(at + strlen("# TYPE "), ' ') + 1;
        gauges |= !strncmp(type, "gauge", 5);
        if (!strncmp(type, "counter", 7) && gauges && strncmp(at, "# TYPE atoll_worker_", 20) != 0)
            fail_msg("a counter after a gauge: %.60s", at);
    }
    assert_true(gauges);
}

/* Each sample has the name of the head before it, and each head has HELP, TYPE and a sample. */
TEST_WITH(test_each_metric_has_its_head, begin, end)
{
    take("[{\"name\": \"w\", \"state\": \"training\", \"connected\": true, \"tokens\": 5}]", "");
    char name[128] = "", line[512];
    bool sampled = true;
    for (const char *at = text; *at; at += strcspn(at, "\n") + 1) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (!strncmp(line, "# HELP ", 7)) {
            assert_true(sampled);
            sampled = false;
            assert_int_equal(sscanf(line, "# HELP %127s", name), 1);
        } else if (!strncmp(line, "# TYPE ", 7)) {
            assert_int_equal(strncmp(line + 7, name, strlen(name)), 0);
        } else {
            sampled = true;
            assert_int_equal(strcspn(line, "{ "), strlen(name));
            assert_int_equal(strncmp(line, name, strlen(name)), 0);
        }
    }
    assert_true(sampled);
}

TEST_WITH(test_values, begin, end)
{
    take("[{\"name\": \"a\", \"state\": \"training\", \"connected\": true, \"step_s\": 0.5, \"silent_s\": 0.25},"
         " {\"name\": \"b\", \"state\": \"lost\", \"connected\": false}]",
         "");
    expect("atoll_train_loss 2.5\n");
    expect("atoll_worker_up{worker=\"a\"} 1\n");
    expect("atoll_worker_up{worker=\"b\"} 0\n");
    expect("atoll_worker_step_seconds{worker=\"a\"} 0.5\n");
    expect("atoll_alert_active{rule=\"disk\"} 1\n");
    expect("atoll_alert_active{rule=\"loss\"} 0\n");
    expect("atoll_alerts_total{rule=\"disk\"} 2\n");
    expect("atoll_budget_used_seconds 5400\n");
    expect("atoll_budget_limit_seconds 36000\n");
    expect("atoll_budget_used_bytes 2000000000\n");
    expect_none("atoll_budget_limit_bytes");
    expect_none("atoll_validation_loss"); /* unknown */
    expect_none("atoll_worker_step_seconds{worker=\"b\"}");
}

/* A name cannot end its label, its line or the answer. */
TEST_WITH(test_hostile_names_stay_in_their_label, begin, end)
{
    take("[{\"name\": \"a\\\"} 1\\natoll_up 7\\\\\", \"state\": \"training\", \"connected\": true}]", "");
    expect("atoll_worker_up{worker=\"a\\\"} 1\\natoll_up 7\\\\\"} 1\n");
    expect_none("\natoll_up 7");
}

/* Prometheus refuses an answer with the same sample twice. */
TEST_WITH(test_repeated_name_stands_once, begin, end)
{
    take("[{\"name\": \"w\", \"state\": \"training\", \"connected\": true}, {\"name\": \"w\", \"state\": \"joining\","
         " \"connected\": true}]",
         "");
    const char *first = strstr(text, "atoll_worker_up{worker=\"w\"}");
    assert_non_null(first);
    assert_null(strstr(first + 1, "atoll_worker_up{worker=\"w\"}"));
}

/* Old values of what holds only now would hide an outage. */
TEST_WITH(test_without_an_answer_counters_stay, begin, end)
{
    take("[{\"name\": \"w\", \"state\": \"training\", \"connected\": true, \"tokens\": 5}]", "");
    expect("atoll_up 1\n");
    (void)page_run_status(&run, NULL, "no answer", 2);
    print();
    expect("atoll_up 0\n");
    expect("atoll_worker_tokens_total{worker=\"w\"} 5\n");
    expect_none("atoll_worker_up");
    expect_none("atoll_tokens_per_second");
}

TEST_WITH(test_before_the_first_answer, begin, end)
{
    print();
    expect("atoll_rounds_total 0\n");
    expect("atoll_up 0\n");
    expect_none("atoll_train_loss");
    expect_none("nan");
}

/* A hostile coordinator sends other types. */
TEST_WITH(test_values_of_other_types, begin, end)
{
    take("[3, null, {\"name\": 7}, {\"name\": \"w\", \"step_s\": \"x\", \"connected\": 1}]", "");
    expect("atoll_worker_up{worker=\"w\"} 0\n");
}

TEST_MAIN(NULL, NULL)
