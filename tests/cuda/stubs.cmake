# What of gpu/ calls the libraries of NVIDIA itself, and so is no part of the emulation: run here with stubs of those
# libraries in their place (cudart_stub.h, cublaslt_stub.h, nccl_stub.c, cudnn_stub.c). Only where the toolkit is, whose
# headers and whose cuBLASLt's descriptors they are.
#   test_cublaslt, test_cuda_rt, _nccl, _cudnn_rt   what these files promise, and ask of the libraries
#   atoll_cuda_stubbed.so                           the whole plugin: for test_stubbed_*, and for programs

# A library each: planted bugs take the place of one source.
add_library(cuda_true STATIC ${cuda_true})
set(cuda_emulated_threads $<FILTER:$<TARGET_OBJECTS:cuda_host>,INCLUDE,/emulate\\.c|/emulate_mma\\.c|/emulate_launch\\.c|/ptx_[a-z]+\\.c>)
add_library(cuda_stubs STATIC cuda/cudart_stub.c cuda/cudart_stub_queue.c cuda/cublaslt_stub.c
            cuda/cublaslt_objects.c ${cuda_emulated_threads})
foreach(part IN ITEMS cuda_true cuda_stubs)
    target_include_directories(${part} SYSTEM PUBLIC ${ATOLL_CUDA_INCLUDE})
    target_link_libraries(${part} PUBLIC atoll_gpu)
    set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
set(cuda_true_definitions ATOLL_CUDA_OLDEST=${ATOLL_CUDA_OLDEST} ATOLL_CUDA_ARCH_OLDEST=80)
if(ATOLL_CUDA_NCCL)
    target_include_directories(cuda_true SYSTEM PUBLIC ${ATOLL_CUDA_NCCL})
    add_library(nccl_stub MODULE cuda/nccl_stub.c)
    target_include_directories(nccl_stub SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE} ${ATOLL_CUDA_NCCL})
    target_include_directories(nccl_stub PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(nccl_stub PRIVATE Threads::Threads)
    set_target_properties(nccl_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
if(ATOLL_CUDNN_BUILT)
    list(APPEND cuda_true_definitions ATOLL_CUDNN)
    target_include_directories(cuda_true SYSTEM PUBLIC ${ATOLL_CUDNN_INCLUDE})
    add_library(cudnn_stub MODULE cuda/cudnn_stub.c cuda/graph_run.c ${CMAKE_SOURCE_DIR}/common/status.c
                ${CMAKE_SOURCE_DIR}/common/mem.c)
    target_include_directories(cudnn_stub SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE} ${ATOLL_CUDNN_INCLUDE})
    target_include_directories(cudnn_stub PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(cudnn_stub PRIVATE m)
    set_target_properties(cudnn_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
target_compile_definitions(cuda_true PRIVATE ${cuda_true_definitions})
target_link_libraries(cuda_stubs PUBLIC ${ATOLL_CUDA_CUBLASLT} m Threads::Threads)
target_link_libraries(cuda_true PUBLIC cuda_stubs)

set(tests cublaslt cuda_rt)
if(ATOLL_CUDA_NCCL)
    list(APPEND tests cuda_nccl)
endif()
if(ATOLL_CUDNN_BUILT)
    list(APPEND tests cuda_cudnn_rt)
endif()
foreach(name IN LISTS tests)
    add_executable(test_${name} cuda/test_${name}.c)
    target_compile_definitions(test_${name} PRIVATE ${cuda_true_definitions})
    target_link_libraries(test_${name} PRIVATE ${test_lib} cuda_true ${all_libraries} PkgConfig::CMOCKA)
    add_test(NAME test_${name} COMMAND test_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_${name} PROPERTIES LABELS "parity;asan;threads" TIMEOUT 120)
endforeach()
if(TARGET test_cuda_cudnn_rt)
    target_sources(test_cuda_cudnn_rt PRIVATE cuda/graph_run.c ${CMAKE_SOURCE_DIR}/gpu/cuda_attn_graph.c)
endif()
if(NOT COMMAND atoll_planted_copy) # sanitizers
    return()
endif()
# The plugin; more arguments: what stands in the place of cuda_true.
add_library(cuda_stubbed OBJECT ${cuda_files})
target_link_libraries(cuda_stubbed PRIVATE atoll_gpu)
set_target_properties(cuda_stubbed PROPERTIES POSITION_INDEPENDENT_CODE ON)
function(atoll_stubbed_plugin name)
    add_library(${name} MODULE ${ARGN} $<TARGET_OBJECTS:cuda_stubs> ${cuda_emulated_threads}
                $<TARGET_OBJECTS:cuda_kernels> $<FILTER:$<TARGET_OBJECTS:cuda_host>,EXCLUDE,/emulate|/graph_run|/ptx_>
                $<TARGET_OBJECTS:cuda_common> $<TARGET_OBJECTS:cuda_stubbed>)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_include_directories(${name} SYSTEM PRIVATE $<TARGET_PROPERTY:cuda_true,INTERFACE_SYSTEM_INCLUDE_DIRECTORIES>)
    target_link_libraries(${name} PRIVATE ${ATOLL_CUDA_CUBLASLT} m dl Threads::Threads)
    set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endfunction()
atoll_stubbed_plugin(atoll_cuda_stubbed $<TARGET_OBJECTS:cuda_true>)

add_library(stubbed_life OBJECT cuda/stubbed_life.c)
target_include_directories(stubbed_life PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(stubbed_life SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE})
foreach(name IN ITEMS test_cuda_failures test_library_failures)
    add_executable(${name} cuda/${name}.c $<TARGET_OBJECTS:stubbed_life>)
    target_include_directories(${name} SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE})
    target_link_libraries(${name} PRIVATE ${test_lib} ${all_libraries} PkgConfig::CMOCKA)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS parity TIMEOUT 240)
endforeach()

# What tests/CMakeLists.txt compares on a GPU, compared on that plugin.
set(plugin ATOLL_CUDA_PLUGIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/atoll_cuda_stubbed.so ATOLL_ALGO_CACHE=/dev/null)
foreach(name IN ITEMS kernels_vectors kernels_rows kernels_layers outer stage theta recompute)
    add_test(NAME test_stubbed_${name} COMMAND gpu_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_stubbed_${name} PROPERTIES LABELS parity TIMEOUT 120
                         ENVIRONMENT "${plugin};ATOLL_ATTENTION=own;ATOLL_STUB_GPUS=8") # as large machines have
endforeach()
if(ATOLL_CUDNN_BUILT)
    set(cudnn ATOLL_CUDNN_LIBRARY=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libcudnn_stub.so)
    add_test(NAME test_stubbed_cudnn COMMAND gpu_kernels_layers test_attn WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    add_test(NAME test_stubbed_cudnn_exact COMMAND gpu_kernels_layers test_attn WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_stubbed_cudnn PROPERTIES LABELS parity TIMEOUT 120 ENVIRONMENT "${plugin};${cudnn}")
    set_tests_properties(test_stubbed_cudnn_exact PROPERTIES LABELS parity TIMEOUT 120
                         ENVIRONMENT "${plugin};${cudnn};ATOLL_ATTENTION=exact")
endif()

# main: the program that has the test
function(atoll_planted_library main name test source from to)
    if(NOT TARGET ${main})
        return()
    endif()
    atoll_planted_copy(cuda_libraries ${name} ${test} gpu/${source}.c "${from}" "${to}" ${ARGN})
    if(copy)
        set_property(SOURCE ${copy} PROPERTY COMPILE_DEFINITIONS ${cuda_true_definitions})
        atoll_planted_program(cuda_libraries ${name} ${main} ${copy} cuda_true)
    endif()
endfunction()

# The same for what is tried in the plugin: by gpu_MAIN.
function(atoll_planted_plugin main name test source from to)
    if(source MATCHES cudnn AND NOT ATOLL_CUDNN_BUILT)
        return()
    endif()
    atoll_planted_copy(cuda_libraries ${name} ${test} gpu/${source}.c "${from}" "${to}")
    if(copy)
        set_property(SOURCE ${copy} PROPERTY COMPILE_DEFINITIONS ${cuda_true_definitions})
        atoll_planted_program(cuda_libraries ${name} test_cuda_${main} $<TARGET_OBJECTS:gpu_${main}>)
        atoll_stubbed_plugin(planted_plugin_${name} ${copy} $<FILTER:$<TARGET_OBJECTS:cuda_true>,EXCLUDE,${source}>)
        set_target_properties(planted_plugin_${name} PROPERTIES OUTPUT_NAME planted_cuda_libraries_${name})
    endif()
endfunction()

# --- matrix products

atoll_planted_library(test_cublaslt aux_of_the_wrong_row_stride test_products cuda_gemm
    "int64_t ld = (int64_t)s->ldc;" "int64_t ld = (int64_t)s->n;")
atoll_planted_library(test_cublaslt aux_of_no_call test_products cuda_gemm
    "SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->aux);" "CUBLAS_STATUS_SUCCESS;")
atoll_planted_library(test_cublaslt sums_of_the_other_operand test_products cuda_gemm
    "CUBLASLT_EPILOGUE_BGRADA" "CUBLASLT_EPILOGUE_BGRADB")
atoll_planted_library(test_cublaslt sums_go_to_the_bias test_products cuda_gemm
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->sums" "CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias")
atoll_planted_library(test_cublaslt bias_read_where_it_lies test_products cuda_gemm
    "if ((uintptr_t)bias % GEMM_VECTOR_BYTES == 0) return bias;" "if (bias) return bias;")
atoll_planted_library(test_cublaslt better_alignment_told test_products cuda_gemm_time
    "(const char *)rt->workspace + GEMM_VECTOR_BYTES" "rt->workspace")
atoll_planted_library(test_cublaslt half_of_the_bias test_products cuda_gemm
    "cudaMemcpyAsync(place, bias, bytes," "cudaMemcpyAsync(place, bias, bytes / 2,")
atoll_planted_library(test_cublaslt operands_not_exchanged test_products cuda_gemm
    "call->b, g->first, call->a, g->second" "call->a, g->first, call->b, g->second")
atoll_planted_library(test_cublaslt parts_summed_in_bf16 test_products cuda_gemm
    "g->shape.bf16_out ? 0 : CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE" "CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE")
atoll_planted_library(test_cublaslt parts_summed_as_they_come test_products cuda_gemm
    "parts = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |" "parts = CUBLASLT_REDUCTION_SCHEME_MASK |")
atoll_planted_library(test_cublaslt timed_with_like_numbers test_faster cuda_gemm_time
    "rng_normal_fill(1, RNG_TIMING, 0, 1, sample, SAMPLE);" "")
atoll_planted_library(test_cublaslt timed_with_rests_of_others test_faster cuda_gemm_time
    "while (ok && done < bytes) {" "while (ok && done > bytes) {")
atoll_planted_library(test_cublaslt sample_freed_on_its_way test_faster cuda_gemm_time
    "ok = cudaStreamSynchronize(rt->stream) == cudaSuccess && ok;" "")
atoll_planted_library(test_cublaslt slower_form_taken test_faster cuda_gemm_time
    "least[1] < least[0] ? FORM_FUSED : FORM_APART" "least[1] < least[0] ? FORM_APART : FORM_FUSED")
atoll_planted_library(test_cublaslt kernel_not_timed test_faster cuda_gemm_time
    "for (int i = 0; i < RUNS; i++) user->run(user->ctx, g, &t->call);"
    "for (int i = 0; i < RUNS; i++) cuda_rt_gemm(rt, g, &t->call);")
atoll_planted_library(test_cublaslt form_forgotten test_faster cuda_gemm_time
    "if (words[0]) (void)!algo_cache_put(" "if (!words[0]) (void)!algo_cache_put(")
atoll_planted_library(test_cublaslt form_kept_and_not_looked_at test_faster cuda_gemm_time
    "return (int)words[0];" "return 0;")
atoll_planted_library(test_cublaslt measured_beside_others test_shared cuda_gemm_time
    "if (choose_kept(rt, g, key, alignment)) return;" "")
atoll_planted_library(test_cublaslt algorithm_of_the_plain_product test_faster cuda_gemm_time
    "s->slope ? \"+slope\" : s->sums ? \"+sums\" : \"\"" "\"\"")
atoll_planted_library(test_cublaslt refusal_taken_for_an_error test_apart cuda_gemm_time
    "bool runs = first == CUBLAS_STATUS_SUCCESS;" "bool runs = true;")
atoll_planted_library(test_cublaslt timed_though_it_is_off test_asked_for cuda_gemm_time
    "if (timed && (!may_time() || " "if (timed && (")
atoll_planted_library(test_cublaslt taken_at_any_address test_takes cuda_gemm
    "if (g->shape.slope) all |= (uintptr_t)call->aux;" "")
atoll_planted_library(test_cublaslt form_of_products_that_failed test_each_fails cuda_gemm_time
    "return rt->error.code == STATUS_OK ? timing_read(rt, t) : -1" "return timing_read(rt, t)")
atoll_planted_library(test_cublaslt wish_kept_when_refused test_each_fails cuda_gemm
    "(void)cublasLtMatmulPreferenceDestroy(wish);" "if (ok) (void)cublasLtMatmulPreferenceDestroy(wish);")
atoll_planted_library(test_cublaslt layout_that_was_not_made test_each_fails cuda_gemm
    "if (!accepted(rt, cublasLtMatrixLayoutCreate(&made, type, rows, cols, (int64_t)ld))) return false;"
    "(void)accepted(rt, cublasLtMatrixLayoutCreate(&made, type, rows, cols, (int64_t)ld));")

# --- devices, memory, queues
atoll_planted_library(test_cuda_rt old_gpu_taken test_devices cuda_rt
    "prop.major * 10 + prop.minor < OLDEST_CAPABILITY" "prop.major < 7")
atoll_planted_library(test_cuda_rt gpu_behind_the_last test_devices cuda_rt "index >= count" "index > count")
atoll_planted_library(test_cuda_rt first_kernel_loaded test_devices cuda_rt
    "k < __stop_atoll_kernels; k++" "k < __start_atoll_kernels + 1; k++")
atoll_planted_library(test_cuda_rt shared_memory_not_asked_for test_opening_fails cuda_rt
    "if (!k->bytes) continue;" "continue;")
atoll_planted_library(test_cuda_rt refused_for_ever test_drivers cuda_rt
    "code == cudaErrorSystemNotReady ? STATUS_IO" "false ? STATUS_IO")
atoll_planted_library(test_cuda_rt memory_with_garbage test_memory cuda_rt
    "check(rt, cudaMemsetAsync(p, 0, bytes, rt->stream), \"clearing memory\");" "")
atoll_planted_library(test_cuda_rt pinned_memory_with_garbage test_memory cuda_rt "memset(p, 0, bytes);" "")
atoll_planted_library(test_cuda_rt lack_of_memory_left_to_a_launch test_memory cuda_rt
    "(void)cudaGetLastError(); /* that there is no memory" "/* that there is no memory")
atoll_planted_library(test_cuda_rt error_from_before_taken_for_lack test_error_from_before cuda_rt
    "if (code != cudaErrorMemoryAllocation) check(rt, code," "if (false) check(rt, code,")
atoll_planted_library(test_cuda_rt workspace_kept test_memory cuda_rt "(void)cudaFree(rt->workspace);" "")
atoll_planted_library(test_cuda_rt copies_the_other_way test_copies cuda_rt
    "{cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost," "{cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice,")
atoll_planted_library(test_cuda_rt copies_all_in_one_queue test_order cuda_rt
    "kinds[direction], stream_of(rt, queue))" "kinds[direction], rt->stream)")
atoll_planted_library(test_cuda_rt other_queues_not_waited_for test_order cuda_rt
    "wait_here(rt, rt->beside[q], NULL);" "continue;")
atoll_planted_library(test_cuda_rt event_waited_for_by_nobody test_order cuda_rt
    "check(rt, cudaStreamWaitEvent(stream_of(rt, queue), e->event, 0), \"waiting for an event\");" "")
atoll_planted_library(test_cuda_rt mark_of_another_slot test_order cuda_rt
    "wait_here(rt, NULL, rt->marks[slot]);" "wait_here(rt, NULL, rt->marks[0]);")
atoll_planted_library(test_cuda_rt gpu_of_the_last_call test_threads cuda_rt
    "check(rt, cudaSetDevice(rt->index), \"cannot be used\");" "")
atoll_planted_library(test_cuda_rt queue_made_again test_grids cuda_rt "if (!rt->beside[queue])" "if (true)")
atoll_planted_library(test_cuda_rt waits_for_streams_spin test_devices cuda_rt "cudaDeviceScheduleBlockingSync" "0")
atoll_planted_library(test_cuda_rt waits_for_events_spin test_devices cuda_rt " | cudaEventBlockingSync" "")
atoll_planted_library(test_cuda_rt grid_too_high test_grids cuda_rt " && y <= CUDA_GRID_Y_MAX" "")
atoll_planted_library(test_cuda_rt later_error_told test_failing_device cuda_rt
    "if (rt->error.code == STATUS_OK) err_set(&rt->error, code, \"%s: %s\"" "err_set(&rt->error, code, \"%s: %s\"")
atoll_planted_library(test_cuda_rt wait_left_to_a_launch test_watched cuda_rt
    "(void)cudaGetLastError(); /* \"not ready\"" "/* \"not ready\"")
atoll_planted_library(test_cuda_rt wait_counted_for_ever test_watched cuda_rt
    "atomic_fetch_sub(&rt->pulse.waits, 1);" "")
atoll_planted_library(test_cuda_rt aborted_taken_for_done test_ended_well_and_stopped cuda_rt
    "if (code == cudaSuccess) (void)cuda_rt_stopped(rt);" "")

# --- collectives
atoll_planted_library(test_cuda_nccl library_too_old test_libraries cuda_nccl
    "NCCL_VERSION(2, 19, 1)" "NCCL_VERSION(2, 18, 1)")
atoll_planted_library(test_cuda_nccl communicators_that_block test_collectives cuda_nccl "config.blocking = 0;" "")
atoll_planted_library(test_cuda_nccl call_in_progress_left test_collectives cuda_nccl "result = settle(c, result);"
    "if (result == ncclInProgress) result = ncclSuccess;")
atoll_planted_library(test_cuda_nccl share_of_the_first test_collectives cuda_nccl
    "buf + (size_t)c->rank * share, share" "buf, share")
atoll_planted_library(test_cuda_nccl gathered_from_the_first test_collectives cuda_nccl
    "AllGather(buf + (size_t)c->rank * share, buf" "AllGather(buf, buf")
atoll_planted_library(test_cuda_nccl reduced_for_the_first test_collectives cuda_nccl
    "ncclSum, p->root, c->comm" "ncclSum, 0, c->comm")
atoll_planted_library(test_cuda_nccl broadcast_by_the_first test_collectives cuda_nccl
    "ncclFloat, p->root, c->comm" "ncclFloat, 0, c->comm")
atoll_planted_library(test_cuda_nccl refusal_lost test_refused cuda_nccl
    "if (result != ncclSuccess) cuda_rt_fail(c->rt, STATUS_IO, what);" "")
atoll_planted_library(test_cuda_nccl break_not_seen test_breaks cuda_nccl
    "bool failed = result != ncclSuccess && result != ncclInProgress;" "bool failed = false;")
atoll_planted_library(test_cuda_nccl freed_with_a_rank_inside test_stalls cuda_nccl
    "if (!is_inside(comms[r])) return r;" "continue;")
atoll_planted_library(test_cuda_nccl asked_beside_the_rank test_stalls cuda_nccl " && !c->ended && !c->inside" " && !c->ended")
atoll_planted_library(test_cuda_nccl asked_during_the_abort test_stalls cuda_nccl
    "if (!c->ended && library.f.CommGetAsyncError" "if (library.f.CommGetAsyncError")
atoll_planted_library(test_cuda_nccl destroyed_after_the_abort test_breaks cuda_nccl
    "comms[r]->comm = NULL;" "continue;")
atoll_planted_library(test_cuda_nccl calls_behind_one_that_failed test_nothing_behind_a_failure cuda_nccl
    "!c->ended && !c->broken && c->comm" "!c->ended && c->comm")

# --- attention by cuDNN
atoll_planted_library(test_cuda_cudnn_rt sums_in_any_order test_engines cuda_cudnn_plan
    "if (any) return" "if (false) return")
atoll_planted_library(test_cuda_cudnn_rt notes_not_read test_engines cuda_cudnn_plan
    "notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC" "false")
atoll_planted_library(test_cuda_cudnn_rt first_engine_or_none test_engines cuda_cudnn_plan
    "i < p->facts.engines && status" "i < 1 && status")
atoll_planted_library(test_cuda_cudnn_rt workspace_without_a_limit test_execution cuda_cudnn_plan
    "(size_t)bytes > workspace_max" "false")
atoll_planted_library(test_cuda_cudnn_rt number_not_passed_by_value test_execution cuda_cudnn_plan
    "CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value" "CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &inside")
atoll_planted_library(test_cuda_cudnn_rt plan_kept test_engines cuda_cudnn_plan
    "if (p->plan) p->lib->unmake(p->plan);" "")
atoll_planted_library(test_cuda_cudnn_rt pointers_kept_when_refused test_each_fails cuda_cudnn_plan
    "if (status != CUDNN_STATUS_SUCCESS) p->lib->unmake(pack->made);" "")
atoll_planted_library(test_cuda_cudnn_rt second_of_two_versions_taken test_libraries cuda_cudnn_rt
    " && number != 91001" "")
atoll_planted_library(test_cuda_cudnn_rt known_wrong_taken test_known_wrong cuda_cudnn_rt
    "lib->number <= 91500" "lib->number < 91500")
atoll_planted_plugin(kernels_layers difference_the_other_way test_attn cuda_cudnn_plan
    "default: return finish(p, pointwise(p, op, x, b, t, y));"
    "default: return finish(p, pointwise(p, op, b ? b : x, b ? x : b, t, y));")
atoll_planted_plugin(kernels_layers product_of_the_other_operand test_attn cuda_cudnn_plan
    "CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);" "CUDNN_ATTR_OPERATION_MATMUL_ADESC, b);")
atoll_planted_plugin(kernels_layers largest_taken_for_the_sum test_attn cuda_cudnn_plan
    "case ATTN_SUM: return finish(p, reduction(p, CUDNN_REDUCE_TENSOR_ADD"
    "case ATTN_SUM: return finish(p, reduction(p, CUDNN_REDUCE_TENSOR_MAX")
atoll_planted_plugin(recompute pointers_of_the_call_before test_same_bits cuda_cudnn_plan
    "if (pack->workspace != workspace || memcmp(pack->memory, memory, sizeof pack->memory) != 0) continue;" "")
atoll_planted_plugin(kernels_layers pointer_of_another_tensor test_attn cuda_cudnn_plan
    "ids[n] = id_of(i);" "ids[n] = id_of(n);")
atoll_planted_plugin(kernels_layers tensor_inside_in_memory test_attn cuda_cudnn_plan
    "CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside"
    "CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &value")

atoll_planted_test(cuda_libraries)
set_tests_properties(test_cuda_libraries_planted PROPERTIES ENVIRONMENT
                     "ATOLL_ALGO_CACHE=/dev/null;ATOLL_ATTENTION=exact;${cudnn}")
