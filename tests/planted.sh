#!/usr/bin/env bash
# planted.sh BIN SUITE NAME:TEST...: test TEST (empty: every test) of each program BIN/planted_SUITE_NAME must fail; prints
# its error. A missing file does not count as a failure.
set -euo pipefail

bin=$1
suite=$2
shift 2
missed=0

for bug in "$@"; do
    IFS=: read -r name test <<<"$bug"
    program=$bin/planted_${suite}_$name
    if [[ ! -x $program ]]; then
        echo "$name: no program, because its line is missing: see tests/planted.cmake"
        missed=$((missed + 1))
        continue
    fi
    ended=0
    output=$("$program" ${test:+"$test"} 2>&1) || ended=$?
    # cmocka 1 reports a failed teardown, but exits with 0.
    if [[ ($ended == 0 && $output != *'GROUP TEARDOWN'*) || $output == *': No such file'* ]]; then
        printf '%-42s NOT DETECTED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E ', line [0-9]+: |expected|differs|^ERROR: |--- .+|Test failed' <<<"$output" || tail -n 1 <<<"$output")
        printf '%-42s %s\n' "$name" "${why#*ERROR*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs detected"
((missed == 0))
