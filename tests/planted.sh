#!/usr/bin/env bash
# planted.sh BIN SUITE NAME:TEST:[CHECKED]...: test TEST (all where it is empty) of every program BIN/planted_SUITE_NAME must
# fail, with CHECKED by a word of the checker (tests/cuda/races.h), never for want of a file; prints how it noticed. A program
# loads the plugin BIN/planted_SUITE_NAME.so where there is one.
set -euo pipefail

bin=$1
suite=$2
shift 2
missed=0
for bug in "$@"; do
    IFS=: read -r name test checked <<<"$bug"
    program=$bin/planted_${suite}_$name
    if [[ ! -x $program ]]; then
        echo "$name: no program: its line is gone, see tests/planted.cmake"
        missed=$((missed + 1))
        continue
    fi
    plugin=()
    [[ ! -e $program.so ]] || plugin=(env "ATOLL_CUDA_PLUGIN=$program.so")
    said=$("${plugin[@]}" "$program" ${test:+"$test"} 2>&1) && ended=well || ended=badly
    if [[ $ended == well || $said == *': No such file'* || ($checked == CHECKED && $said != *', code 0x'*) ]]; then
        printf '%-42s NOT NOTICED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E ', code 0x|, line [0-9]+: |off by|want|behind the end|without an event|differs|: loss|^ERROR: |--- .+|Test failed' \
            <<<"$said" || tail -n 1 <<<"$said")
        printf '%-42s %s\n' "$name" "${why#*ERROR*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs noticed"
((missed == 0))
