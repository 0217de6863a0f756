# The CUDA back end with its kernels compiled as C, to run on the CPU: a library for parity/test_cuda_*, and a plugin that
# programs load like the real one.
set_source_files_properties(${cuda_kernels} PROPERTIES LANGUAGE C)
add_compile_definitions(KERNEL_EMULATION="tests/cuda/emulator/emulate_kernel.h")
file(GLOB cuda_emulation CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/emulate*.c)
set(cuda_real ${cuda_host}) # sources that need CUDA's headers, see cuda/stubs/stubs.cmake
list(FILTER cuda_real INCLUDE REGEX "/cuda_(rt|nccl|gemm|cudnn_)[a-z_]*\\.c$")
list(REMOVE_ITEM cuda_host ${cuda_real})
list(APPEND cuda_host ${cuda_emulation} cuda/emulator/graph_run.c)
add_library(cuda_kernels OBJECT ${cuda_kernels})
add_library(cuda_host OBJECT ${cuda_host})
add_library(cuda_common OBJECT ${cuda_common})
foreach(part IN ITEMS cuda_kernels cuda_host cuda_common)
    target_link_libraries(${part} PRIVATE atoll_gpu)
    target_compile_options(${part} PRIVATE $<$<CONFIG:Release>:-O2>) # compiles the kernels in half the time of -O3
    set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endforeach()
add_library(cuda_emulated STATIC $<TARGET_OBJECTS:cuda_kernels> $<TARGET_OBJECTS:cuda_host>)
target_link_libraries(cuda_emulated PUBLIC atoll_gpu)
add_library(atoll_cuda_emulated MODULE $<TARGET_OBJECTS:cuda_kernels> $<TARGET_OBJECTS:cuda_host>
            $<TARGET_OBJECTS:cuda_common>)
target_link_libraries(atoll_cuda_emulated PRIVATE m Threads::Threads)
set_target_properties(atoll_cuda_emulated PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
