# Planted bugs: what the tests of metrics.jsonl are worth.

function(atoll_planted_coordinator name source from to)
    atoll_planted_bug(coordinator ${name} test_report ${source} "${from}" "${to}")
endfunction()

atoll_planted_coordinator(lines_behind_half_a_line coordinator/metrics_file.c
    "if (m->failed) return;" "")
atoll_planted_coordinator(half_a_line_of_a_kill coordinator/metrics_file.c
    "drop_torn_line(m->file);\n    m->rounds_there" "m->rounds_there")
atoll_planted_coordinator(half_a_line_of_a_full_disk coordinator/metrics_file.c
    "__fpurge(m->file);\n    drop_torn_line(m->file);" "__fpurge(m->file);")
atoll_planted_coordinator(half_a_line_at_the_end coordinator/metrics_file.c
    "flush_lines(m);\n    fclose" "fclose")
atoll_planted_coordinator(failed_write_forgotten coordinator/metrics_file.c
    "if (!m->failed && fflush" "m->failed = 0;\n    if (fflush")

# --- steps that come twice
atoll_planted_coordinator(step_written_twice coordinator/metrics_file.c
    "!step || steps_there_add(&m->steps, o)" "1")
atoll_planted_coordinator(steps_of_the_file_forgotten coordinator/steps_there.c
    "if (o) (void)steps_there_add(s, o);" "")
atoll_planted_coordinator(only_the_newest_step_known coordinator/steps_there.c
    "i < STEPS_THERE_WAYS; i++" "i < 1; i++")
atoll_planted_coordinator(steps_known_by_all_their_digits coordinator/steps_there.c
    "JSON_COMPACT | JSON_REAL_PRECISION(STEPS_THERE_DIGITS)" "JSON_COMPACT")
atoll_planted_coordinator(steps_of_workers_taken_for_one coordinator/steps_there.c
    "{\"worker\", \"step\"," "{\"step\",")
atoll_planted_coordinator(trained_again_taken_for_the_same coordinator/steps_there.c
    ", \"tokens_per_s\"};" "};")

atoll_planted_test(coordinator)
