# Planted bugs: what followers get (coordinator/engine/engine_follow.c), which test_engine_follow detects.
function(atoll_planted_follow name source from to)
    atoll_planted_bug(follow ${name} test_engine_follow ${source} "${from}" "${to}")
endfunction()

atoll_planted_follow(workers_do_not_come_first coordinator/engine/engine_follow.c
    "if (f->credit < size) return false;" "if (f->credit < size) return true;")
atoll_planted_follow(followers_get_too_much coordinator/engine/engine_follow.c
    "f->credit -= size;" "(void)size;")
atoll_planted_follow(read_checkpoint_is_removed coordinator/engine/engine_checkpoint.c
    "return !engine_snapshot_is_followed(e, &e->kept[0]) && all_past(e, &e->kept[1]);"
    "return all_past(e, &e->kept[1]);")
atoll_planted_follow(half_a_round coordinator/engine/engine_work.c
    "if (round_done(&e->ledger.round) > done) engine_snapshot_note_round(e);"
    "e->follow.round = 0, engine_snapshot_note_round(e), (void)done;")
atoll_planted_follow(follower_misses_the_end coordinator/engine/engine.c
    "if (!e->ledger.done || engine_follow_waits(e)) return false;"
    "if (!e->ledger.done) return false;")

atoll_planted_test(follow)
