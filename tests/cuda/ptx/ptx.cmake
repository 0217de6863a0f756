# Tests of what nvcc and ptxas make of the kernels (../README.md). The build keeps the PTX in cuda/ptx/*.ptx. All tests
# are long.
list(GET ATOLL_CUDA_ARCHS -1 newest)

function(atoll_ptx_script name timeout)
    add_test(NAME test_cuda_${name} COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/test_cuda_${name}.sh ${ARGN}
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_cuda_${name} PROPERTIES LABELS "lint;long" TIMEOUT ${timeout} SKIP_RETURN_CODE 77
                         ENVIRONMENT ATOLL_NVCC=${ATOLL_NVCC})
endfunction()
list(JOIN ATOLL_CUDA_ARCHS " " archs)
atoll_ptx_script(resources 60 ${CMAKE_BINARY_DIR}/cuda ${archs} $<TARGET_FILE:atoll_cuda>)
atoll_ptx_script(rounding 120 ${cuda_ptx_folder} ${ATOLL_NVCC} -arch=compute_${newest} ${cuda_flags})
atoll_ptx_script(speed 120 ${cuda_ptx_folder} ${ATOLL_NVCC} -arch=compute_${newest} ${cuda_flags})
atoll_ptx_script(archs 1500)
