# Planted bugs: what the tests of recompute, late steps and the memory plan are worth. Each must make one of them fail.

# name: of the bug; test: the program that should notice; source: what is changed; from, to: the line
function(atoll_planted_worker name test source from to)
    atoll_planted_bug(worker ${name} ${test} ${source} "${from}" "${to}")
endfunction()

# --- an update on theta, by several threads
atoll_planted_worker(part_moved_twice test_outer_move worker/outer_move.c
    "i = first; i < end; i++" "i = first ? first - 1 : 0; i < end; i++")
atoll_planted_worker(last_part_not_moved test_outer_move worker/outer_move.c
    "i = first; i < end; i++" "i = first; i + 1 < end || (thread + 1 < threads && i < end); i++")
atoll_planted_worker(parameters_added test_outer_move worker/outer_move.c
    "if (job->replace)" "if (0)")
atoll_planted_worker(last_floats_not_stepped test_outer_move worker/outer_move.c
    "end - at < STEP_FLOATS ? end - at : STEP_FLOATS" "end - at < STEP_FLOATS ? end - at - 1 : STEP_FLOATS")

# --- the state, saved beside the upload
atoll_planted_worker(checksum_of_the_last_part_only test_worker_state worker/state_dir.c
    "crc = crc32c(crc, data, n);" "crc = crc32c(0, data, n);")
atoll_planted_worker(head_without_the_checksum test_worker_state worker/state_dir.c
    "saved_state_head(d->state, size, crc, d->head);" "(void)crc;")
atoll_planted_worker(failed_save_holds_for_ever test_outer_save worker/outer_save.c
    "if (loop->sync.unsaved) sync_saved" "if (loop->sync.unsaved && !save->failed) sync_saved")
atoll_planted_worker(sent_before_it_is_saved test_outer_save worker/sync_flow.c
    "return s->unsaved ? f->bytes - 1 : f->bytes;" "return f->bytes;")
atoll_planted_worker(update_during_a_save test_outer_save worker/sync.c
    "bool frozen = s->unsaved || " "bool frozen = ")
atoll_planted_worker(training_during_a_save test_sync_flow worker/sync.c
    "sync_behind(s) || s->unsaved ?" "sync_behind(s) ?")
atoll_planted_worker(fragments_all_at_once_during_a_save test_sync_flow worker/sync_flow.c
    "return before ? s->unsaved_us" "return before == UINT64_MAX ? s->unsaved_us")
atoll_planted_worker(held_back_for_good test_sync_flow worker/sync_flow.c
    "s->f[i].up_at = now_us + sync_silence_us(&s->up, s->rtt_us, under_way(s));\n    }\n    sync_settle"
    "s->f[i].up_at = UINT64_MAX;\n    }\n    sync_settle")
atoll_planted_worker(refused_delta_kept_on_disk test_outer_save worker/outer_save.c
    "if (saved->payload_size && !passed) return true;" "(void)passed;")
atoll_planted_worker(residual_reset_during_a_save test_outer_save worker/outer_loop_delta.c
    "    outer_save_join(loop);\n    feedback_reset" "    feedback_reset")
atoll_planted_worker(two_saves_at_once test_outer_save worker/outer_loop.c
    "    outer_save_join(loop);\n    bool training" "    bool training")
atoll_planted_worker(ended_during_a_save test_outer_save worker/outer_loop.c
    "    outer_save_join(loop);\n    outer_memory_finish" "    outer_memory_finish")
atoll_planted_worker(upload_counted_as_saving test_outer_save worker/outer_save.c
    "if (left == UINT64_MAX)" "if (left == UINT64_MAX && 0)")
atoll_planted_worker(end_of_a_save_not_looked_for test_outer_save worker/outer_loop.c
    "return loop->save.running && loop->save.look_us < due ? loop->save.look_us : due;" "return due;")

# --- step records until the coordinator has them
atoll_planted_worker(steps_sure_when_sent test_step_log worker/step_log.c
    "->sent_us + STEP_LOG_SAFE_US <= acked_us" "->sent_us <= acked_us")
atoll_planted_worker(steps_sure_before_they_are_sent test_step_log worker/step_log.c
    "log->first < log->next && record" "log->first < log->end && record")
atoll_planted_worker(steps_sent_but_once test_step_log worker/step_log.c
    "    log->next = log->first;\n    log->lost" "    log->lost")
atoll_planted_worker(steps_sent_before_lost test_step_log worker/step_log.c
    "            log->dropped++;" "            log->lost++;")
atoll_planted_worker(steps_without_room_never_sure test_step_log worker/step_log.c
    "<= acked_us) log->dropped = 0;" "<= acked_us) log->dropped_us = 0;")
atoll_planted_worker(times_of_a_record_told_twice test_step_log worker/step_log.c
    "if (log->end == log->fresh) return false;" "if (log->end == log->next) return false;")
atoll_planted_worker(times_with_a_later_step test_step_log worker/step_log.c
    " && times.round == UINT64_MAX; at++" "; at++")
atoll_planted_worker(answers_of_the_session_before test_step_log worker/pulse.c
    "    p->acked_us = 0;\n" "")

# --- times of a round
atoll_planted_worker(sending_counts_compression test_outer_loop worker/outer_loop_delta.c
    "loop->sent_us = now_us + took_us;" "loop->sent_us = now_us;")
atoll_planted_worker(waiting_counts_updates test_outer_loop worker/outer_loop.c
    "span -= loop->applied_s - applied;" "(void)applied;")
atoll_planted_worker(last_update_not_counted test_outer_loop worker/outer_loop_apply.c
    "note_round_end(loop, now_us + took);" "loop->running.apply_s -= (double)took / 1e6, note_round_end(loop, now_us);")

# --- recompute
atoll_planted_worker(activation_not_made_again test_recompute worker/decoder_pass.c
    "if (level >= MODEL_AGAIN_ACT) act_again(m, b);" "")
atoll_planted_worker(gated_units_not_made_again test_recompute worker/decoder_pass.c
    "static void act_again(struct model *m, const struct block_acts *b)\n{"
    "static void act_again(struct model *m, const struct block_acts *b)\n{\n    if (m->kind.gated) return;")
atoll_planted_worker(second_norm_not_made_again test_recompute worker/decoder_pass.c
    "if (level < MODEL_AGAIN_NORM) return;\n    norm_forward(m, theta + m->kind.norm1, b->x, b->y1, &b->stats1);\n    norm_forward(m, theta + m->kind.norm2, b->xm, b->y2, &b->stats2);"
    "if (level < MODEL_AGAIN_NORM) return;\n    norm_forward(m, theta + m->kind.norm1, b->x, b->y1, &b->stats1);")
atoll_planted_worker(block_not_made_again test_recompute worker/decoder_pass.c
    "block_forward(m, b, theta, NULL);" "")
atoll_planted_worker(last_block_made_again_only test_recompute worker/decoder_pass.c
    "if (l + 1 < m->config.n_layer) block_again" "if (l + 1 == m->config.n_layer) block_again")
atoll_planted_worker(nothing_forgotten test_recompute worker/activations.c
    "l && !kept ? of_first : carve_take" "l && !kept && 0 ? of_first : carve_take")

# --- late steps
atoll_planted_worker(one_slot_for_two_steps test_late_steps worker/step_io.c
    "dev->host_memory ? 1 : STEP_SLOTS_MAX" "1")
atoll_planted_worker(step_read_before_it_is_over test_late_steps worker/replica.c
    "TRY(ranks_reached(r, flight->slot, err));" "")
atoll_planted_worker(every_step_waited_for test_late_steps worker/replica.c
    "if (r->ranks[0].dev->host_memory) return land" "return land")
atoll_planted_worker(last_step_never_read test_late_steps worker/replica.c
    "if (!flight.n) return STATUS_OK;" "if (flight.n != 99) return STATUS_OK;")
atoll_planted_worker(refused_step_counted test_late_steps worker/inner_opt.c
    "bool taken = isfinite(norm);" "bool taken = true;")
atoll_planted_worker(workers_round_alike test_late_steps worker/inner_opt.c
    "rng_u64(opt->config.seed, RNG_MOMENTS, worker)" "rng_u64(opt->config.seed, RNG_MOMENTS, 0)")
atoll_planted_worker(runs_round_alike test_late_steps worker/inner_opt.c
    "rng_u64(opt->config.seed, RNG_MOMENTS, worker)" "rng_u64(0, RNG_MOMENTS, worker)")
atoll_planted_worker(rounded_by_the_place_in_a_shard test_moments gpu/cpu_vector_ops.c
    "j->kernels->adamw_bf16(last - first, offset," "j->kernels->adamw_bf16(last - first, state,")
atoll_planted_worker(part_of_a_span_rounded_as_its_begin test_moments gpu/cpu_vector_ops.c
    "j->kernels->adamw_bf16(last - first, offset," "j->kernels->adamw_bf16(last - first, span->offset,")
atoll_planted_worker(momentum_rounded_by_its_place test_device_muon gpu/cpu_muon.c
    "muon_mix_bf16(t->cols, at," "muon_mix_bf16(t->cols, at - t->skipped,")
atoll_planted_worker(noise_of_step_0_always test_moments gpu/cpu_vector_ops.c
    "moment_noise(count->seed, count->steps, count->noise);" "moment_noise(count->seed, 0, count->noise);")
atoll_planted_worker(count_not_restored test_late_steps worker/inner_opt.c
    "ops->upload(slice->dev, &inner_step_count(slice->scalars)->steps, &opt->steps, sizeof opt->steps);" "")

# --- the memory plan
atoll_planted_worker(image_of_parameters_forgotten test_memory_plan worker/replica_memory.c
    "fixed[MEMORY_IMAGE] = dev->ops->params_bytes(dev, layout->n_params);" "")
atoll_planted_worker(moments_of_a_shard_counted_whole test_memory_plan worker/inner_shard.c
    "2 * inner_shard_vector_bytes(plain_floats(map, rank), moment)" "2 * inner_shard_vector_bytes(map->n_params, moment)")
atoll_planted_worker(shards_of_bf16_planned_as_fp32 test_memory_plan worker/replica_memory.c
    "inner_opt_moment_size(&opt)" "sizeof(float)")
atoll_planted_worker(momentum_of_matrices_forgotten test_memory_plan worker/inner_shard.c
    "inner_shard_vector_bytes(matrix_floats(map, rank), moment);" "0;")
atoll_planted_worker(first_rank_planned_for_all test_memory_plan worker/replica_memory.c
    "r < (int)map->ranks; r++" "r < 1; r++")
atoll_planted_worker(gradients_of_other_ranks_forgotten test_memory_plan worker/replica_memory.c
    "= here * theta;" "= theta;")
atoll_planted_worker(tentative_residual_forgotten test_memory_plan worker/outer_bytes.c
    "feedback ? 2 * theta : 0" "feedback ? theta : 0")
atoll_planted_worker(relayed_deltas_forgotten test_memory_plan worker/outer_bytes.c
    "coded > deltas ? coded : deltas" "coded")
atoll_planted_worker(coordinator_forgotten test_memory_plan worker/memory_plan.c
    "part_of(host, coordinator, workers)" "part_of(host, 0, workers)")
atoll_planted_worker(collectives_after_the_plan test_memory_plan worker/replica_create.c
    "TRY(ranks_meet(r, err));" "")
atoll_planted_worker(first_gpu_planned_for_all test_memory_plan worker/replica_memory.c
    "if (i && left >= ask->free_bytes) continue;" "if (i) continue;")
atoll_planted_worker(a_level_left_out test_memory_plan worker/memory_plan.c
    "level <= last; level++" "level <= last; level += 2")
atoll_planted_worker(batch_too_small test_memory_plan worker/memory_plan.c
    "while (high - low > 1)" "while (high - low > 2)")
atoll_planted_worker(batch_too_large test_memory_plan worker/memory_plan.c
    "return low * ask->batch_unit;" "return high * ask->batch_unit;")
atoll_planted_worker(memory_of_other_workers_taken test_memory_plan worker/replica_memory.c
    "if (!config->eval_only) TRY(memory_ask_share(&ask, dev" "if (config->eval_only) TRY(memory_ask_share(&ask, dev")
atoll_planted_worker(layers_counted_once test_memory_plan worker/decoder.c
    "(config->n_layer - 1) * (two.used" "(config->n_layer - 2) * (two.used")

# --- GPUs of several workers
atoll_planted_worker(neighbours_of_another_part test_gpu_share common/gpu_share.c
    "mine * (s->workers <= parts ? gpus / s->workers : ranks)" "mine * ranks")
atoll_planted_worker(every_worker_the_first_gpu test_gpu_share common/gpu_share.c
    "mine = s->index % parts" "mine = s->index % parts * 0")
atoll_planted_worker(sharers_rounded_down test_gpu_share common/gpu_share.c
    "(s->workers - 1 - mine) / parts + 1" "s->workers / parts")
atoll_planted_worker(part_that_does_not_divide_the_batch test_gpu_share common/gpu_share.c
    "while (batch_size % ranks) ranks--;" "")
atoll_planted_worker(chosen_ranks_forgotten test_gpu_share common/gpu_share.c
    "chosen ? config->train.ranks : most" "most")
atoll_planted_worker(all_workers_counted_on_each_gpu test_memory_plan worker/memory_plan.c
    "of_host ? here.workers : sharers" "here.workers")
atoll_planted_worker(drivers_of_others_forgotten test_memory_plan worker/memory_plan.c
    "workers * process_bytes(ask->total_bytes)" "process_bytes(ask->total_bytes)")

# --- the host's memory beside a GPU
atoll_planted_worker(pinned_buffers_counted_once test_memory_plan worker/replica_memory.c
    "config->ranks * each" "each")
atoll_planted_worker(base_planned_beside_a_gpu test_memory_plan worker/replica_memory.c
    "(maker ? outer->base : 0)" "0")
atoll_planted_worker(numbers_of_deltas_forgotten test_memory_plan worker/replica_memory.c
    "(maker ? outer->pinned : 0)" "0")
atoll_planted_worker(moments_read_to_nobody test_memory_plan worker/inner_opt.c
    "config->unread ? 0 : inner_opt_moment_bytes" "inner_opt_moment_bytes")
atoll_planted_worker(host_of_other_workers_taken test_memory_plan worker/replica_memory.c
    "TRY(memory_ask_share(&ask, true, 0, err))" "(void)0")
atoll_planted_worker(one_worker_too_many_advised test_memory_plan worker/memory_plan.c
    "/ plan->total;" "/ plan->total + 1;")

atoll_planted_test(worker)
