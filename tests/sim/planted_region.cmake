# Planted bugs of a region, which test_sim_region must detect.
function(atoll_planted_region name source from to)
    atoll_planted_bug(region ${name} test_sim_region ${source} "${from}" "${to}")
endfunction()

atoll_planted_region(deltas_taken_without_offer worker/outer/outer_loop_apply.c
    "named || made == u->round" "true")
atoll_planted_region(merged_deltas_given_back worker/outer/outer_loop_apply.c
    "named || made == u->round" "made == u->round")
atoll_planted_region(refused_delta_added_twice cli/region/region_loop.c
    ".values = r->again ? outer_loop_theta(r->loop) : r->values" ".values = r->values")
atoll_planted_region(fragments_run_ahead worker/sync/sync.c
    "if (s->f[i].version < s->f[fragment].version) return true;" "")
atoll_planted_region(half_a_delta_sealed coordinator/round/round_region.c
    "if (m->work.open && !round_is_complete(r, m)) drop_work(r, m);" "")
atoll_planted_region(grant_not_needed coordinator/round/policy_barrier.c
    "!r->region.on || r->region.granted == r->round + 1" "true")
atoll_planted_region(parameters_not_loaded coordinator/engine/engine_region.c
    "memcpy(l->outer.theta, event->theta, l->layout.n_params * sizeof(float));" "")

atoll_planted_test(region)
