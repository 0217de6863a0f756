#!/usr/bin/env bash
# planted.sh BIN SUITE NAME:TEST:[CHECKED|WAITS]...: test TEST (all where it is empty) of every program
# BIN/planted_SUITE_NAME must fail, with CHECKED by a word of the checker (tests/cuda/races/races.h), never for want of a file;
# prints how it noticed. Those that mostly wait (WAITS) do so all at a time. A program loads the plugin
# BIN/planted_SUITE_NAME.so where there is one.
set -euo pipefail

bin=$1
suite=$2
shift 2
missed=0
waiting=$(mktemp -d)
trap 'rm -rf "$waiting"' EXIT

run_bug() { # name test: what it says up to the first test that fails, and in the last line how it ended
    local program=$bin/planted_${suite}_$1 plugin=() ended=0
    [[ ! -e $program.so ]] || plugin=(env "ATOLL_CUDA_PLUGIN=$program.so")
    "${plugin[@]}" "$program" ${2:+"$2"} 2>&1 | sed '/^\[  FAILED  \]/q' || ended=${PIPESTATUS[0]}
    ((ended != 142)) || printf '\n--- hung until its alarm'
    printf '\n%s\n' "$ended"
}

for bug in "$@"; do
    IFS=: read -r name test how <<<"$bug"
    [[ $how != WAITS || ! -x $bin/planted_${suite}_$name ]] || run_bug "$name" "$test" >"$waiting/$name" 2>&1 &
done
wait
for bug in "$@"; do
    IFS=: read -r name test how <<<"$bug"
    if [[ ! -x $bin/planted_${suite}_$name ]]; then
        echo "$name: no program: its line is gone, see tests/planted.cmake"
        missed=$((missed + 1))
        continue
    fi
    if [[ $how == WAITS ]]; then said=$(<"$waiting/$name"); else said=$(run_bug "$name" "$test"); fi
    ended=${said##*$'\n'}
    said=${said%$'\n'*}
    # A teardown that fails is reported, and cmocka 1 ends with 0 all the same.
    if [[ ($ended == 0 && $said != *'GROUP TEARDOWN'*) || $said == *': No such file'* || ($how == CHECKED && $said != *', code 0x'*) ]]; then
        printf '%-42s NOT NOTICED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E ', code 0x|, line [0-9]+: |off by|want|behind the end|without an event|differs|: loss|^ERROR: |_stub: |--- .+|Test failed' \
            <<<"$said" || tail -n 1 <<<"$said")
        printf '%-42s %s\n' "$name" "${why#*ERROR*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs noticed"
((missed == 0))
