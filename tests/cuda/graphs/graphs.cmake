# test_cudnn_graphs: the real cuDNN compiles Atoll's graphs for GPUs that are not present. Needs cuDNN and the toolkit's
# stub of the driver.
find_file(ATOLL_CUDNN_FILE libcudnn.so.9 HINTS ${ATOLL_CUDNN_INCLUDE}/../lib ${ATOLL_CUDNN_INCLUDE}/../lib64
          PATHS /usr/lib/x86_64-linux-gnu)
get_filename_component(cuda_libraries ${ATOLL_CUDA_CUDART} DIRECTORY)
find_file(ATOLL_CUDA_STUB libcuda.so HINTS ${cuda_libraries}/stubs NO_DEFAULT_PATH)
if(NOT ATOLL_CUDNN_FILE OR NOT ATOLL_CUDA_STUB)
    message(STATUS "test_cudnn_graphs: not built: no libcudnn.so.9 or no stub of libcuda.so")
    return()
endif()

set(driver ${CMAKE_CURRENT_BINARY_DIR}/cuda_driver)
execute_process(COMMAND ${CMAKE_NM} -D --defined-only ${ATOLL_CUDA_STUB} OUTPUT_VARIABLE symbols)
string(REGEX MATCHALL " T cu[A-Za-z0-9_]+" names "${symbols}")
list(TRANSFORM names REPLACE " T " "")
list(REMOVE_ITEM names cuLibraryLoadData cuLibraryGetKernel cuLibraryUnload cuKernelGetFunction cuKernelSetAttribute
     cuKernelGetAttribute)
list(REMOVE_DUPLICATES names)
list(TRANSFORM names REPLACE "(.+)" "REFUSE(\\1)")
list(JOIN names "\n" lines)
file(CONFIGURE OUTPUT ${driver}/driver_names.h CONTENT "${lines}\n")
add_library(driver_stub SHARED cuda/graphs/driver_stub.c)
target_include_directories(driver_stub PRIVATE ${driver})
set_target_properties(driver_stub PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1 LIBRARY_OUTPUT_DIRECTORY ${driver})

add_executable(test_cudnn_graphs cuda/graphs/test_cudnn_graphs.c ${CMAKE_SOURCE_DIR}/gpu/cuda/cudnn/cuda_attn_graph.c
               ${CMAKE_SOURCE_DIR}/gpu/cuda/cudnn/cuda_cudnn_lib.c ${CMAKE_SOURCE_DIR}/gpu/cuda/cudnn/cuda_cudnn_plan.c)
target_compile_definitions(test_cudnn_graphs PRIVATE ATOLL_CUDNN)
target_include_directories(test_cudnn_graphs SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE} ${ATOLL_CUDNN_INCLUDE})
target_link_libraries(test_cudnn_graphs PRIVATE atoll_common ${CMAKE_DL_LIBS} m)
add_dependencies(test_cudnn_graphs driver_stub)
add_test(NAME test_cudnn_graphs COMMAND test_cudnn_graphs)
set_tests_properties(test_cudnn_graphs PROPERTIES LABELS "parity;long" TIMEOUT 900 SKIP_RETURN_CODE 77
    ENVIRONMENT "LD_LIBRARY_PATH=${driver}:${cuda_libraries};ATOLL_CUDNN_LIBRARY=${ATOLL_CUDNN_FILE}")
atoll_long_target(test_cudnn_graphs)
