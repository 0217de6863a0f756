#!/usr/bin/env bash
# planted.sh BIN SUITE NAME:TEST:[CHECKED|WAITS]...: test TEST (empty: every test) of each program BIN/planted_SUITE_NAME
# must fail; prints its error. A missing file does not count as a failure.
# CHECKED: the checker of tests/cuda/races/races.h must report the error. WAITS: the program sleeps most of its time, so
# these run at the same time. A program loads the plugin BIN/planted_SUITE_NAME.so if it exists.
set -euo pipefail

bin=$1
suite=$2
shift 2
missed=0
waiting=$(mktemp -d)
trap 'rm -rf "$waiting"' EXIT

run_bug() { # name test: prints the output up to the first failed test, and the exit status in the last line
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
        echo "$name: no program, because its line is missing: see tests/planted.cmake"
        missed=$((missed + 1))
        continue
    fi
    if [[ $how == WAITS ]]; then output=$(<"$waiting/$name"); else output=$(run_bug "$name" "$test"); fi
    ended=${output##*$'\n'}
    output=${output%$'\n'*}
    # cmocka 1 reports a failed teardown, but exits with 0.
    if [[ ($ended == 0 && $output != *'GROUP TEARDOWN'*) || $output == *': No such file'* || ($how == CHECKED && $output != *', code 0x'*) ]]; then
        printf '%-42s NOT DETECTED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E ', code 0x|, line [0-9]+: |relative error|expected|past the end|without an event|differs|: loss|^ERROR: |_stub: |--- .+|Test failed' \
            <<<"$output" || tail -n 1 <<<"$output")
        printf '%-42s %s\n' "$name" "${why#*ERROR*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs detected"
((missed == 0))
