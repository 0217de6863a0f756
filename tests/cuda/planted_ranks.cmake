# Planted bugs of several GPUs: an order that is forgotten has to be noticed by test_ranks, by wrong numbers or because the
# emulation knows which bytes each operation touches (tests/cuda/emulate_clock.c, queue_record.c). Each entry is test_ranks, or
# the plugin it loads, with one line of one source changed.
set(planted_ranks)
add_library(planted_ranks OBJECT parity/test_ranks.c)
target_link_libraries(planted_ranks PRIVATE ${test_lib} ${all_libraries} PkgConfig::CMOCKA)

function(atoll_planted_rank name test source from to)
    set(path ${CMAKE_SOURCE_DIR}/${source}.c)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(READ ${path} text)
    string(REPLACE "${from}" "${to}" changed "${text}")
    set(planted_ranks ${planted_ranks} ${name}:${test} PARENT_SCOPE)
    if(changed STREQUAL text)
        message(WARNING "tests/cuda/planted_ranks.cmake: ${source} has no line \"${from}\": ${name} cannot be planted")
        return() # no program: test_ranks_planted fails
    endif()
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/planted_ranks/${name}.c)
    file(CONFIGURE OUTPUT ${copy} CONTENT "${changed}" @ONLY)
    set_property(SOURCE ${copy} PROPERTY COMPILE_OPTIONS -Wno-unused -Wno-unused-but-set-variable)
    set(worker)
    if(source MATCHES "^worker")
        set(worker ${copy})
    endif()
    add_executable(planted_ranks_${name} $<TARGET_OBJECTS:planted_ranks> ${worker})
    target_link_libraries(planted_ranks_${name} PRIVATE ${test_lib} ${all_libraries} PkgConfig::CMOCKA)
    if(NOT worker)
        atoll_checked_plugin(planted_plugin_${name} ${copy})
    endif()
endfunction()

atoll_planted_rank(parameters_not_waited_for test_gpus worker/shard_exchange
    "x->coll->ops->wait(x->coll, THETA_TICKETS + b);" "")
atoll_planted_rank(gradients_not_waited_for test_gpus worker/shard_exchange
    "b++) x->coll->ops->wait(x->coll, b);" "b++) continue;")
atoll_planted_rank(gradients_go_before_they_are_final test_gpus worker/shard_exchange
    "x->final[b] == shard_bucket_params(map, b) && x->warm" "x->final[b] == part && x->warm")
atoll_planted_rank(norm_of_one_rank test_gpus worker/inner_shard
    "(size_t)s->map->ranks * n, s->sums, sumsq" "n, s->sums, sumsq")
atoll_planted_rank(sums_not_waited_for test_gpus worker/inner_shard
    "s->coll->ops->wait(s->coll, COLLECTIVE_TICKETS - 1);" "")
atoll_planted_rank(moments_in_another_place test_other_number_of_ranks worker/inner_shard
    "to + p->state, from + p->offset" "to + p->state, from + p->state")
atoll_planted_rank(collectives_wait_for_nothing test_gpus gpu/cuda_collective
    "cuda_rt_wait(m->rt, CUDA_COMM, m->enter);" "")
atoll_planted_rank(device_waits_for_nothing test_gpus gpu/cuda_collective
    "cuda_rt_wait(m->rt, CUDA_MAIN, m->done[ticket]);" "")
atoll_planted_rank(image_is_not_told test_gpus_bf16 gpu/cuda_collective
    "cuda_written(m->cuda, buf, n * sizeof *buf);" "")

add_test(NAME test_ranks_planted
         COMMAND bash cuda/planted_ranks.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${planted_ranks}
         WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
set_tests_properties(test_ranks_planted PROPERTIES LABELS planted TIMEOUT 240)
