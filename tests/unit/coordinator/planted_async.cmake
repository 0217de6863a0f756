# Planted bugs: rules of async workers that test_round_async detects.
function(atoll_planted_async name source from to)
    atoll_planted_bug(async ${name} test_round_async coordinator/round/${source} "${from}" "${to}")
endfunction()

atoll_planted_async(slow_link_not_waited_for policy_async.c
    "share = fmax(share, late_share);" "(void)late_share;")
atoll_planted_async(early_delta_does_not_wait policy_async.c
    "updated + early_share * usual);" "updated);")
atoll_planted_async(lagging_member_gets_work policy_async.c
    "!ahead) || lags(r, m)) continue;" "!ahead) || (lags(r, m) && 0)) continue;")
atoll_planted_async(last_work_for_a_slow_member policy_async.c
    "every > beats && others_finish" "every < 0 && others_finish")
atoll_planted_async(last_work_for_none policy_async.c
    "every > beats && others_finish(r, m, beats)" "every > beats")
atoll_planted_async(beat_without_transfers beat.c
    "fmax(0, s - moving_s(m)) / step_s" "fmax(0, s) / step_s")
atoll_planted_async(steps_without_bound beat.c
    "BEAT_STEPS_MOST * r->p.sync_every);" "1000);")
atoll_planted_async(download_counts_as_steps round_time.c
    "if (own_us && (double)own_us / steps < step_us) step_us" "if (0) step_us")

atoll_planted_test(async)
