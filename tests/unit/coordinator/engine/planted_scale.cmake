# Planted bugs: rules for many workers and long links that unit tests detect, because the simulation is too small for them.
function(atoll_planted_scale name test source from to)
    atoll_planted_bug(scale ${name} ${test} ${source} "${from}" "${to}")
endfunction()

atoll_planted_scale(memory_of_first_workers test_engine_join coordinator/engine/model/engine_model.c
    "workers += memcmp(s->uuid, m->uuid, WIRE_UUID) != 0;" "(void)s;")
atoll_planted_scale(memory_without_uploads test_engine_join coordinator/engine/model/engine_model.c
    "need += min_u64(UPLOAD_CREDIT + e->ledger.held.most, workers * theta);" "")
atoll_planted_scale(credit_for_one_upload test_upload coordinator/round/upload.c
    "max_u64(free_bytes / 4, UPLOAD_LEAST);" "max_u64(free_bytes, UPLOAD_LEAST);")
atoll_planted_scale(credit_none_for_many test_upload coordinator/round/upload.c
    "max_u64(free_bytes / 4, UPLOAD_LEAST);" "free_bytes / 4;")
atoll_planted_scale(records_of_all_steps test_engine_limits coordinator/engine/engine_metrics.c
    "step->step % every == 0" "step->step % every < every")
atoll_planted_scale(records_of_no_step test_engine_limits coordinator/engine/engine_metrics.c
    "step->step % every == 0" "step->step % every > every")
atoll_planted_scale(key_with_a_place_goes test_roster coordinator/admission/worker_list.c
    "if (w->revoked || !places->has(places->ctx, w->key)) oldest = w;" "oldest = w;")
atoll_planted_scale(new_key_goes test_roster coordinator/admission/worker_list.c
    "w->enrolled_s > before || (oldest" "(oldest")
atoll_planted_scale(window_of_one_round_trip test_sync_window worker/sync/sync_rate.c
    "2e-6 * r->best" "1e-6 * r->best")
atoll_planted_scale(window_never_falls test_sync_window worker/sync/sync_rate.c
    "r->best - (r->best - seen) / 8" "r->best")
atoll_planted_scale(window_for_each_object test_sync_window worker/sync/sync_flow.c
    "flying = bytes_requested(s);" "flying = bytes_requested(s) / 1000;")

atoll_planted_test(scale)
