# test_cublaslt: what gpu/cuda_gemm*.c ask of the true cuBLASLt (cublaslt_stub.h). Only where the toolkit is.
add_library(cuda_products STATIC ${CMAKE_SOURCE_DIR}/gpu/cuda_gemm.c ${CMAKE_SOURCE_DIR}/gpu/cuda_gemm_time.c)
target_include_directories(cuda_products SYSTEM PUBLIC ${ATOLL_CUDA_INCLUDE})
target_link_libraries(cuda_products PUBLIC atoll_gpu ${ATOLL_CUDA_CUBLASLT})
add_executable(test_cublaslt cuda/test_cublaslt.c cuda/cublaslt_stub.c)
target_link_libraries(test_cublaslt PRIVATE cuda_products ${all_libraries} PkgConfig::CMOCKA)
add_test(NAME test_cublaslt COMMAND test_cublaslt WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(test_cublaslt PROPERTIES LABELS parity TIMEOUT 120)
if(NOT COMMAND atoll_planted_copy) # sanitizers
    return()
endif()

function(atoll_planted_cublaslt name test source from to)
    atoll_planted_copy(cublaslt ${name} ${test} gpu/${source}.c "${from}" "${to}")
    if(copy)
        atoll_planted_program(cublaslt ${name} test_cublaslt ${copy} cuda_products)
    endif()
endfunction()

atoll_planted_cublaslt(aux_of_the_wrong_row_stride test_products cuda_gemm
    "int64_t ld = (int64_t)s->ldc;" "int64_t ld = (int64_t)s->n;")
atoll_planted_cublaslt(aux_of_no_call test_products cuda_gemm
    "SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->aux);" "CUBLAS_STATUS_SUCCESS;")
atoll_planted_cublaslt(sums_of_the_other_operand test_products cuda_gemm
    "CUBLASLT_EPILOGUE_BGRADA" "CUBLASLT_EPILOGUE_BGRADB")
atoll_planted_cublaslt(sums_go_to_the_bias test_products cuda_gemm
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->sums" "CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias")
atoll_planted_cublaslt(bias_read_where_it_lies test_products cuda_gemm
    "if ((uintptr_t)bias % GEMM_VECTOR_BYTES == 0) return bias;" "if (bias) return bias;")
atoll_planted_cublaslt(half_of_the_bias test_products cuda_gemm
    "cudaMemcpyAsync(place, bias, bytes," "cudaMemcpyAsync(place, bias, bytes / 2,")
atoll_planted_cublaslt(operands_not_exchanged test_products cuda_gemm
    "call->b, g->first, call->a, g->second" "call->a, g->first, call->b, g->second")
atoll_planted_cublaslt(parts_summed_in_bf16 test_products cuda_gemm
    "g->shape.bf16_out ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_MASK"
    "CUBLASLT_REDUCTION_SCHEME_MASK")
atoll_planted_cublaslt(slower_form_taken test_faster cuda_gemm_time
    "least[1] < least[0] ? FORM_FUSED : FORM_APART" "least[1] < least[0] ? FORM_APART : FORM_FUSED")
atoll_planted_cublaslt(kernel_not_timed test_faster cuda_gemm_time
    "for (int i = 0; i < RUNS; i++) user->run(user->ctx, g, &t->call);"
    "for (int i = 0; i < RUNS; i++) cuda_rt_gemm(rt, g, &t->call);")
atoll_planted_cublaslt(form_forgotten test_faster cuda_gemm_time
    "if (form) (void)!algo_cache_put(" "if (!form) (void)!algo_cache_put(")
atoll_planted_cublaslt(form_kept_and_not_looked_at test_faster cuda_gemm_time
    "return (int)words[0];" "return 0;")
atoll_planted_cublaslt(algorithm_of_the_plain_product test_faster cuda_gemm_time
    "s->slope ? \"+slope\" : s->sums ? \"+sums\" : \"\"" "\"\"")
atoll_planted_cublaslt(refusal_taken_for_an_error test_apart cuda_gemm_time
    "bool runs = cuda_gemm_multiply(rt, fused, &fused->algo[GEMM_VECTOR], &t.call) == CUBLAS_STATUS_SUCCESS;"
    "bool runs = true;")
atoll_planted_cublaslt(timed_though_it_is_off test_asked_for cuda_gemm_time
    "if (timed && (!may_time() || " "if (timed && (")
atoll_planted_cublaslt(taken_at_any_address test_takes cuda_gemm
    "if (g->shape.slope) all |= (uintptr_t)call->aux;" "")

atoll_planted_test(cublaslt)
