/* atoll status for people: units, no unknown values, no zeros, no control characters. */

#include "cli/status/status_view.h"
#include "common/os/run_status.h"
#include "tests/lib/test.h"

/* Checks the page of a status whose keys `json` sets. */
static void expect_page(const char *json, unsigned width, const char *want)
{
    char *text = NULL;
    size_t size;
    json_error_t error;
    json_t *status = run_status_new(), *values = json_loads(json, 0, &error);
    if (!values) fail_msg("%s: %s", json, error.text);
    json_object_update(status, values);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    status_view_print(status, width, "\n", out);
    fclose(out);
    assert_string_equal(text, want);
    free(text);
    json_decref(values);
    json_decref(status);
}

TEST(test_running_run)
{
    expect_page(
        "{\"state\": \"training\", \"run\": \"first\", \"method\": \"diloco\", \"round\": 2, \"rounds\": 24,"
        " \"percent\": 8.33333, \"eta_s\": 466.036, \"train_loss\": 2.62571, \"val_loss\": 2.7, "
        "\"tokens\": 2950000, \"tokens_per_s\": 12345.6, \"steps\": 60, \"params\": 124439808, "
        "\"bytes_up\": 202406124, \"bytes_down\": 3400000, \"down\": \"relay\", \"utilization\": 0.211857, "
        "\"wall_s\": 61.4, \"restarts\": 0, \"deltas_refused\": 0, \"workers_gone\": 0, "
        "\"workers_not_listed\": 0, \"fragments\": [{\"version\": 3, \"hash\": \"00ff\"}], "
        "\"notes\": [\"a and b send nearly the same delta\"], "
        "\"waiting_for\": \"round 3: 1 of 2 deltas are in, missing: office (training, step 3/30)\", \"workers\": ["
        "{\"name\": \"kitchen\", \"state\": \"sending\", \"doing\": \"sending delta, 61 % at 1.9 Mbit/s\","
        " \"tokens\": 1400000, \"step_s\": 0.0733, \"silent_s\": 0.312888, \"devices\": \"cpu\"},"
        "{\"name\": \"b\\u00fcro\", \"state\": \"silent\", \"doing\": \"training, step 3/30\", \"tokens\": 0, "
        "\"step_s\": null, \"silent_s\": 75.2, \"devices\": null}]}",
        0,
        "run          first, diloco, 124 M parameters\n"
        "state        training, round 2 of 24, 8 %, 7 min 46 s left, 1 min 1 s so far\n"
        "loss         train 2.6257, validation 2.7000\n"
        "tokens       2.95 M in 60 steps, 12.3 k/s\n"
        "sent         202 MB up, 3.4 MB down (last update: relay)\n"
        "utilization  21 %\n"
        "waiting for  round 3: 1 of 2 deltas are in, missing: office (training, step 3/30)\n"
        "warning      a and b send nearly the same delta\n"
        "\n"
        "worker   doing                              tokens  step     heard           devices\n"
        "kitchen  sending delta, 61 % at 1.9 Mbit/s  1.4 M   73.3 ms  now             cpu\n"
        "b\u00fcro     silent                                              1 min 15 s ago\n");
}

TEST(test_finished_run_has_no_time_left)
{
    expect_page("{\"state\": \"done\", \"run\": \"first\", \"method\": \"async\", \"round\": 24, \"rounds\": 24, "
                "\"percent\": 100, \"eta_s\": 0, \"wall_s\": 22570, \"restarts\": 2, \"train_loss\": 1.9, "
                "\"val_loss\": 2.016, \"final_val_loss\": 2.016, \"val_tokens\": 280368, \"bytes_up\": 1536, "
                "\"bytes_down\": 0, \"ddp_bytes\": 2500000000000, \"other_bytes_up\": 211529876, "
                "\"other_bytes_down\": 3000, \"workers_gone\": 3, \"theta_hash\": \"0123456789abcdef\", "
                "\"staleness\": [5, 1, 2], \"deltas_refused\": 3, \"refused_for\": {\"late\": 2, \"stale\": 1}}",
                0,
                "run          first, async, 3 workers\n"
                "state        done, round 24 of 24, in 6 h 16 min, 2 restarts\n"
                "loss         train 1.9000, final validation 2.0160 of 280 k tokens\n"
                "sent         1.54 kB up, 0 B down; ddp would send 2.5 TB\n"
                "besides the run: 212 MB up, 3 kB down (followers, probes, status, strangers)\n"
                "staleness    5 deltas 0 rounds behind, 1 delta 1 round behind, 2 deltas 2 rounds behind\n"
                "refused      3 deltas: 2 late, 1 stale\n"
                "theta_hash   0123456789abcdef\n");
}

/* The final evaluation follows the last round: there is no time left to tell, and the run is not done. */
TEST(test_last_round_has_no_time_left)
{
    expect_page("{\"state\": \"evaluating\", \"round\": 24, \"rounds\": 24, \"percent\": 100, \"eta_s\": 7}", 0,
                "state        evaluating, round 24 of 24, 100 %\n");
    expect_page("{\"state\": \"training\", \"round\": 999, \"rounds\": 1000, \"eta_s\": null}", 0,
                "state        training, round 999 of 1000, 99.9 %\n");
    expect_page("{\"state\": \"stopped\", \"round\": 5, \"rounds\": 24}", 0,
                "state        stopped, round 5 of 24, 21 %\n");
}

TEST(test_narrow_terminal)
{
    expect_page("{\"state\": \"waiting\", \"waiting_for\": \"workers: 1 of 2 are ready; office (joining)\", "
                "\"workers_gone\": 2, \"workers_not_listed\": 7, "
                "\"workers\": [{\"name\": \"w\", \"state\": \"gone\", \"tokens\": 1000, \"step_s\": 1}]}",
                32,
                "state        waiting\n"
                "waiting for  workers: 1 of 2 are\n"
                "             ready; office\n"
                "             (joining)\n"
                "\n"
                "worker  doing  tokens  step\n"
                "w       gone   1 k     1 s\n"
                "(2 left, 7 more)\n");
}

/* A hostile coordinator cannot send commands to the terminal. */
TEST(test_control_characters_are_replaced)
{
    expect_page("{\"run\": \"a\\u001b[31mb\\u0007\", \"deltas_refused\": 1, \"refused_for\": {\"k\\u001b\": 1}, "
                "\"workers\": [{\"name\": \"\\u001b]0;x\"}]}",
                0,
                "run          a?[31mb?\n"
                "refused      1 delta: 1 k?\n"
                "\n"
                "worker\n"
                "?]0;x\n");
}

TEST(test_values_of_other_types)
{
    expect_page("{\"state\": 7, \"round\": \"x\", \"rounds\": -3, \"workers\": [3, null], \"staleness\": {}, "
                "\"refused_for\": [], \"train_loss\": 1e39, \"tokens\": 1e300}",
                0,
                "loss         train 1e+39\n"
                "tokens       1e+288 T\n");
}

TEST(test_line_for_a_pipe)
{
    char line[256];
    json_t *status = json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:s}", "state", "training", "round", 2, "rounds",
                               24, "eta_s", 466.036, "train_loss", 2.62571, "val_loss", 2.7, "tokens_per_s", 12345.6,
                               "waiting_for", "round 3: 0 of 1 deltas are in");
    status_view_line(status, line, sizeof line);
    assert_string_equal(line, "training  round 2/24  8 %  7 min 46 s left  loss 2.6257  val 2.7000  12.3 k tokens/s  "
                              "waiting for round 3: 0 of 1 deltas are in");
    json_decref(status);
}

TEST_MAIN(NULL, NULL)
