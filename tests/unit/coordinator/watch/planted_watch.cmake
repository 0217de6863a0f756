# Planted bugs: alerts and budgets, which test_alerts, test_engine_alerts and test_engine_budget detect.
atoll_planted_bug(watch alert_flaps_at_its_limit test_alerts coordinator/limits/alerts.c
    "fires ? disk_ends : disk_starts" "disk_starts")
atoll_planted_bug(watch alert_never_ends test_engine_alerts coordinator/engine/engine_watch.c
    "w->late[LATE_ROUND] = w->late[LATE_WORKERS] = false;" ";")
atoll_planted_bug(watch pause_counts_as_waiting test_engine_alerts coordinator/engine/engine_watch.c
    "gap < ENGINE_PAUSE_US ? (double)gap * 1e-6 : 0" "(double)gap * 1e-6")
atoll_planted_bug(watch budget_forgets_waiting test_engine_budget coordinator/engine/engine_budget.c
    "engine_clock(e).elapsed_us - e->ledger.clock.elapsed_us >= CLOCK_US" "false")
atoll_planted_bug(watch budget_cuts_the_round test_engine_budget coordinator/engine/engine_budget.c
    "if (round_busy(&l->round) || " "if (")
atoll_planted_bug(watch budget_counts_one_way test_engine_budget coordinator/engine/engine_budget.c
    "clock.bytes_up + clock.bytes_down + clock.other_up + clock.other_down" "clock.bytes_up + clock.other_up")

atoll_planted_test(watch)
