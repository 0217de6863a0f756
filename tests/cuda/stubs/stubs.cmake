# Links the sources of gpu/ that call NVIDIA's libraries with stubs of these libraries (cudart_stub.h, cublaslt_stub.h,
# nccl_stub.c, cudnn_stub.c). Needs the toolkit's headers and cuBLASLt's descriptors.
#   test_cublaslt, test_cuda_rt, _nccl, _cudnn_rt   tests of these sources and their calls
#   atoll_cuda_stubbed.so                           the whole plugin, for test_stubbed_* and for programs

add_library(cuda_real STATIC ${cuda_real})
set(cuda_emulated_threads $<FILTER:$<TARGET_OBJECTS:cuda_host>,INCLUDE,/emulate\\.c|/emulate_mma\\.c|/emulate_launch\\.c|/ptx_[a-z]+\\.c>)
add_library(cuda_stubs STATIC cuda/stubs/cudart_stub.c cuda/stubs/cudart_stub_queue.c cuda/stubs/cublaslt_stub.c
            cuda/stubs/cublaslt_objects.c ${cuda_emulated_threads})
foreach(part IN ITEMS cuda_real cuda_stubs)
    target_include_directories(${part} SYSTEM PUBLIC ${ATOLL_CUDA_INCLUDE})
    target_link_libraries(${part} PUBLIC atoll_gpu)
    set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
set(cuda_real_definitions ATOLL_CUDA_OLDEST=${ATOLL_CUDA_OLDEST} ATOLL_CUDA_ARCH_OLDEST=80)
if(ATOLL_CUDA_NCCL)
    target_include_directories(cuda_real SYSTEM PUBLIC ${ATOLL_CUDA_NCCL})
    add_library(nccl_stub MODULE cuda/stubs/nccl_stub.c)
    target_include_directories(nccl_stub SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE} ${ATOLL_CUDA_NCCL})
    target_include_directories(nccl_stub PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(nccl_stub PRIVATE Threads::Threads)
    set_target_properties(nccl_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
if(ATOLL_CUDNN_BUILT)
    list(APPEND cuda_real_definitions ATOLL_CUDNN)
    target_include_directories(cuda_real SYSTEM PUBLIC ${ATOLL_CUDNN_INCLUDE})
    add_library(cudnn_stub MODULE cuda/stubs/cudnn_stub.c cuda/emulator/graph_run.c ${CMAKE_SOURCE_DIR}/common/base/status.c
                ${CMAKE_SOURCE_DIR}/common/base/mem.c)
    target_include_directories(cudnn_stub SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE} ${ATOLL_CUDNN_INCLUDE})
    target_include_directories(cudnn_stub PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(cudnn_stub PRIVATE m)
    set_target_properties(cudnn_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
target_compile_definitions(cuda_real PRIVATE ${cuda_real_definitions})
target_link_libraries(cuda_stubs PUBLIC ${ATOLL_CUDA_CUBLASLT} m Threads::Threads)
target_link_libraries(cuda_real PUBLIC cuda_stubs)

set(tests cublaslt cuda_rt)
if(ATOLL_CUDA_NCCL)
    list(APPEND tests cuda_nccl)
endif()
if(ATOLL_CUDNN_BUILT)
    list(APPEND tests cuda_cudnn_rt)
endif()
foreach(name IN LISTS tests)
    add_executable(test_${name} cuda/stubs/test_${name}.c)
    target_compile_definitions(test_${name} PRIVATE ${cuda_real_definitions})
    target_link_libraries(test_${name} PRIVATE ${test_lib} cuda_real ${all_libraries} PkgConfig::CMOCKA)
    add_test(NAME test_${name} COMMAND test_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_${name} PROPERTIES LABELS "parity;asan;threads" TIMEOUT 120)
endforeach()
if(TARGET test_cuda_cudnn_rt)
    target_sources(test_cuda_cudnn_rt PRIVATE cuda/emulator/graph_run.c ${CMAKE_SOURCE_DIR}/gpu/cuda/cudnn/cuda_attn_graph.c)
endif()
if(ATOLL_SANITIZE)
    return()
endif()
# The plugin with stubs.
add_library(cuda_stubbed OBJECT ${cuda_files})
target_link_libraries(cuda_stubbed PRIVATE atoll_gpu)
set_target_properties(cuda_stubbed PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(atoll_cuda_stubbed MODULE $<TARGET_OBJECTS:cuda_real> $<TARGET_OBJECTS:cuda_stubs> ${cuda_emulated_threads}
            $<TARGET_OBJECTS:cuda_kernels> $<FILTER:$<TARGET_OBJECTS:cuda_host>,EXCLUDE,/emulator/|/ptx/>
            $<TARGET_OBJECTS:cuda_common> $<TARGET_OBJECTS:cuda_stubbed>)
target_link_libraries(atoll_cuda_stubbed PRIVATE ${ATOLL_CUDA_CUBLASLT} m dl Threads::Threads)
set_target_properties(atoll_cuda_stubbed PROPERTIES PREFIX ""
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})

add_library(stubbed_life OBJECT cuda/stubs/stubbed_life.c)
target_include_directories(stubbed_life PRIVATE ${CMAKE_SOURCE_DIR})
target_include_directories(stubbed_life SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE})
foreach(name IN ITEMS test_cuda_failures test_library_failures)
    add_executable(${name} cuda/stubs/${name}.c $<TARGET_OBJECTS:stubbed_life>)
    target_include_directories(${name} SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE})
    target_link_libraries(${name} PRIVATE ${test_lib} ${all_libraries} PkgConfig::CMOCKA)
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES LABELS parity TIMEOUT 240)
endforeach()

# The comparisons of the GPU tests in tests/CMakeLists.txt, on the stubbed plugin.
set(plugin ATOLL_CUDA_PLUGIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/atoll_cuda_stubbed.so ATOLL_ALGO_CACHE=/dev/null)
foreach(name IN ITEMS kernels_vectors kernels_rows kernels_layers outer stage theta recompute)
    add_test(NAME test_stubbed_${name} COMMAND gpu_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_stubbed_${name} PROPERTIES LABELS parity TIMEOUT 120
                         ENVIRONMENT "${plugin};ATOLL_ATTENTION=own;ATOLL_STUB_GPUS=8") # a machine with 8 GPUs
endforeach()
if(ATOLL_CUDNN_BUILT)
    set(cudnn ATOLL_CUDNN_LIBRARY=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libcudnn_stub.so)
    add_test(NAME test_stubbed_cudnn COMMAND gpu_kernels_layers test_attn WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    add_test(NAME test_stubbed_cudnn_exact COMMAND gpu_kernels_layers test_attn WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_stubbed_cudnn PROPERTIES LABELS parity TIMEOUT 120 ENVIRONMENT "${plugin};${cudnn}")
    set_tests_properties(test_stubbed_cudnn_exact PROPERTIES LABELS parity TIMEOUT 120
                         ENVIRONMENT "${plugin};${cudnn};ATOLL_ATTENTION=exact")
endif()
