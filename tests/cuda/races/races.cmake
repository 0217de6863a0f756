# Data races in kernels (../README.md). All tests are long. The kernels are compiled again with -fsanitize=thread;
# races_calls.c defines the functions that libtsan would.
set(checked_flags -O1 -g -fsanitize=thread)
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    list(APPEND checked_flags -mllvm -tsan-instrument-read-before-write)
endif()
add_library(cuda_checked_kernels OBJECT ${cuda_kernels})
target_link_libraries(cuda_checked_kernels PRIVATE atoll_gpu)
target_compile_options(cuda_checked_kernels PRIVATE ${checked_flags})
add_library(cuda_checked STATIC $<TARGET_OBJECTS:cuda_checked_kernels> $<TARGET_OBJECTS:cuda_host> cuda/races/races.c
            cuda/races/races_calls.c)
target_link_libraries(cuda_checked PUBLIC atoll_gpu)
target_link_options(cuda_checked INTERFACE LINKER:--wrap=memcpy,--wrap=memmove,--wrap=memset)
atoll_long_target(cuda_checked cuda_checked_kernels)

# NAME_checked: a test of the emulated kernels that checks every memory access.
foreach(name IN LISTS cuda_emulated_tests)
    add_executable(${name}_checked $<TARGET_OBJECTS:${name}>)
    target_link_libraries(${name}_checked PRIVATE ${test_lib} cuda_checked ${all_libraries} PkgConfig::CMOCKA)
    atoll_long_target(${name}_checked)
    add_test(NAME ${name}_checked COMMAND ${name}_checked WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name}_checked PROPERTIES LABELS "parity;long" TIMEOUT 240 SKIP_RETURN_CODE 77)
endforeach()
