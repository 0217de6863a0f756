# Planted bugs: what the tests of metrics.jsonl are worth.

atoll_planted_bug(coordinator lines_behind_half_a_line test_report coordinator/report.c
    "if (!r->failed) write_metrics" "write_metrics")
atoll_planted_bug(coordinator half_a_line_of_a_kill test_report coordinator/report.c
    "drop_torn_line(r->metrics);\n    r->rounds_there" "r->rounds_there")
atoll_planted_bug(coordinator half_a_line_of_a_full_disk test_report coordinator/report.c
    "__fpurge(r->metrics);\n    drop_torn_line(r->metrics);" "__fpurge(r->metrics);")
atoll_planted_bug(coordinator half_a_line_at_the_end test_report coordinator/report.c
    "flush_metrics(r);\n    fclose" "fclose")
atoll_planted_bug(coordinator failed_write_forgotten test_report coordinator/report.c
    "if (!r->failed && fflush" "r->failed = 0;\n    if (fflush")

atoll_planted_test(coordinator)
