# The CUDA back end, bin/atoll_cuda.so, installed as lib/atoll/atoll_cuda.so. gpu/plugin.c loads it at run time if
# train.devices selects a GPU, so programs need neither toolkit nor driver. It is built if nvcc and cuBLASLt are found; no other target depends on it.
set(ATOLL_CUDA AUTO CACHE STRING "CUDA back end: AUTO (where a toolkit is found), ON or OFF")
set_property(CACHE ATOLL_CUDA PROPERTY STRINGS AUTO ON OFF)
# 80: A100, 90: H100 and H200. The preset "gpus" for packages adds 86, 89 (consumer GPUs, L40), 100 and 120 (Blackwell).
set(ATOLL_CUDA_ARCHS 80 90 CACHE STRING "Compute capabilities to compile for; the newest also as PTX")
list(SORT ATOLL_CUDA_ARCHS COMPARE NATURAL) # oldest first
set(ATOLL_CUDNN AUTO CACHE STRING "Attention through cuDNN, opened at run time: AUTO (where its headers are) or OFF")
set_property(CACHE ATOLL_CUDNN PROPERTY STRINGS AUTO OFF)
set(ATOLL_CUDA_MEASURED 13.0) # nvcc version with which a spilled register is an error
set(ATOLL_CUDA_OLDEST 12) # major version of the toolkit; Debian 13 and Ubuntu 24.04 package 12
set(ATOLL_CUDA_BUILT OFF)
set(ATOLL_CUDNN_BUILT OFF)

# Sources of the plugin; tests/ builds emulated plugins from them. A few sources of common/ are included, because a
# plugin cannot use the program's symbols.
file(GLOB_RECURSE cuda_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/gpu/cuda_*.cu)
file(GLOB_RECURSE cuda_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/gpu/cuda_*.c)
set(cuda_common ${CMAKE_SOURCE_DIR}/common/base/status.c ${CMAKE_SOURCE_DIR}/common/base/mem.c ${CMAKE_SOURCE_DIR}/common/tensor/delta_format.c
    ${CMAKE_SOURCE_DIR}/common/base/pool.c ${CMAKE_SOURCE_DIR}/common/base/thread.c ${CMAKE_SOURCE_DIR}/common/os/environment.c
    ${CMAKE_SOURCE_DIR}/common/base/number.c ${CMAKE_SOURCE_DIR}/common/base/rng.c)
set(cuda_files ${CMAKE_SOURCE_DIR}/common/base/clock.c ${CMAKE_SOURCE_DIR}/common/os/descriptors.c ${CMAKE_SOURCE_DIR}/common/os/fileio.c ${CMAKE_SOURCE_DIR}/common/os/fork_close.c ${CMAKE_SOURCE_DIR}/common/os/interrupt.c
    ${CMAKE_SOURCE_DIR}/gpu/cuda/rt/algo_cache.c)

# Sets ATOLL_CUDA_MISSING to the missing part of the toolkit, or to the empty string. Removes from cuda_host the sources
# that the toolkit does not support.
function(atoll_cuda_find)
    find_program(ATOLL_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    if(NOT ATOLL_NVCC)
        set(ATOLL_CUDA_MISSING "no nvcc" PARENT_SCOPE)
        return()
    endif()
    file(REAL_PATH ${ATOLL_NVCC} nvcc)
    execute_process(COMMAND ${ATOLL_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9.]+)" nvcc_version "${nvcc_version}")
    set(version "${CMAKE_MATCH_1}")
    set(ATOLL_CUDA_VERSION "${version}" PARENT_SCOPE)
    if(NOT version OR version VERSION_LESS ATOLL_CUDA_OLDEST)
        set(ATOLL_CUDA_MISSING "${nvcc} is CUDA ${version}, older than ${ATOLL_CUDA_OLDEST}" PARENT_SCOPE)
        return()
    endif()
    get_filename_component(toolkit ${nvcc} DIRECTORY)
    get_filename_component(toolkit ${toolkit} DIRECTORY)
    find_path(ATOLL_CUDA_INCLUDE cublasLt.h HINTS ${toolkit}/include ${toolkit}/targets/x86_64-linux/include)
    find_library(ATOLL_CUDA_CUBLASLT cublasLt HINTS ${toolkit}/lib64 ${toolkit}/targets/x86_64-linux/lib)
    find_library(ATOLL_CUDA_CUDART cudart_static HINTS ${toolkit}/lib64 ${toolkit}/targets/x86_64-linux/lib)
    if(NOT ATOLL_CUDA_INCLUDE OR NOT ATOLL_CUDA_CUBLASLT OR NOT ATOLL_CUDA_CUDART)
        set(ATOLL_CUDA_MISSING "no cuBLASLt or static cudart beside ${nvcc}" PARENT_SCOPE)
        return()
    endif()
    find_path(ATOLL_CUDA_NCCL nccl.h HINTS ${toolkit}/include ${toolkit}/targets/x86_64-linux/include) # optional
    if(ATOLL_CUDA_NCCL)
        list(FILTER cuda_host EXCLUDE REGEX "/cuda_nccl_none\\.c$")
    else()
        list(FILTER cuda_host EXCLUDE REGEX "/cuda_nccl\\.c$")
    endif()
    set(cuda_host ${cuda_host} PARENT_SCOPE)
    if(NOT ATOLL_NVCC_TRIED STREQUAL ATOLL_NVCC) # try once: nvcc needs a C++ compiler that it supports
        set(probe ${CMAKE_BINARY_DIR}/cuda/probe.cu)
        file(WRITE ${probe} "__global__ void probe(int *p) { *p = 1; }\n")
        execute_process(COMMAND ${ATOLL_NVCC} -c ${probe} -o ${probe}.o RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
        set(ATOLL_NVCC_RESULT "${result}" CACHE INTERNAL "exit code of nvcc")
        set(ATOLL_NVCC_TRIED ${ATOLL_NVCC} CACHE INTERNAL "the nvcc that was tried")
    endif()
    if(NOT ATOLL_NVCC_RESULT STREQUAL 0)
        set(ATOLL_CUDA_MISSING "${nvcc} cannot compile (is there a C++ compiler?)" PARENT_SCOPE)
        return()
    endif()
    set(ATOLL_CUDA_MISSING "" PARENT_SCOPE)
endfunction()

# cuDNN's headers. Set ATOLL_CUDNN_INCLUDE if they are not in the toolkit, for example nvidia/cudnn/include of a wheel.
function(atoll_cudnn_find)
    if(ATOLL_CUDNN)
        find_path(ATOLL_CUDNN_INCLUDE cudnn_backend.h HINTS ${ATOLL_CUDA_INCLUDE} ENV CUDNN_HOME PATH_SUFFIXES include)
    endif()
    if(ATOLL_CUDNN AND ATOLL_CUDNN_INCLUDE)
        set(ATOLL_CUDNN_BUILT ON PARENT_SCOPE)
        set(ATOLL_CUDNN_SAYS ", cuDNN headers in ${ATOLL_CUDNN_INCLUDE}" PARENT_SCOPE)
    else()
        set(ATOLL_CUDNN_SAYS ", no cuDNN" PARENT_SCOPE)
    endif()
endfunction()

# Flags of all kernels. --fmad=false: the source, not the compiler, decides whether a*b+c is rounded once or twice.
set(cuda_flags -std=c++17 -O3 --fmad=false -I${CMAKE_SOURCE_DIR})

# Builds one object from one .cu and appends it to `objects`.
# - A spilled register is an error with nvcc ATOLL_CUDA_MEASURED; other versions may spill a few.
# - The output of ptxas goes to cuda/NAME.ptxas (tests/cuda/test_cuda_spills.sh).
function(atoll_cuda_object source)
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    set(log ${CMAKE_BINARY_DIR}/cuda/${name}.ptxas)
    set(codes)
    foreach(arch IN LISTS ATOLL_CUDA_ARCHS)
        list(APPEND codes -gencode arch=compute_${arch},code=sm_${arch})
        set(newest ${arch})
    endforeach()
    set(warnings)
    if(ATOLL_WERROR)
        set(warnings --Werror all-warnings -Xcompiler -Werror)
    endif()
    set(spills)
    if(ATOLL_CUDA_VERSION VERSION_EQUAL ATOLL_CUDA_MEASURED)
        set(spills --warn-on-spills,-Werror,)
    endif()
    # No C++ runtime: nvcc's may differ from that of cc, which links.
    set(host -fPIC,-Wall,-Wextra,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics)
    set(command ${ATOLL_NVCC} -c ${source} -o ${object} -MD -MF ${object}.d ${cuda_flags} ${codes}
        -gencode arch=compute_${newest},code=compute_${newest} -Xcompiler ${host} ${warnings}
        -Xptxas ${spills}-v)
    list(JOIN command " " line)
    set(without "to build without the CUDA back end: cmake -DATOLL_CUDA=OFF ${CMAKE_BINARY_DIR}, then again")
    set(failed "{ cat ${log}; echo '${without}'; rm -f ${object}; exit 1; }")
    add_custom_command(OUTPUT ${object} BYPRODUCTS ${log} DEPENDS ${source} DEPFILE ${object}.d
        COMMAND sh -c "mkdir -p ${CMAKE_BINARY_DIR}/cuda && { ${line} >${log} 2>&1 || ${failed} }"
        COMMENT "Building CUDA object cuda/${name}.o" VERBATIM)
    set(objects ${objects} ${object} PARENT_SCOPE)
endfunction()

function(atoll_cuda_plugin)
    foreach(kernel IN LISTS cuda_kernels)
        atoll_cuda_object(${kernel})
    endforeach()
    add_library(atoll_cuda MODULE ${cuda_host} ${cuda_common} ${cuda_files} ${objects})
    list(GET ATOLL_CUDA_ARCHS 0 oldest)
    string(REGEX MATCH "^[0-9]+" oldest ${oldest}) # 90a -> 90
    target_compile_definitions(atoll_cuda PRIVATE ATOLL_CUDA_OLDEST=${ATOLL_CUDA_OLDEST}
                               ATOLL_CUDA_ARCH_OLDEST=${oldest})
    target_include_directories(atoll_cuda PRIVATE ${CMAKE_SOURCE_DIR})
    target_include_directories(atoll_cuda SYSTEM PRIVATE ${ATOLL_CUDA_INCLUDE})
    if(ATOLL_CUDA_NCCL) # the plugin loads the library at run time
        target_include_directories(atoll_cuda SYSTEM PRIVATE ${ATOLL_CUDA_NCCL})
    endif()
    if(ATOLL_CUDNN_BUILT)
        target_compile_definitions(atoll_cuda PRIVATE ATOLL_CUDNN)
        target_include_directories(atoll_cuda SYSTEM PRIVATE ${ATOLL_CUDNN_INCLUDE})
    endif()
    target_link_libraries(atoll_cuda PRIVATE ${ATOLL_CUDA_CUDART} ${ATOLL_CUDA_CUBLASLT} m dl rt Threads::Threads)
    target_link_options(atoll_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
    set_target_properties(atoll_cuda PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
endfunction()

if(ATOLL_CUDA STREQUAL AUTO AND (ATOLL_SANITIZE OR ATOLL_FUZZ))
    message(STATUS "CUDA back end: not in this build (sanitizers)")
    atoll_cuda_find() # tests/cuda/stubs/stubs.cmake needs the headers
elseif(ATOLL_CUDA)
    atoll_cuda_find()
    if(NOT ATOLL_CUDA_MISSING)
        atoll_cudnn_find()
        atoll_cuda_plugin()
        set(ATOLL_CUDA_BUILT ON)
        message(STATUS "CUDA back end: ${ATOLL_NVCC}, sm ${ATOLL_CUDA_ARCHS}${ATOLL_CUDNN_SAYS}")
    elseif(ATOLL_CUDA STREQUAL AUTO)
        message(STATUS "CUDA back end: not built: ${ATOLL_CUDA_MISSING}")
    else()
        message(FATAL_ERROR "CUDA back end: ${ATOLL_CUDA_MISSING}: install the toolkit, or -DATOLL_CUDA=OFF")
    endif()
endif()
if(NOT ATOLL_CUDA_BUILT) # programs would still load the plugin of an earlier configuration
    file(REMOVE ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/atoll_cuda.so)
endif()
