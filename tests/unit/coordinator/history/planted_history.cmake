# Planted bugs: a history that is taken back and is not the one it claims to be (test_history), or that a power cut leaves
# half done (test_take_back).
function(atoll_planted_history name main source from to)
    atoll_planted_copy(history ${name} "" coordinator/ledger/${source} "${from}" "${to}")
    if(copy)
        atoll_planted_program(history ${name} ${main} ${copy} ${ARGN})
    endif()
endfunction()

atoll_planted_history(excluded_delta_merged test_history history/history_write.c
    "if (is_excluded(w, delta.id)) return leave_out(w, &delta, err);" "")
atoll_planted_history(versions_not_moved test_history history/history_write.c
    "return version - low;" "return version;")
atoll_planted_history(parameters_not_moved test_history history/history_write.c
    "if (w->old && delta.fragment < w->l->round.first_mean)" "if (0)")
atoll_planted_history(excluded_worker_keeps_place test_history history/history_write.c
    "if (!m->active || strcmp(m->name, h->request.exclude) != 0) continue;" "continue;")
atoll_planted_history(rollback_opens_the_round_again test_history history/history_plan.c
    "opens && !s->h->request.exclude ? s->opened_end : past_begin(record->at)" "past_begin(record->at)")
atoll_planted_history(updates_not_compared test_history ledger.c
    "memcmp(computed.payload, u.payload, u.payload_size) != 0" "0")
atoll_planted_history(checkpoint_not_compared test_history history/audit.c
    "if (c) TRY(check_checkpoint(w, c, err));" "(void)c;")
atoll_planted_history(tail_not_reported test_history history/audit.c
    "if (end.good == source.size) return STATUS_OK;" "return STATUS_OK;")
atoll_planted_history(segment_not_synced test_take_back history/history_write.c
    "return to->ops->sync(to, err);" "return STATUS_OK;" powercut)
atoll_planted_history(marker_removed_first test_take_back store_disk_switch.c
    "for (size_t i = 0; i < MOVED; i++) TRY(exchange(run, moved[i], suffix, err));"
    "unlink(path);
    for (size_t i = 0; i < MOVED; i++) TRY(exchange(run, moved[i], suffix, err));
    TRY(file_write(path, suffix, 1, err));" powercut)
atoll_planted_history(prepared_files_stay test_take_back store_disk_switch.c
    "TRY(remove_tree(path, 0, err));" "" powercut)

atoll_planted_test(history)
