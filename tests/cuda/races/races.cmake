# Data races, and unnecessary or untested barriers (../README.md). All tests are long. The kernels are
# compiled again with -fsanitize=thread; races_calls.c defines the functions that libtsan would.
set(checked_flags -O1 -g -fsanitize=thread)
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    list(APPEND checked_flags -mllvm -tsan-instrument-read-before-write)
endif()
add_library(cuda_checked_kernels OBJECT ${cuda_kernels})
target_link_libraries(cuda_checked_kernels PRIVATE atoll_gpu)
target_compile_options(cuda_checked_kernels PRIVATE ${checked_flags})
add_library(cuda_checked STATIC $<TARGET_OBJECTS:cuda_checked_kernels> $<TARGET_OBJECTS:cuda_host> cuda/races/races.c
            cuda/races/races_calls.c cuda/races/barriers.c)
target_link_libraries(cuda_checked PUBLIC atoll_gpu)
target_link_options(cuda_checked INTERFACE LINKER:--wrap=memcpy,--wrap=memmove,--wrap=memset)

# A plugin that records the bytes each kernel accesses, for tests with several queues and GPUs.
add_library(cuda_recorded OBJECT cuda/races/queue_record.c cuda/races/races_calls.c)
target_link_libraries(cuda_recorded PRIVATE atoll_gpu)
set_target_properties(cuda_recorded cuda_checked_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(atoll_cuda_checked MODULE $<TARGET_OBJECTS:cuda_checked_kernels> $<TARGET_OBJECTS:cuda_recorded>
            $<TARGET_OBJECTS:cuda_host> $<TARGET_OBJECTS:cuda_common>)
target_link_libraries(atoll_cuda_checked PRIVATE m Threads::Threads)
target_link_options(atoll_cuda_checked PRIVATE LINKER:--wrap=memcpy,--wrap=memmove,--wrap=memset)
set_target_properties(atoll_cuda_checked PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})

# NAME_checked: a test of the emulated kernels that checks every memory access.
foreach(name IN LISTS cuda_emulated_tests)
    add_executable(${name}_checked $<TARGET_OBJECTS:${name}>)
    target_link_libraries(${name}_checked PRIVATE ${test_lib} cuda_checked ${all_libraries} PkgConfig::CMOCKA)
    atoll_long_target(${name}_checked)
    add_test(NAME ${name}_checked COMMAND ${name}_checked WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name}_checked PROPERTIES LABELS "parity;long" TIMEOUT 240 SKIP_RETURN_CODE 77)
endforeach()
add_test(NAME test_ranks_recorded COMMAND test_ranks test_gpus WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(test_ranks_recorded PROPERTIES LABELS "parity;long" TIMEOUT 240
                     ENVIRONMENT ATOLL_CUDA_PLUGIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/atoll_cuda_checked.so)

# Each barrier is left out once. The tests of single kernels reach every barrier.
set(barrier_tests ${cuda_emulated_tests})
list(FILTER barrier_tests INCLUDE REGEX "_(kernels|delta|muon)")
list(TRANSFORM barrier_tests APPEND _checked)
add_test(NAME test_cuda_barriers
         COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/barriers.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${barrier_tests}
         WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
set_tests_properties(test_cuda_barriers PROPERTIES LABELS "parity;long" TIMEOUT 600)
atoll_long_target(atoll_cuda_checked cuda_checked cuda_checked_kernels cuda_recorded)
