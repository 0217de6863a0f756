# Planted bugs prove that tests detect errors. A list (sim/planted.cmake, unit/coordinator/planted_power.cmake) makes programs
# with one changed line in one source, in the build folder: the tree has no hooks for this.
# test_SUITE_planted (planted.sh) runs them and fails if a bug stays undetected. They belong to the long tests, because
# they build some 70 programs. A missing line stops any configuration if warnings are errors; otherwise it fails the test.

# Sets `copy` to `source` with `from` replaced by `to`; empty if the line is missing. test: the name of the test that should
# fail, empty for all tests of the program.
function(atoll_planted_copy suite name test source from to)
    if(TEST test_${suite}_planted)
        message(FATAL_ERROR "${name} is planted after atoll_planted_test(${suite}), which would not run it")
    endif()
    set(path ${CMAKE_SOURCE_DIR}/${source})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    set_property(DIRECTORY APPEND PROPERTY planted_${suite} ${name}:${test})
    file(READ ${path} text)
    string(REPLACE "${from}" "${to}" changed "${text}")
    if(changed STREQUAL text)
        set(kind WARNING)
        if(ATOLL_WERROR)
            set(kind SEND_ERROR)
        endif()
        message(${kind} "${source} has no line \"${from}\": ${name} cannot be planted for test_${suite}_planted")
        file(REMOVE ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/planted_${suite}_${name}) # an older one
        set(copy "" PARENT_SCOPE)
        return()
    endif()
    get_filename_component(file ${source} NAME_WE)
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/planted_${suite}/${name}/${file}.c)
    file(CONFIGURE OUTPUT ${copy} CONTENT "${changed}" @ONLY)
    set_property(SOURCE ${copy} PROPERTY COMPILE_OPTIONS -w ${quick})
    set(copy ${copy} PARENT_SCOPE)
endfunction()

# The program of a bug: the objects of target `main`, the changed source before the libraries with the original, and more
# libraries before those.
function(atoll_planted_program suite name main copy)
    add_executable(planted_${suite}_${name} $<TARGET_OBJECTS:${main}> ${copy})
    target_link_libraries(planted_${suite}_${name} PRIVATE ${test_lib} ${ARGN} ${all_libraries} PkgConfig::CMOCKA)
    atoll_long_target(planted_${suite}_${name})
endfunction()

# A bug that any test of `main` may detect.
function(atoll_planted_bug suite name main source from to)
    atoll_planted_copy(${suite} ${name} "" ${source} "${from}" "${to}")
    if(copy)
        atoll_planted_program(${suite} ${name} ${main} ${copy})
    endif()
endfunction()

function(atoll_planted_test suite)
    get_property(bugs DIRECTORY PROPERTY planted_${suite})
    add_test(NAME test_${suite}_planted
             COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/planted.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${suite} ${bugs}
             WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(test_${suite}_planted PROPERTIES LABELS "planted;long" TIMEOUT 600)
    list(TRANSFORM bugs REPLACE "^([^:]*):.*" "planted_${suite}_\\1")
    set_property(DIRECTORY PROPERTY needs_test_${suite}_planted ${bugs})
endfunction()
