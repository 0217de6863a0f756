# Links the sources of gpu/ that call NVIDIA's libraries with stubs of these libraries. Needs the toolkit's headers.
#   test_cuda_nccl         tests of the calls of NCCL
#   atoll_cuda_stubbed.so  the whole plugin, for test_library_failures, test_stubbed_* and programs

add_library(cuda_real STATIC ${cuda_real})
set(cuda_emulated_threads $<FILTER:$<TARGET_OBJECTS:cuda_host>,INCLUDE,/emulate\\.c|/emulate_product\\.c>)
add_library(cuda_stubs STATIC cuda/stubs/cudart_stub.c cuda/stubs/cublaslt_stub.c
            ${cuda_emulated_threads})
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
    add_library(cudnn_stub MODULE cuda/stubs/cudnn_stub.c)
    target_include_directories(cudnn_stub SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE} ${ATOLL_CUDNN_INCLUDE})
    target_include_directories(cudnn_stub PRIVATE ${CMAKE_SOURCE_DIR})
    set_target_properties(cudnn_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endif()
target_compile_definitions(cuda_real PRIVATE ${cuda_real_definitions})
target_link_libraries(cuda_stubs PUBLIC m Threads::Threads)
target_link_libraries(cuda_real PUBLIC cuda_stubs)

if(ATOLL_CUDA_NCCL)
    add_executable(test_cuda_nccl cuda/stubs/test_cuda_nccl.c)
    target_compile_definitions(test_cuda_nccl PRIVATE ${cuda_real_definitions})
    target_link_libraries(test_cuda_nccl PRIVATE ${test_lib} cuda_real ${all_libraries} PkgConfig::CMOCKA)
    add_test(NAME test_cuda_nccl COMMAND test_cuda_nccl WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_cuda_nccl PROPERTIES LABELS "parity;asan;threads" TIMEOUT 120)
    set_property(DIRECTORY PROPERTY needs_test_cuda_nccl test_cuda_nccl nccl_stub)
    add_dependencies(test_cuda_nccl nccl_stub) # it loads the stub from its own folder
endif()
if(ATOLL_SANITIZE)
    return()
endif()
# The plugin with stubs.
add_library(cuda_stubbed OBJECT ${cuda_files})
target_link_libraries(cuda_stubbed PRIVATE atoll_gpu)
set_target_properties(cuda_stubbed PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(atoll_cuda_stubbed MODULE $<TARGET_OBJECTS:cuda_real> $<TARGET_OBJECTS:cuda_stubs> ${cuda_emulated_threads}
            $<TARGET_OBJECTS:cuda_kernels> $<FILTER:$<TARGET_OBJECTS:cuda_host>,EXCLUDE,/emulator/>
            $<TARGET_OBJECTS:cuda_common> $<TARGET_OBJECTS:cuda_stubbed>)
target_link_libraries(atoll_cuda_stubbed PRIVATE m dl Threads::Threads)
set_target_properties(atoll_cuda_stubbed PROPERTIES PREFIX ""
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})

add_executable(test_library_failures cuda/stubs/test_library_failures.c)
target_include_directories(test_library_failures SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE})
target_link_libraries(test_library_failures PRIVATE ${test_lib} ${all_libraries} PkgConfig::CMOCKA)
add_test(NAME test_library_failures COMMAND test_library_failures WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(test_library_failures PROPERTIES LABELS parity TIMEOUT 480)
set_property(DIRECTORY PROPERTY needs_test_library_failures test_library_failures atoll_cuda_stubbed nccl_stub cudnn_stub)

# The comparisons of the GPU tests in tests/CMakeLists.txt, on the stubbed plugin.
set(plugin ATOLL_CUDA_PLUGIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/atoll_cuda_stubbed.so ATOLL_ALGO_CACHE=/dev/null)
foreach(name IN ITEMS kernels_vectors kernels_rows kernels_layers outer stage theta recompute)
    add_test(NAME test_stubbed_${name} COMMAND gpu_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_stubbed_${name} PROPERTIES LABELS parity TIMEOUT 120
                         ENVIRONMENT "${plugin};ATOLL_ATTENTION=plain;ATOLL_STUB_GPUS=8") # a machine with 8 GPUs
    set_property(DIRECTORY PROPERTY needs_test_stubbed_${name} gpu_${name} atoll_cuda_stubbed nccl_stub)
endforeach()
