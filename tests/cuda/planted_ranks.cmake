# Planted bugs of several GPUs: an order that is forgotten has to be noticed by test_ranks, by wrong numbers or because the
# emulation knows which bytes each operation touches (tests/cuda/emulate_clock.c, queue_record.c). What is changed is
# test_ranks or, for a source in gpu/, the plugin it loads.
function(atoll_planted_rank name test source from to)
    atoll_planted_copy(ranks ${name} ${test} ${source}.c "${from}" "${to}")
    if(copy AND source MATCHES "^gpu/")
        atoll_planted_program(ranks ${name} test_ranks "")
        atoll_checked_plugin(planted_plugin_${name} ${copy})
        set_target_properties(planted_plugin_${name} PROPERTIES OUTPUT_NAME planted_ranks_${name})
    elseif(copy)
        atoll_planted_program(ranks ${name} test_ranks ${copy})
    endif()
endfunction()

atoll_planted_rank(parameters_not_waited_for test_gpus worker/shard_exchange
    "x->coll->ops->wait(x->coll, THETA_TICKETS + b);" "")
atoll_planted_rank(theta_of_the_first_rank_only test_gpus worker/replica
    "return r->apart ? ranks_spread(r, err) : STATUS_OK;" "return STATUS_OK;")
atoll_planted_rank(last_bucket_not_spread test_gpus worker/shard_exchange
    ".n = shard_bucket_params(x->map, bucket)}" ".n = shard_bucket_params(x->map, bucket) * (bucket + 1 < x->map->n_buckets)}")
atoll_planted_rank(gradients_not_waited_for test_gpus worker/shard_exchange
    "b++) x->coll->ops->wait(x->coll, b);" "b++) continue;")
atoll_planted_rank(gradients_go_before_they_are_final test_gpus worker/shard_exchange
    "x->final[b] == shard_bucket_params(map, b) && x->warm" "x->final[b] == part && x->warm")
atoll_planted_rank(norm_of_one_rank test_cpu worker/inner_shard
    "(size_t)s->map->ranks * s->slots, s->sums" "s->slots, s->sums")
atoll_planted_rank(sums_not_waited_for test_gpus worker/inner_shard
    "s->coll->ops->wait(s->coll, COLLECTIVE_TICKETS - 1);" "")
atoll_planted_rank(moments_in_another_place test_other_number_of_ranks worker/inner_shard
    "(const uint8_t *)from + p->offset * s->moment" "(const uint8_t *)from + p->state * s->moment")
atoll_planted_rank(one_rank_knows_the_worker test_bf16_moments worker/inner_opt
    "for (int r = 0; r < opt->n_slices; r++) {\n        struct device *dev" "for (int r = 0; r < 1; r++) {\n        struct device *dev")
atoll_planted_rank(moments_of_four_bytes test_bf16_moments worker/inner_shard
    "p->offset * s->moment, state" "p->offset * sizeof(float), state")
atoll_planted_rank(matrices_without_an_owner test_cpu_muon worker/inner_shard
    "if (!matrix_floats(s->map, s->coll->rank)) return STATUS_OK;" "if (s->coll->rank == 1) return STATUS_OK;")
atoll_planted_rank(gradient_not_at_its_owner test_cpu_muon worker/shard_exchange
    "deal->first[bucket], bucket);" "deal->first[bucket] - 1, bucket);")
atoll_planted_rank(parameters_of_an_owner_not_sent test_cpu_muon worker/shard_exchange
    "deal->first[bucket], THETA_TICKETS + bucket);" "deal->first[bucket] - 1, THETA_TICKETS + bucket);")
atoll_planted_rank(parameters_from_another_rank test_cpu_muon worker/shard_deal
    "at, .n = stop - at, .root = p->rank}" "at, .n = stop - at, .root = p->matrices ? 0 : p->rank}")
atoll_planted_rank(momentum_of_another_matrix test_cpu_muon worker/shard_deal
    "m->skipped = deal->pieces[piece].offset - deal->pieces[piece].state" "m->skipped = deal->pieces[piece].offset")
atoll_planted_rank(momentum_saved_of_another_rank test_other_ranks_muon worker/inner_shard
    "from = i < s->n_plain ? s->m : s->momentum" "from = s->m")
atoll_planted_rank(norm_without_matrices test_cpu_muon worker/inner_shard
    "for (size_t i = 0; i < s->n_parts; i++) ops->sumsq" "for (size_t i = 0; i < s->n_plain; i++) ops->sumsq")
atoll_planted_rank(collectives_wait_for_nothing test_gpus gpu/cuda_collective
    "cuda_rt_wait(m->rt, CUDA_COMM, m->enter);" "")
atoll_planted_rank(device_waits_for_nothing test_gpus gpu/cuda_collective
    "cuda_rt_wait(m->rt, CUDA_MAIN, m->done[ticket]);" "")
atoll_planted_rank(image_is_not_told test_gpus_bf16 gpu/cuda_collective
    "cuda_written(m->cuda, buf, n * sizeof *buf);" "")
atoll_planted_rank(steps_behind_a_rank_that_is_late test_late_rank worker/replica_ranks
    "if (r->apart) return inner_opt_measure_apart(r->opt, k->index, k->grad);"
    "if (r->apart) TRY(inner_opt_measure_apart(r->opt, k->index, k->grad));")
atoll_planted_rank(trained_on_after_it_was_given_up test_back_too_late worker/replica_ranks
    "if (k->status == STATUS_OK && ops->failure(&k->coll)) k->status = STATUS_CLOSED;" "")

atoll_planted_test(ranks)
set_tests_properties(test_ranks_planted PROPERTIES
                     ENVIRONMENT ATOLL_CUDA_PLUGIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/atoll_cuda_checked.so)
