# Planted bugs prove that the simulation detects errors: random schedules run with each bug until the checker detects it.
add_library(planted_sim OBJECT sim/planted.c)
target_link_libraries(planted_sim PRIVATE ${test_lib})
# The same from the seed of a wide run on: one in 300 is wide (tests/lib/sim/sim_random.c).
add_library(planted_sim_wide OBJECT sim/planted.c)
target_link_libraries(planted_sim_wide PRIVATE ${test_lib})
target_compile_definitions(planted_sim_wide PRIVATE FIRST_SEED=590)

# name: of the program; source: the changed file; from, to: the line
function(atoll_planted name source from to)
    atoll_planted_bug(sim ${name} planted_sim ${source} "${from}" "${to}")
endfunction()

function(atoll_planted_wide name source from to)
    atoll_planted_bug(sim ${name} planted_sim_wide ${source} "${from}" "${to}")
endfunction()

# --- merging
atoll_planted(delta_merged_twice compress/merge.c
    "codec_views_add(g->from, g->n, p, acc, weight);"
    "codec_views_add(g->from, g->n, p, acc, NULL), codec_views_add(g->from, g->n, p, acc, weight);")
atoll_planted(delta_omitted compress/merge.c
    "const struct codec_view *view = &job->deltas[d].view;"
    "if (merge->added + d == 2) continue;\n        const struct codec_view *view = &job->deltas[d].view;")
atoll_planted(senders_not_counted compress/merge.c
    "if (weight) divide(acc, weight, n);"
    "(void)divide;")
atoll_planted(norms_not_clipped compress/merge.c
    "norm > tolerance * median ? median / norm : 1"
    "norm < 0 ? 0 : 1")
atoll_planted(tokens_not_bounded compress/merge.c
    "return tokens < merge->most ? tokens : merge->most;"
    "return tokens;")
atoll_planted(mean_norm_not_restored compress/merge.c
    "length[tensor] = norm >= rda_least * length[tensor] ? length[tensor] / norm : -1;"
    "length[tensor] = norm >= rda_least * length[tensor] ? 1 : -1;")
atoll_planted(norms_of_deltas_kept compress/merge.c
    "share_of(merge, &deltas[i]) * (length / *at) : 0"
    "share_of(merge, &deltas[i]) : 0")
atoll_planted(relayed_step_omitted compress/apply_update.c
    "apply_sgd(job->theta + at,"
    "if (0) apply_sgd(job->theta + at,")
atoll_planted(chunk_of_another_update coordinator/engine/state/chunk_cache.c
    "has->key != chunk->key ||"
    "")
atoll_planted(own_delta_sent_back coordinator/engine/engine_data.c
    "s->own[offer.fragment] = (struct session_own){.round = offer.round + 1};"
    "(void)0;")
atoll_planted(own_delta_omitted_in_new_session coordinator/engine/engine_objects.c
    "if (own && own->round == l->named[i].round + 1) {"
    "if (own) {")
atoll_planted(union_drops_residual coordinator/outer/publish.c
    "old_bits = (old_bits & keep) | (new_bits & ~keep);"
    "old_bits = new_bits & ~keep;")
atoll_planted(merged_delta_accepted_again coordinator/round/round.c
    "if (m->merged[offer->fragment] == offer->round + 1) {"
    "if (m->merged[offer->fragment] == offer->round + 1 && 0) {")
atoll_planted(downlink_residual_lost coordinator/outer/publish.c
    "residual[i] = x[i] = x[i] + decay * residual[i];"
    "x[i] = x[i] + decay * residual[i], residual[i] = 0;")

# --- the log
atoll_planted(fsync_skipped coordinator/ledger/journal.c
    "TRY(journal->store->ops->sync(journal->store, err));"
    "(void)err;")
atoll_planted(update_visible_before_fsync coordinator/engine/engine_work.c
    "if (config_syncs_updates(&e->config)) TRY(journal_sync(&l->journal, err));"
    "")
atoll_planted(assignment_visible_before_fsync coordinator/engine/engine_work.c
    "return status == STATUS_OK && config_syncs_updates(&e->config) ? engine_sync(e, err) : status;"
    "return status;")
atoll_planted(refusal_visible_before_fsync coordinator/engine/engine_data.c
    "TRY(engine_sync(e, err));"
    "(void)err;")

# --- versions and rounds
atoll_planted(resume_without_check coordinator/engine/engine_join.c
    "bool known = can_resume(e, m),"
    "bool known = m->n_held > 0 && (can_resume(e, m) || true),")
atoll_planted(snapshot_hides_merged_delta coordinator/engine/engine_snapshot.c
    "|| has_unknown_merge(e, s, versions)"
    "")
atoll_planted(update_applied_during_task worker/sync/sync.c
    "if (s->has_task && !s->async && f->version >= s->task.versions[i]) continue;"
    "")
atoll_planted(lost_round_never_accepted_again worker/sync/sync.c
    "s->round = s->last_round = SYNC_NO_ROUND; /*"
    "s->round = SYNC_NO_ROUND; /*")
atoll_planted(refused_round_never_accepted_again worker/sync/sync.c
    "s->last_again || !s->async;"
    "false;")
atoll_planted(partial_ddp_delta_kept coordinator/round/round.c
    "dropped && r->p.together"
    "dropped && 0")

# --- kept counts
atoll_planted(part_not_counted_out coordinator/round/round_count.c
    "round_count_part(r, m, fragment, m->work.parts[fragment].state, UINT32_MAX);"
    "(void)0;")
atoll_planted(free_member_not_counted coordinator/round/round.c
    "r->n_free -= !m->work.open;"
    "(void)0;")

atoll_planted(evicted_member_counted coordinator/round/round.c
    "r->members.n_active--;"
    "(void)0;")
atoll_planted(ended_session_found_by_member coordinator/engine/state/session.c
    "index_set(&t->by_member, slot, none);"
    "(void)0;")
atoll_planted(ended_session_found_by_peer coordinator/engine/state/session.c
    "index_set(&t->by_bulk, slot, none);"
    "(void)0;")

# --- bytes in flight
atoll_planted(credit_not_returned coordinator/round/upload.c
    "pool->granted -= u->upto - u->have;\n    memset"
    "memset")
atoll_planted(credit_of_bytes_that_came_kept coordinator/round/upload.c
    "pool->granted -= min_u64(chunk->size, u->upto - u->have);"
    "(void)0;")
atoll_planted_wide(window_for_each_fragment worker/sync/sync_flow.c
    "flying = bytes_requested(s);"
    "flying = bytes_requested(s) / 1000;")
atoll_planted_wide(window_without_limit worker/sync/sync_rate.c
    "bytes > SYNC_WINDOW_MOST ? SYNC_WINDOW_MOST :"
    "bytes < 0 ? SYNC_WINDOW_MOST :")
atoll_planted_wide(uploads_without_window worker/sync/sync_flow.c
    "min_u64(f->upto, f->held + window)"
    "f->upto")
atoll_planted_wide(more_sent_than_requested coordinator/round/download.c
    "if (total && item->end > total) item->end = total;"
    "if (total) item->end = total;")

# --- async: the beat and the budget
atoll_planted(delivered_delta_left_behind coordinator/round/policy_async.c
    "close->ids[close->n++] = m->id;"
    "if (close->n && m->id % 3 == 2) continue;\n            close->ids[close->n++] = m->id;")
atoll_planted(each_delta_is_published coordinator/round/policy_async.c
    "if (!is_auto(r)) return g->from_us + r->p.grace_us;"
    "return g->from_us;")
atoll_planted(lagging_worker_gets_work coordinator/round/policy_async.c
    "!ahead) || lags(r, m)) continue;"
    "!ahead) || (lags(r, m) && 0)) continue;")
atoll_planted(budget_follows_restart coordinator/settings.c
    "*workers = begun.coordinator.min_workers;"
    "(void)workers;")
atoll_planted(last_work_exceeds_budget coordinator/round/policy_async.c
    "if (share.steps > left) share.steps = (uint32_t)left;"
    "")

# --- long work
atoll_planted(objects_sent_during_long_work coordinator/engine/engine_presence.c
    "engine_initial_reassure(e);"
    "struct err why;\n    (void)engine_serve(e, &why);")
atoll_planted(long_work_in_long_work coordinator/engine/engine_presence.c
    "engine_initial_reassure(e);"
    "struct err why;\n    (void)engine_collect(e, &why);")
atoll_planted(journal_written_during_long_work coordinator/engine/engine_presence.c
    "engine_initial_reassure(e);"
    "struct err why;\n    (void)journal_append(&e->ledger.journal, RECORD_START, NULL, 0, NULL, &why);")
atoll_planted(unread_heartbeat_acknowledged coordinator/engine/engine_presence.c
    "struct msg m = {.type = MSG_HEARTBEAT_ACK};"
    "struct msg m = {.type = MSG_HEARTBEAT_ACK, .heartbeat_ack.sent_us = 1};")
atoll_planted(heartbeats_keep_no_place coordinator/admission/admission_presence.c
    "if (m) m->heard_us = e->now_us;"
    "(void)m;")

# --- checkpoints of workers that are late
atoll_planted(needed_checkpoint_removed coordinator/engine/engine_checkpoint.c
    "all_past(e, &e->kept[1])"
    "all_past(e, &e->kept[0])")
atoll_planted(disk_left_not_counted coordinator/engine/engine_checkpoint.c
    "if (pinned > left && i) return i;"
    "(void)left;")
atoll_planted(disk_not_looked_at_after_start coordinator/engine/engine_start.c
    "engine_limit_behind(e);"
    "")

# --- samples
atoll_planted(lease_not_returned coordinator/round/round.c
    "lease_return(&r->leases, m->id, work->round);"
    "(void)0;")
atoll_planted(lease_not_committed coordinator/round/round.c
    "lease_commit(&r->leases, m->id, m->work.round);"
    "(void)0;")
atoll_planted(same_samples_for_all_workers coordinator/round/lease.c
    "plan->cursor += count;"
    "")

# --- the worker's residual
atoll_planted(residual_not_committed worker/outer/outer_loop_apply.c
    "feedback_commit(&f->fb);"
    "feedback_reset(&f->fb);")
atoll_planted(refused_delta_lost worker/outer/outer_loop.c
    "outer_rollback(loop, m->fragment);"
    "feedback_commit(&loop->f[m->fragment].fb); loop->f[m->fragment].pending = false;")
atoll_planted(ready_before_state_is_saved worker/sync/sync.c
    "sync_is_behind(s) || saving ?"
    "sync_is_behind(s) ?")
atoll_planted(nonfinite_delta_sent worker/outer/outer_loop_delta.c
    "if (!delta_host_finite(loop->model.pool, values, loop->n_params)) return STATUS_NONFINITE;"
    "")
# the same with deltas made by a device (every third worker)
atoll_planted(first_anchor_kept worker/outer/delta_device.c
    "if (f->anchored && f->hash == hash) return;"
    "if (f->anchored) return;")
atoll_planted(rollback_on_host_only worker/outer/outer_loop_delta.c
    "if (status == STATUS_OK && loop->delta_device) delta_device_residual_changed(loop->delta_device, fragment);"
    "")
atoll_planted(older_residual_saved worker/outer/outer_save.c
    "if (loop->f[i].fb.residual && outer_residual_read(loop, i) != STATUS_OK) return 0;"
    "(void)0;")
# the same with residuals in the memory of the program (another third)
atoll_planted(lent_changes_kept_after_nan worker/outer/outer_loop_delta.c
    "if (loop->adds) drop_added(loop);"
    "(void)drop_added;")

# --- a save during the upload
atoll_planted(last_byte_not_held_back worker/sync/sync_flow.c
    "return s->unsaved ? f->bytes - 1 : f->bytes;"
    "return f->bytes;")
atoll_planted(update_applied_during_save worker/sync/sync.c
    "(!s->overlaps && (s->unsaved || "
    "(!s->overlaps && (")
atoll_planted(rollback_during_save worker/outer/outer_loop_delta.c
    "    outer_save_join(loop);\n    f->pending = false;"
    "    f->pending = false;")

# --- retries
atoll_planted(assignment_never_repeated coordinator/engine/engine_presence.c
    "engine_send_assign(" "if (0) engine_send_assign(")
atoll_planted(offer_never_repeated worker/sync/sync_flow.c
    "f->up_wait = 0;" "f->up_wait = 0;\n    if (f->bytes % 2) f->up_at = UINT64_MAX;")

atoll_planted(wait_never_longer worker/sync/sync_rate.c
    "backoff_us(wait_us, 1, SYNC_RETRY_MAX_US);"
    "backoff_us(wait_us, 0, SYNC_RETRY_MAX_US);")
atoll_planted(join_never_waits_longer worker/sync/sync_poll.c
    "s->retries++,"
    "s->retries,")
atoll_planted(retry_without_a_wait worker/sync/sync_poll.c
    "return now_us + backoff_spread_us(wait, s->jitter ^ s->retry_at);"
    "return now_us + 1000 + wait / 1000000;")

atoll_planted(lease_ignores_shared_steps coordinator/round/policy_barrier.c
    "uint64_t samples = grant->steps * r->p.step_samples" "uint64_t samples = r->p.step_samples")

# --- rounds of one step before train.start_step
atoll_planted(round_after_start_begins_at_its_number common/config/sync_points.c
    "r->start_step + (round - r->start_step) * r->sync_every;"
    "round * r->sync_every;")
atoll_planted(averaged_round_keeps_outer_step coordinator/outer/outer_step.c
    "of_means || outer_state_averages(s, step->round)"
    "of_means")
atoll_planted(relayed_average_takes_outer_rate coordinator/ledger/update_compute.c
    "u->rate = l->outer.lr;"
    "u->rate = l->config->outer.learning_rate;")
atoll_planted(average_is_mixed worker/outer/outer_segment.c
    "loop->fresh || replace ?"
    "loop->fresh ?")

# --- overlap and staggered fragments
atoll_planted(update_adopted_before_its_point worker/outer/outer_segment.c
    "if (!new_round && !sync_is_applied(s, i)) continue;"
    "(void)new_round;")
atoll_planted(steps_after_sync_point_lost worker/outer/outer_segment.c
    "theta + (live - (double)a->base[at])"
    "theta")
atoll_planted(mixed_with_wrong_weight worker/outer/outer_segment.c
    "a->alpha * live + (1 - a->alpha) * theta"
    "(1 - a->alpha) * live + a->alpha * theta / 2")
atoll_planted(sync_point_missed worker/sync/sync_segment.c
    "if (p->sent > s->step && p->sent < next) next = p->sent;"
    "")
atoll_planted(round_resumed_at_its_start worker/outer/outer_restore.c
    "sync_resume_round(&loop->sync, &s->task, s->step)"
    "sync_resume_round(&loop->sync, &s->task, s->step / 2)")

atoll_planted_test(sim)
