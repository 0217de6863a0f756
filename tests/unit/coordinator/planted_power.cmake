# Planted bugs: code that relies on files before they are safe from a power cut.
function(atoll_planted_power name test source from to)
    atoll_planted_copy(power ${name} ${test} ${source} "${from}" "${to}")
    if(copy)
        atoll_planted_program(power ${name} test_powercut ${copy} powercut)
    endif()
endfunction()

atoll_planted_power(renamed_before_fsync test_written_file_is_whole_after_power_cut common/os/fileio.c
    "if (fsync(out->fd) != 0)" "if (0)")
atoll_planted_power(name_not_synced test_written_file_is_whole_after_power_cut common/os/fileio.c
    "enum status status = sync_parent(out->path, err);" "enum status status = STATUS_OK;")
atoll_planted_power(folder_not_synced test_written_file_is_whole_after_power_cut common/os/fileio.c
    "if (mkdir(part, 0777) == 0)\n            TRY(sync_name(part, err));\n        else if (errno"
    "if (mkdir(part, 0777) != 0 && errno")
atoll_planted_power(overwritten_in_place test_written_file_is_whole_after_power_cut common/os/fileio.c
    "if (!spare) TRY(temporary_name(path, own, sizeof own, err));" "snprintf(own, sizeof own, \"%s\", path);")
atoll_planted_power(state_not_synced test_saved_state_survives_power_cut common/os/fileio.c
    "if (size) out->synced = false;" "out->synced = true;")
atoll_planted_power(state_overwritten test_saved_state_survives_power_cut worker/outer/state_dir.c
    "\"%s/state.spare.bin\"" "\"%s/state.bin\"")
atoll_planted_power(state_before_its_ranks test_state_of_ranks_survives_power_cut worker/outer/rank_file.c
    "if (tags[i] == tag) return true;" "if (tags[0] == tag) return true;")
atoll_planted_power(segment_name_not_synced test_run_survives_power_cut coordinator/ledger/store_disk.c
    "return dir_sync(path, err);" "return STATUS_OK;")
atoll_planted_power(journal_not_synced test_run_survives_power_cut coordinator/ledger/store_disk.c
    "return fdatasync(store_disk_of(s)->fd) ?" "return 0 ?")
atoll_planted_power(journal_deleted_before_checkpoint test_run_survives_power_cut coordinator/ledger/store_disk_checkpoints.c
    "if (gone) TRY(dir_sync(path, err));" "")
atoll_planted_power(state_not_deleted_first test_run_survives_power_cut coordinator/ledger/store_disk_checkpoints.c
    "bool gone = !unlink(path);" "bool gone = false;")
atoll_planted_power(incomplete_checkpoint_stays test_run_survives_power_cut coordinator/ledger/store_disk_checkpoints.c
    "if (!whole && holds_only_ours(sub) && !folder_remove(sub))" "if (0)")

atoll_planted_test(power)
