# The kernels as PTX (cuda/ptx/*.ptx in the build, what the plugin holds: gpu/cuda.cmake), which tests look at and carry out
# (tests/cuda/ptx.h): the comparisons of tests/parity once more, with what nvcc made of the kernels.
list(GET ATOLL_CUDA_ARCHS -1 newest)

# Every kernel is in one of the first five; then far into large arrays, whole models and the outer path.
foreach(name IN ITEMS kernels_vectors kernels_rows kernels_layers delta muon far outer theta bf16 recompute)
    set(labels parity)
    if(name MATCHES "^(outer|theta|bf16|recompute)$")
        list(APPEND labels long)
    endif()
    add_test(NAME test_cuda_${name}_ptx COMMAND test_cuda_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_cuda_${name}_ptx PROPERTIES LABELS "${labels}" TIMEOUT 240
                         ENVIRONMENT ATOLL_EMULATED_PTX=${cuda_ptx_folder})
endforeach()

add_test(NAME test_cuda_rounding COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/cuda/test_cuda_rounding.sh ${cuda_ptx_folder}
         ${ATOLL_NVCC} -arch=compute_${newest} ${cuda_flags} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
add_test(NAME test_cuda_speed COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/cuda/test_cuda_speed.sh ${cuda_ptx_folder}
         ${ATOLL_NVCC} -arch=compute_${newest} ${cuda_flags} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(test_cuda_rounding test_cuda_speed PROPERTIES LABELS lint TIMEOUT 120)
