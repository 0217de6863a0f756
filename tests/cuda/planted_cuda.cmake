# Planted bugs: what the emulation is worth. Each entry makes the program of parity/test_cuda_*.c that has the test which
# should notice, with one line of one source changed: it notices by a wrong number, or because the emulation stops it.
# Those at the end must be noticed by the checker (races.h). Missing barriers are planted one by one, all of them, by
# barriers.sh.

# Which programs have a test: planted_in_TEST.
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/parity/test_cuda_*.c)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
foreach(source IN LISTS sources)
    get_filename_component(program ${source} NAME_WE)
    file(READ ${source} text)
    string(REGEX MATCHALL "cmocka_unit_test\\([a-z0-9_]+" tests "${text}")
    list(TRANSFORM tests REPLACE ".*\\(" "")
    foreach(test IN LISTS tests)
        list(APPEND planted_in_${test} ${program})
    endforeach()
endforeach()

# name: of the bug; test: what should notice; source: what is changed; from, to: the line
function(atoll_planted_cuda name test source from to)
    set(path gpu/${source})
    if(EXISTS ${CMAKE_SOURCE_DIR}/${path}.cu)
        string(APPEND path .cu)
    elseif(NOT EXISTS ${CMAKE_SOURCE_DIR}/${path})
        string(APPEND path .c)
    endif()
    atoll_planted_copy(cuda ${name} ${test} ${path} "${from}" "${to}" ${ARGN})
    if(NOT copy)
        return()
    endif()
    set(library cuda_emulated)
    if(ARGN STREQUAL CHECKED)
        set_property(SOURCE ${copy} APPEND PROPERTY COMPILE_OPTIONS ${checked_flags})
        set(library cuda_checked)
    endif()
    list(LENGTH planted_in_${test} programs)
    if(NOT programs EQUAL 1)
        message(FATAL_ERROR "${name} wants one program with ${test}, there are: ${planted_in_${test}}")
    endif()
    atoll_planted_program(cuda ${name} ${planted_in_${test}} ${copy} ${library})
endfunction()

# --- bf16: a vocabulary that is rounded up
atoll_planted_cuda(the_last_words_are_added_to_the_first test_model cuda_ops.c
    "float *rest = dwte + most * s->c;" "float *rest = dwte;")
atoll_planted_cuda(the_last_words_begin_too_soon test_model cuda_ops.c
    "cuda->logits + most * cuda->base.act_bytes" "cuda->logits + (most - 1) * cuda->base.act_bytes")

# --- bf16: the image of the parameters
atoll_planted_cuda(image_not_told_of_copies test_writers cuda_device.c
    "cuda_written(cuda_of(dev), dst, bytes);\n    cuda_rt_copy(cuda_of(dev)->rt, dst, src, bytes, CUDA_INSIDE);"
    "cuda_rt_copy(cuda_of(dev)->rt, dst, src, bytes, CUDA_INSIDE);")
atoll_planted_cuda(image_not_told_of_sgd test_writers cuda_ops.c
    "cuda_written(cuda_of(dev), theta, n * sizeof *theta);" "")
atoll_planted_cuda(image_not_written_by_adamw test_writers cuda_ops.c
    "cuda->image.theta == theta ? cuda->image.values : NULL" "NULL")
atoll_planted_cuda(end_of_a_stale_range_forgotten test_ranges cuda_image.c
    "if (to < end) stale_insert(image, i++, to, end);" "")
atoll_planted_cuda(stale_ranges_lost_when_there_are_many test_ranges cuda_image.c
    "if (*last < end) *last = end;" "")
atoll_planted_cuda(stale_range_a_number_short test_ranges cuda_image.c
    "end < offset + count ? end : offset + count" "end < offset + count ? end - 1 : offset + count")

# --- bf16: products that end in more
atoll_planted_cuda(slope_applied_twice test_lin_fused cuda_lin.c
    "if (call->aux && gemm == user->plan->as.lin.bwd_x)" "if (call->aux)")
atoll_planted_cuda(slope_of_neither test_lin cuda_lin.c
    "if (call->aux && gemm == user->plan->as.lin.bwd_x)" "if (call->aux && gemm != user->plan->as.lin.bwd_x)")
atoll_planted_cuda(bias_gradient_overwritten test_lin_fused cuda_lin.c
    "cuda->partials, call->sums, true);" "cuda->partials, call->sums, false);")
atoll_planted_cuda(bias_gradient_written_over test_lin_fused cuda_lin.c
    "if (fused && accumulate) product.sums = cuda->partials;" "")
atoll_planted_cuda(gradients_may_lie_anywhere test_lin_fused cuda_lin.c
    "db && cuda_rt_gemm_takes(p->as.lin.bwd_w_sums, &call)" "db && p->as.lin.bwd_w_sums")
atoll_planted_cuda(parameters_may_lie_anywhere test_lin_fused cuda_lin.c
    "cuda_rt_gemm_takes(p->as.lin.bwd_x_slope, &call)" "p->as.lin.bwd_x_slope")

# --- off by one
atoll_planted_cuda(one_element_too_many test_vectors cuda_element
    "if (i < a.n) a.y[i] = fmaf(" "if (i <= a.n) a.y[i] = fmaf(")
atoll_planted_cuda(last_column_not_summed test_norm cuda_norm
    "for (int k = 0; k < width; k++) sum += x[k];" "for (int k = 0; k < width - (i + k + 1 == a->c); k++) sum += x[k];")
atoll_planted_cuda(last_block_of_rows_too_long test_norm cuda_norm
    "end = row + a->block < a->n ? row + a->block : a->n;" "end = row + a->block;")
atoll_planted_cuda(first_of_a_segment_left_out test_vectors cuda_loss
    "size_t i = begin + threadIdx.x * (size_t)WIDE;" "size_t i = begin + 1 + threadIdx.x * (size_t)WIDE;")
atoll_planted_cuda(the_end_of_a_segment_left_out test_vectors cuda_loss
    "i + k < end ? a->x[i + k] : 0.0f" "0.0f")
atoll_planted_cuda(a_query_does_not_see_itself test_attn cuda_attention
    "if (key + lane > query ||" "if (key + lane >= query ||")
atoll_planted_cuda(a_query_sees_the_next_key test_attn cuda_attention
    "if (key + lane <= query &&" "if (key + lane <= query + 1 &&")
atoll_planted_cuda(last_key_without_its_own_query test_attn cuda_attention
    "if (query + lane >= key &&" "if (query + lane > key &&")
atoll_planted_cuda(later_rows_of_a_place_forgotten test_embed cuda_embed
    "at += a->seq * a->c" "at += 2 * a->seq * a->c")
atoll_planted_cuda(rows_of_a_token_behind_their_last test_embed cuda_embed
    "a->keys[place + AT_ONCE - 1] != token" "a->keys[place] != token")
atoll_planted_cuda(a_row_goes_before_itself test_embed cuda_embed
    "(at < row)" "(at <= row)")
atoll_planted_cuda(parts_of_rows_take_the_first_gradients test_embed cuda_ops.c
    "(const char *)dout + at * c * dev->act_bytes" "dout")
atoll_planted_cuda(one_sum_for_weights_and_biases test_model cuda_ops.c
    "together ? 2 * c : c" "c")
atoll_planted_cuda(partial_sums_of_a_group_forgotten test_norm cuda_norm
    "end = i + each < a.blocks ? i + each : a.blocks;" "end = i + each < a.blocks ? i + each : a.blocks - 1;")
atoll_planted_cuda(logits_behind_the_last_one_count test_head cuda_loss
    "if (i + k >= a->v) x[k] = -INFINITY;" "")
atoll_planted_cuda(a_second_load_of_the_same_logits test_head cuda_loss
    "xent_load(a, base, i + XENT_STEP, bf16, x + WIDE);" "xent_load(a, base, i, bf16, x + WIDE);")
atoll_planted_cuda(a_second_load_without_its_slope test_head cuda_loss
    "if (j >= a->ld) continue;" "if (j + WIDE >= a->ld) continue;")
atoll_planted_cuda(the_first_words_without_their_slope test_head cuda_loss
    "round-- > 0" "round-- > (a->ld > 2 * XENT_STEP)")
atoll_planted_cuda(a_power_of_2_under_another_maximum test_head cuda_loss
    "-(top * LOG2_E)" "-top")
atoll_planted_cuda(a_span_takes_the_first_element_of_the_next test_adamw cuda_optim
    "if (at >= span->count) continue;" "if (at > span->count) continue;")
atoll_planted_cuda(rounded_by_the_place_in_a_shard test_adamw_bf16 cuda_optim
    "moment_word(noise0, noise1, i)" "moment_word(noise0, noise1, j)")
atoll_planted_cuda(both_moments_rounded_alike test_adamw_bf16 cuda_optim
    "moment_round(v[k], word >> 16)" "moment_round(v[k], word & 0xffff)")
atoll_planted_cuda(cut_off_not_rounded test_adamw_bf16 cuda_optim
    "moment_round(m[k], word & 0xffff)" "moment_round(m[k], 0)")
atoll_planted_cuda(one_rounding_where_there_are_two test_adamw_bf16 cuda_optim
    "moment_drop(a.beta2 * v[k] + moment_drop(v_new))" "moment_drop(fmaf(a.beta2, v[k], moment_drop(v_new)))")
atoll_planted_cuda(every_step_rounds_alike test_adamw cuda_optim
    "moment_noise(count->seed, count->steps, count->noise);" "moment_noise(count->seed, 0, count->noise);")
atoll_planted_cuda(every_worker_rounds_alike test_adamw cuda_optim
    "moment_noise(count->seed, count->steps, count->noise);" "moment_noise(0, count->steps, count->noise);")
atoll_planted_cuda(momentum_rounded_by_its_place test_bf16_momentum cuda_muon
    "a.count->noise[1], at) & 0xffff" "a.count->noise[1], j) & 0xffff")
atoll_planted_cuda(a_block_looks_in_the_wrong_span test_adamw cuda_optim
    "if (a.spans[middle].block <= blockIdx.x)" "if (a.spans[middle].block < blockIdx.x)")
atoll_planted_cuda(slope_without_its_second_part test_lin cuda_element
    "fmaf(3 * GELU_CUBE, square, 1)" "fmaf(GELU_CUBE, square, 1)")

# --- 16 bytes at a time, where a GPU stops and a CPU does not
atoll_planted_cuda(weights_may_lie_anywhere test_norm cuda_norm
    "weights_load(a->w, i, width, w);" "act_load(a->w, i, 0, width, w);")
atoll_planted_cuda(words_may_lie_anywhere test_embed cuda_embed
    "if (width == WIDE && (uintptr_t)word % 16 == 0) act_store" "if (width == WIDE) act_store")
atoll_planted_cuda(sums_of_what_lies_anywhere test_vectors cuda_ops.c
    "bool wide = (uintptr_t)x % 16 == 0;" "bool wide = true;")
atoll_planted_cuda(odd_rows_turned_wide test_llama cuda_glu_ops.c
    "half % CUDA_WIDE == 0 && s->ld % CUDA_WIDE == 0" "half % CUDA_WIDE == 0")
atoll_planted_cuda(rows_of_logits_anywhere test_head cuda_plans.c
    "*ld = (s->v + 63) / 64 * 64;" "*ld = (s->v + 1) / 2 * 2;")
atoll_planted_cuda(ranges_rounded_from_anywhere test_ranges cuda_image.c
    "(begin | n) % CUDA_WIDE ? 1" "n % CUDA_WIDE ? 1")

# --- dx and the sums of columns with one look
atoll_planted_cuda(sums_written_while_they_are_read test_norm cuda_norm_both
    "turn ^= 1" "turn ^= 0" CHECKED)
atoll_planted_cuda(sums_of_the_last_warp_forgotten test_norm cuda_norm_both
    "warp < threads / 32; warp++" "warp < threads / 32 - 1; warp++")
atoll_planted_cuda(later_columns_of_a_thread_added_to_its_first test_norm cuda_norm_both
    "dw[l], db[l]," "dw[0], db[l],")
atoll_planted_cuda(row_of_the_next_block_added test_norm cuda_norm_both
    "if (row + r < end && first + l * across < a->c)
                    both_look" "if (first + l * across < a->c)
                    both_look")
atoll_planted_cuda(mean_of_the_gradient_in_rms_norm test_llama cuda_norm_both
    "if (!rms) *sum += dy[k];" "*sum += dy[k];")

# --- Llama's operations
atoll_planted_cuda(turned_the_other_way test_llama cuda_rope
    "-(y[k] * s)" "y[k] * s")
atoll_planted_cuda(gradients_turned_forward test_llama cuda_rope
    "a->back ? -sines[k] : sines[k]" "sines[k]")
atoll_planted_cuda(eps_outside_the_root test_llama cuda_rms
    "1.0f / sqrtf(warp_sum(square) / (float)a->c + a->eps)" "1.0f / (sqrtf(warp_sum(square) / (float)a->c) + a->eps)")
atoll_planted_cuda(gate_without_its_slope test_llama cuda_glu
    "fmaf(silu, 1.0f - s, s)" "s")
atoll_planted_cuda(keys_of_the_next_head test_attn cuda_attention
    "a->heads + shared, packed" "a->heads + (shared + 1) % a->kv_heads, packed")
atoll_planted_cuda(a_sharing_head_forgotten test_attn cuda_attention
    "size_t head = shared * group;" "size_t head = shared * group + (group > 1);")

# --- attention on tensor cores. What a header does is changed in front of it.
atoll_planted_cuda(tiles_a_query_does_not_see_itself test_attn_tiles cuda_attn_fwd
    "TILES, n, (int)(key - first)" "TILES, n, (int)(key - first) + 1")
atoll_planted_cuda(tiles_a_query_sees_the_next_key test_attn_tiles cuda_attn_fwd
    "TILES, n, (int)(key - first)" "TILES, n, (int)(key - first) - 1")
atoll_planted_cuda(diagonal_not_masked_in_time test_attn_tiles cuda_attn_fwd
    "key + columns > first + 1" "key > first")
atoll_planted_cuda(diagonal_not_looked_at test_attn_tiles cuda_attn_fwd
    "key < first + ROWS &&" "key < first &&")
atoll_planted_cuda(sum_not_brought_to_the_new_top test_attn_tiles cuda_attn_fwd
    "soft->sum[row] *= keep[row];" "")
atoll_planted_cuda(outputs_not_brought_to_the_new_top test_attn_tiles cuda_attn_fwd
    "out[m * n_out + i][j] *= keep[2 * m + j / 2];" "(void)out;")
atoll_planted_cuda(outputs_brought_to_the_top_of_other_rows test_attn_tiles cuda_attn_fwd
    "keep[2 * m + j / 2];" "keep[2 * m];")
atoll_planted_cuda(only_the_last_row_moves test_attn_tiles cuda_attn_fwd
    "moved |= top" "moved = top")
atoll_planted_cuda(top_of_a_part_of_the_row test_attn_tiles cuda_attn_fwd
    "for (unsigned lanes = 1; lanes < 4; lanes *= 2) top" "for (unsigned lanes = 1; lanes < 2; lanes *= 2) top")
atoll_planted_cuda(sum_of_a_part_of_the_row test_attn_tiles cuda_attn_fwd
    "for (unsigned lanes = 1; lanes < 4; lanes *= 2) sum" "for (unsigned lanes = 1; lanes < 2; lanes *= 2) sum")
atoll_planted_cuda(lse_of_the_unscaled_top test_attn_tiles cuda_attn_fwd
    "fmaf(soft->top[row], a->scale, logf(sum))" "soft->top[row] + logf(sum)")
atoll_planted_cuda(lse_of_other_rows test_attn_tiles cuda_attn_fwd
    "unsigned query = first + row_of(row / 2, row % 2);" "unsigned query = first + row_of(row / 2, row % 2 == 0);")
atoll_planted_cuda(tiles_keys_of_another_head test_attn_tiles cuda_attn_fwd
    "query_head / (heads / (unsigned)a->kv_heads)" "query_head % (unsigned)a->kv_heads")
atoll_planted_cuda(queries_not_waited_for test_attn_tiles cuda_attn_fwd
    "copy_wait(1);" "")
atoll_planted_cuda(queries_and_more_on_their_way test_attn_tiles cuda_attn_fwd
    "lane_of());\n    copy_commit();" "lane_of());")
atoll_planted_cuda(tiles_not_waited_for test_attn_tiles cuda_attn_fwd
    "copy_wait(0);" "copy_wait(1);")
atoll_planted_cuda(one_tile_for_both_steps test_attn_tiles cuda_attn_fwd
    "next = stage == stages ? stages + 2 * tile : stages;" "next = stages;")
atoll_planted_cuda(tail_not_zeroed test_attn_tiles cuda_attn_fwd
    "#include \"gpu/cuda_attn_tile.h\""
    "#include \"gpu/cuda_mma.h\"\n#define copy_16(s, at, from, filled) copy_16(s, at, from, 16)\n#include \"gpu/cuda_attn_tile.h\"")
atoll_planted_cuda(pairs_turned test_attn_tiles cuda_attn_fwd
    "#include \"gpu/cuda_attn_tile.h\""
    "#include \"gpu/cuda_mma.h\"\n#define bf16_pair(low, high) bf16_pair(high, low)\n#include \"gpu/cuda_attn_tile.h\"")
atoll_planted_cuda(values_not_transposed test_attn_tiles cuda_attn_fwd
    "#include \"gpu/cuda_attn_tile.h\""
    "#include \"gpu/cuda_mma.h\"\n#define columns_load rows_load\n#include \"gpu/cuda_attn_tile.h\"")
atoll_planted_cuda(fragments_of_the_wrong_rows test_attn_tiles cuda_attn_fwd
    "#include \"gpu/cuda_attn_tile.h\""
    "#include \"gpu/cuda_mma.h\"\n#define mma(sum, a, b0, b1) mma(sum, a, b1, b0)\n#include \"gpu/cuda_attn_tile.h\"")
atoll_planted_cuda(dot_of_half_a_row test_attn_tiles cuda_attn_bwd
    "apart = lanes / 2;" "apart = lanes / 4;")
atoll_planted_cuda(dot_of_narrow_rows test_attn_tiles cuda_attn_bwd
    "row_dot(&a, 16);" "row_dot(&a, 8);")
atoll_planted_cuda(dq_without_the_own_key test_attn_tiles cuda_attn_bwd
    "Q_TILES, n, (int)(key - first)" "Q_TILES, n, (int)(key - first) + 1")
atoll_planted_cuda(dq_with_the_next_key test_attn_tiles cuda_attn_bwd
    "Q_TILES, n, (int)(key - first)" "Q_TILES, n, (int)(key - first) - 1")
atoll_planted_cuda(dq_with_lse_in_nats test_attn_tiles cuda_attn_bwd
    "stat[0] * LOG2_E;" "stat[0];")
atoll_planted_cuda(dq_without_dot test_attn_tiles cuda_attn_bwd
    "= -stat[1];" "= 0 * stat[1];")
atoll_planted_cuda(dq_of_another_head test_attn_tiles cuda_attn_bwd
    "query_head / (heads / kv_heads)" "query_head % kv_heads")
atoll_planted_cuda(dq_without_the_last_tile test_attn_tiles cuda_attn_bwd
    "key < end; key += columns" "key + columns < end; key += columns")
atoll_planted_cuda(dk_without_the_own_query test_attn_tiles cuda_attn_bwd
    "(int)(first - query)" "(int)(first - query) + 1")
atoll_planted_cuda(dk_with_the_query_before test_attn_tiles cuda_attn_bwd
    "(int)(first - query)" "(int)(first - query) - 1")
atoll_planted_cuda(dk_with_the_diagonal_too_late test_attn_tiles cuda_attn_bwd
    "first + rows > query + 1" "first > query")
atoll_planted_cuda(dk_without_dot test_attn_tiles cuda_attn_bwd
    "= -dot[j % 2]" "= 0 * dot[j % 2]")
atoll_planted_cuda(dk_of_the_first_sharing_head test_attn_tiles cuda_attn_bwd
    "t.head++, t.query = from;" "t.head += 2, t.query = from;")
atoll_planted_cuda(dk_with_lse_of_another_head test_attn_tiles cuda_attn_bwd
    "(sequence * a->heads + t.head) * a->seq" "(sequence * a->heads) * a->seq")
atoll_planted_cuda(dv_scaled test_attn_tiles cuda_attn_bwd
    "scale[row] = 1;" "scale[row] = a->scale;")
atoll_planted_cuda(dk_of_tiles_on_their_way test_attn_tiles cuda_attn_bwd
    "copy_wait(0);" "copy_wait(1);")
atoll_planted_cuda(dk_of_a_tile_too_late test_attn_tiles cuda_attn_bwd
    "query + columns > first &&" "query > first &&")
atoll_planted_cuda(dk_with_queries_behind_the_last test_attn_tiles cuda_attn_bwd
    "#include \"gpu/cuda_attn_tile.h\""
    "#include \"gpu/cuda_mma.h\"\n#define copy_16(s, at, from, filled) copy_16(s, at, from, 16)\n#include \"gpu/cuda_attn_tile.h\"")

# --- barriers, where only orders and NaN tell
atoll_planted_cuda(places_before_all_parts_are_counted test_embed cuda_embed
    "__syncthreads(); /* all parts are counted */" "")
atoll_planted_cuda(tile_loaded_while_it_is_read test_attn cuda_attention
    "__syncthreads(); /* before the tiles are loaded again */" "")
atoll_planted_cuda(some_leave_before_a_barrier test_embed cuda_embed
    "int32_t token = row < n ? a.tokens[row] : 0;" "if (row >= n) return;\n    int32_t token = a.tokens[row];")

# --- rules
atoll_planted_cuda(refused_step_taken test_adamw cuda_optim
    "if (scale == 0) return;" "")
atoll_planted_cuda(groups_read_before_they_are_whole test_norm cuda_norm
    "__syncthreads(); /* groups are whole */" "")
atoll_planted_cuda(a_scale_that_vanishes test_clip cuda_optim
    "if (scale < FLT_MIN) scale = FLT_MIN;" "")
atoll_planted_cuda(infinite_norm_accepted test_clip cuda_optim
    "norm - norm == 0 ? scale : 0.0f" "norm == norm ? scale : 0.0f")
atoll_planted_cuda(rows_that_do_not_count_do test_head cuda_loss
    "if (!a.loss_only) xent_zero(&a, base, bf16);" "")

# --- the outer path
atoll_planted_cuda(ties_of_higher_place_first test_chunks cuda_delta_chunk
    "rank_of(p, j) >= k - above" "rank_of(p, j) < reached - k")
atoll_planted_cuda(a_tie_too_many test_chunks cuda_delta_chunk
    "rank_of(p, j) >= k - above" "rank_of(p, j) > k - above")
atoll_planted_cuda(a_rank_counts_itself test_chunks cuda_delta_chunk
    "((1u << threadIdx.x % 32) - 1)" "((2u << threadIdx.x % 32) - 1)")
atoll_planted_cuda(zeros_are_sent test_chunks cuda_delta_chunk
    "uint32_t low = 1," "uint32_t low = 0,")
atoll_planted_cuda(search_ends_early test_chunks cuda_delta_chunk
    "high - low > 1" "high - low > 2")
atoll_planted_cuda(sums_of_chunks_in_any_order test_order cuda_delta_chunk
    "(s.least >> 23) <= 11" "(s.least >> 23) <= 99")
atoll_planted_cuda(sums_of_blocks_folded_otherwise test_order cuda_delta_block
    "lanes = 8; lanes; lanes /= 2) s =" "lanes = 1; lanes < 16; lanes *= 2) s =")
atoll_planted_cuda(last_byte_not_written test_blocks cuda_delta_block
    "(piece->length * bits + 7) / 8" "piece->length * bits / 8")
atoll_planted_cuda(a_bad_piece_is_sent test_not_finite cuda_delta_block
    "head.bad = most >= RULE_INFINITY;" "head.bad = 0;")

atoll_planted_cuda(last_value_not_added test_add cuda_delta_add
    "i < head->n; i += 32" "i + 1 < head->n; i += 32")
atoll_planted_cuda(levels_exchanged test_add cuda_delta_add
    "a->in.code[piece->out + i], scale, scale1" "a->in.code[piece->out + i], scale1, scale")
atoll_planted_cuda(codes_of_a_byte_exchanged test_add cuda_delta_add
    "rule_code_at(a->in.bytes + piece->out, bits, i)" "rule_code_at(a->in.bytes + piece->out, bits, bits < 8 ? i ^ 1 : i)")
atoll_planted_cuda(plain_values_of_the_first_piece test_add cuda_delta_add
    "a->in.plain[piece->out + i]" "a->in.plain[i]")
atoll_planted_cuda(added_at_the_chunk_before test_add cuda_delta_add
    "a->theta[piece->from + a->in.index[piece->out + i]]" "a->theta[a->in.index[piece->out + i]]")

atoll_planted_cuda(image_not_told_of_what_is_sent test_writers cuda_stage.c
    "cuda_written(cuda, dst, bytes);" "")

# --- between host and device
atoll_planted_cuda(buffer_filled_while_it_is_on_its_way test_calls cuda_stage.c
    "return cuda_rt_await(cuda->rt, s->through[i], NULL) == STATUS_OK ? i : -1;" "return i;")
atoll_planted_cuda(buffer_emptied_before_it_came test_calls cuda_stage.c
    "TRY(cuda_rt_await(cuda->rt, s->through[now], err));" "")
atoll_planted_cuda(copies_overtake_the_work_before test_calls cuda_stage.c
    "cuda_rt_wait(cuda->rt, CUDA_COPY, cuda->stage.enter);" "")
atoll_planted_cuda(work_does_not_wait_for_copies test_calls cuda_stage.c
    "cuda_rt_wait(cuda->rt, CUDA_MAIN, s->leave);" "")
atoll_planted_cuda(one_buffer_for_both_pieces test_calls cuda_stage.c
    "(i + 1) % DEVICE_STAGES" "i")
atoll_planted_cuda(last_piece_as_long_as_the_others test_calls cuda_stage.c
    "bytes - at < s->bytes ? bytes - at : s->bytes" "s->bytes")
atoll_planted_cuda(pieces_sent_from_the_first_place test_emulated_threads cuda_stage.c
    "s->buffer[i], (const char *)src + at, n)" "s->buffer[i], (const char *)src, n)")
atoll_planted_cuda(pieces_fetched_to_the_first_place test_emulated_threads cuda_stage.c
    "pool_copy(s->pool, (char *)dst + at," "pool_copy(s->pool, (char *)dst,")
atoll_planted_cuda(host_waits_for_every_piece test_emulated_beside cuda_stage.c
    "int i = take(cuda);\n        if (i < 0) return;" "if (cuda_rt_sync(cuda->rt, NULL) != STATUS_OK) return;\n        int i = take(cuda);")

# --- the anchor on the device, over whole rounds
function(atoll_planted_theta name test source from to)
    atoll_planted_copy(cuda ${name} ${test} ${source} "${from}" "${to}")
    if(copy)
        atoll_planted_program(cuda ${name} test_cuda_theta ${copy} cuda_emulated)
    endif()
endfunction()
atoll_planted_theta(update_added_to_an_older_anchor test_emulated_async worker/delta_maker.c
    "f->hash != before) return false;" "0) return false;")
atoll_planted_theta(update_moves_what_training_started_from test_emulated_async worker/outer_loop_delta.c
    "if (!loop->maker || state == WORKER_TRAINING) return;" "if (!loop->maker) return;")
atoll_planted_theta(anchor_left_behind test_emulated_async worker/outer_loop_delta.c
    "    send_ahead(loop);\n" "")

# --- the graphs for cuDNN
atoll_planted_cuda(keys_are_values test_graphs cuda_attn_graph
    "case ATTN_DK: return shape->heads" "case ATTN_DK: return 0 * shape->heads")
atoll_planted_cuda(row_without_key_heads test_graphs cuda_attn_graph
    "(s->heads + 2 * s->kv_heads)" "(3 * s->heads)")
atoll_planted_cuda(keys_not_turned test_graphs cuda_attn_graph
    "t.stride[2] = 1;\n        t.stride[3] = row;" "t.stride[2] = row;\n        t.stride[3] = 1;")
atoll_planted_cuda(heads_overlap test_graphs cuda_attn_graph
    ".stride = {heads * m * n, m * n, n, 1}" ".stride = {heads * m * n, n, heads * n, 1}")
atoll_planted_cuda(scores_not_scaled test_graphs cuda_attn_graph
    "return 1.0f / sqrtf((float)s->head_dim);" "return 1.0f + 0 * (float)s->head_dim;")
atoll_planted_cuda(scaled_by_the_head test_graphs cuda_attn_graph
    "sqrtf((float)s->head_dim)" "(float)s->head_dim")
atoll_planted_cuda(queries_are_keys test_graphs cuda_attn_graph
    "op(w, ATTN_GE, query, key," "op(w, ATTN_GE, key, query,")
atoll_planted_cuda(future_weighs_little_but_something test_graphs cuda_attn_graph
    "value(w, -INFINITY)" "value(w, -3)")
atoll_planted_cuda(lse_without_the_top test_graphs cuda_attn_graph
    "op(&w, ATTN_ADD, top, logarithm," "op(&w, ATTN_MUL, top, logarithm,")
atoll_planted_cuda(gradient_not_scaled test_graphs cuda_attn_graph
    "ds = op(&w, ATTN_MUL, ds, scale, inside(&w, shape->type, t, t));"
    "ds = op(&w, ATTN_COPY, ds, -1, inside(&w, shape->type, t, t));")
atoll_planted_cuda(probabilities_not_turned test_graphs cuda_attn_graph
    "w->t * w->t, 1, w->t}}" "w->t * w->t, w->t, 1}}")
atoll_planted_cuda(gradient_of_the_wrong_rows test_graphs cuda_attn_graph
    "dq = rows(&w, ATTN_DQ, w.h, w.row, false)" "dq = rows(&w, ATTN_DQ, w.h, c, false)")

# --- muon
atoll_planted_cuda(momentum_without_nesterov test_golden cuda_muon
    "x = fmaf(a.mu, m, g);" "x = m;")
atoll_planted_cuda(momentum_of_a_refused_step test_edges cuda_muon
    "if (scale != 0) {" "{")
atoll_planted_cuda(refused_step_moves test_edges cuda_muon
    "if (i >= n || (a.scale && *a.scale == 0)) return;" "if (i >= n) return;")
atoll_planted_cuda(decay_where_there_is_none test_golden cuda_muon
    "place->decay ? a.decay : 0" "a.decay")
atoll_planted_cuda(block_of_columns_taken_for_a_matrix test_golden cuda_muon
    "i / a.cols * place->ld + i % a.cols;" "i;")
atoll_planted_cuda(trace_without_its_last_warps test_same cuda_muon
    "warp < CUDA_BLOCK / 32; warp++) trace" "warp < 1; warp++) trace")
atoll_planted_cuda(norm_of_the_first_matrix test_same cuda_muon
    "a.inverse[blockIdx.y] :" "a.inverse[0] :")
atoll_planted_cuda(gram_not_normed test_golden cuda_muon
    "act_store(a.factor, at, bf16, 1, &gram);" "")
atoll_planted_cuda(quintic_of_another_slope test_golden cuda_muon
    "MUON_A * inverse :" "3.0f * inverse :")
atoll_planted_cuda(longer_side_orthogonalized test_directions cuda_muon.c
    "bool tall = b->rows > b->cols;" "bool tall = b->rows < b->cols;")
atoll_planted_cuda(step_by_the_short_side test_golden cuda_muon.c
    "muon_length(b->rows, b->cols)" "muon_length(muon_side(b->rows, b->cols), 1)")
atoll_planted_cuda(one_round_too_few test_golden cuda_muon.c
    "round < rounds; round++" "round + 1 < rounds; round++")
atoll_planted_cuda(one_buffer_for_a_round_and_the_next test_golden cuda_muon.c
    "*y = p->as.muon.y" "*y = p->as.muon.x")
atoll_planted_cuda(second_of_a_batch_forgotten test_same cuda_muon.c
    ".step_a = area, .step_b = area, .step_c = square" ".step_c = square")

# --- several GPUs, one of which fails or hangs
atoll_planted_cuda(own_communicator_aborted_only test_failed_beside_full_queues cuda_collective.c
    "if (n) cuda_comm_abort(comms, n);" "if (n) cuda_comm_abort(comms, 1);" WAITS)
atoll_planted_cuda(failure_kept_for_itself test_failed_beside_copies_that_block cuda_collective.c
    "cuda_watchdog_fail(group->watchdog, why);" "if (!group) cuda_watchdog_fail(group->watchdog, why);" WAITS)
atoll_planted_cuda(blamed_by_what_was_asked_of_it test_hung_gpu cuda_collective.c
    "if (!ask) return asked;" "return asked;" WAITS)
atoll_planted_cuda(nobody_looks test_stays_away cuda_watchdog.c
    "else if (w->timeout && idle" "else if (!w->timeout && idle" WAITS)
atoll_planted_cuda(last_failure_told test_failed_beside_full_queues cuda_watchdog.c
    "if (atomic_load(&w->failed)) return;" "" WAITS)
atoll_planted_cuda(slow_taken_for_hung test_slow cuda_watchdog.c
    "now == moves && busy" "busy" WAITS)
atoll_planted_cuda(idle_taken_for_hung test_slow cuda_watchdog.c
    "now == moves && busy" "now == moves" WAITS)
atoll_planted_cuda(aborted_by_who_should_look test_last_resort cuda_watchdog.c
    "thread_start(&thread, body, w) == 0" "false" WAITS)
atoll_planted_cuda(no_last_resort test_last_resort cuda_watchdog.c
    "if (w->watch.end) last_resort(w);" "" WAITS)

atoll_planted_cuda(only_gpu_unwatched test_only_gpu_hangs cuda_alone.c
    "return atomic_load(&alone->at_work) || atomic_load(&cuda_rt_pulse(alone->rt)->waits) > 0;" "return false;" WAITS)
atoll_planted_cuda(only_gpu_that_rests_taken_for_hung test_only_gpu_is_slow cuda_alone.c
    "return atomic_load(&alone->at_work) || atomic_load(&cuda_rt_pulse(alone->rt)->waits) > 0;" "return true;" WAITS)
atoll_planted_cuda(moves_of_the_only_gpu_unseen test_only_gpu_is_slow cuda_alone.c
    "return atomic_load(&cuda_rt_pulse(alone->rt)->moves);" "return 0;" WAITS)
atoll_planted_cuda(closing_unwatched test_close_hangs cuda_collective.c
    "comms_close(group, watched);" "comms_close(group, false);" WAITS)
atoll_planted_cuda(closing_blames_the_first test_close_hangs cuda_collective.c
    "closed < last ? closed : last" "0" WAITS)

# --- what only the checker sees, or sees before numbers are wrong
atoll_planted_cuda(place_behind_its_end test_embed cuda_embed
    "row % a->seq * a->c + column, width, place" "row % a->seq * a->c + column + 1, width, place" CHECKED)
atoll_planted_cuda(vector_before_its_begin test_vectors cuda_element
    "fmaf(a.alpha, a.x[i], a.y[i])" "fmaf(a.alpha, a.x[(ptrdiff_t)i - 1], a.y[i])" CHECKED)
atoll_planted_cuda(all_threads_write_the_loss test_head cuda_loss
    "if (threadIdx.x == 0) { /* alone:" "{ /*" CHECKED)
atoll_planted_cuda(all_blocks_add_to_a_word test_embed cuda_embed
    "(place && a->keys[place - 1] == token) || column" "column" CHECKED)
atoll_planted_cuda(a_warp_writes_no_maximum test_chunks cuda_delta_chunk
    "if (threadIdx.x % 32 == 0) most[" "if (threadIdx.x % 64 == 0) most[" CHECKED)
atoll_planted_cuda(counts_written_while_they_are_read test_chunks cuda_delta_chunk
    "turn ^= 1;\n        unsigned n" "unsigned n" CHECKED)
atoll_planted_cuda(a_lane_takes_the_next_block test_blocks cuda_delta_block
    "a->rest[piece->from + i] = x" "a->rest[piece->from + i + 1] = x" CHECKED)
atoll_planted_cuda(heads_of_the_wrong_lane test_blocks cuda_delta_block
    "if (threadIdx.x % 32 == 0) a.out.heads" "if (threadIdx.x % 32 <= 1) a.out.heads" CHECKED)

# --- 32 bits for what may be more
atoll_planted_cuda(numbers_in_32_bits test_far_elements cuda_element
    "size_t i = global_index() * width;\n    float z" "unsigned i = global_index() * width;\n    float z")
atoll_planted_cuda(spans_in_32_bits test_far_adamw cuda_optim
    "size_t at = first + k * CUDA_BLOCK, i = span->offset + at, j = i - span->skipped;\n        if (at >= span->count) continue;\n        g[k] = a"
    "unsigned at = first + k * CUDA_BLOCK, i = span->offset + at, j = i - span->skipped;\n        if (at >= span->count) continue;\n        g[k] = a")
atoll_planted_cuda(rows_in_32_bits test_far_loss cuda_loss
    "size_t base = blockIdx.x * a.ld;" "unsigned base = blockIdx.x * a.ld;")
atoll_planted_cuda(pieces_in_32_bits test_far_delta cuda_delta_block
    "uint64_t at = piece->from + from + lane;" "unsigned at = piece->from + from + lane;")

# --- attention through cuDNN
atoll_planted_cuda(every_part_is_the_first test_parts cuda_cudnn
    "(rows * row + column) * size" "(0 * rows * row + column) * size")
atoll_planted_cuda(scratch_overlaps test_attention cuda_cudnn
    "p->scratch_bytes += aligned(sizes[i]);" "p->scratch_bytes += aligned(sizes[i]) / 512 * 256;")
atoll_planted_cuda(gradient_of_queries_in_the_wrong_memory test_attention cuda_cudnn
    "i < 3 ? qkv : dqkv" "i < 4 ? qkv : dqkv")
atoll_planted_cuda(parts_of_unlike_size test_parts cuda_cudnn
    "if (s->batch % parts == 0 && loads && guess(" "if (loads && guess(")
atoll_planted_cuda(one_sequence_has_no_more_than_several test_one_sequence cuda_cudnn
    "return batch == 1 ? dnn->alone_max : dnn->scratch_max;" "return batch ? dnn->scratch_max : dnn->alone_max;")
atoll_planted_cuda(sums_in_workspace_not_planned test_generations cuda_cudnn
    ".capability = cuda_rt_capability(dnn->rt), " "")
atoll_planted_cuda(row_sums_without_memory test_attention cuda_cudnn
    "if (!p->inference) sizes[PART_DOT] = attn_graph_scratch(&graph, ATTN_DOT);" "")
atoll_planted_cuda(statistics_of_inference_where_there_are_none test_attention cuda_cudnn
    "[PART_LSE] = p->inference ? rows * sizeof(float) : 0" "[PART_LSE] = 0 * rows")

atoll_planted_test(cuda)

# With the tests of kernels by themselves, which reach every barrier (barriers.sh says so where they do not).
set(barrier_tests ${cuda_checked_tests})
list(FILTER barrier_tests INCLUDE REGEX "_(kernels|delta|muon)")
add_test(NAME test_cuda_barriers
         COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/cuda/barriers.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${barrier_tests}
         WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(test_cuda_barriers PROPERTIES LABELS planted TIMEOUT 600)
