#!/usr/bin/env bash
# planted_worker.sh BIN NAME...: the test BIN/planted_NAME must fail; prints how it noticed.
set -euo pipefail

bin=$1
shift
missed=0
for name in "$@"; do
    if [[ ! -x $bin/planted_$name ]]; then
        echo "$name: no program: its line is gone, see tests/parity/planted_worker.cmake"
        missed=$((missed + 1))
    elif said=$("$bin/planted_$name" 2>&1); then
        printf '%-34s NOT NOTICED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E '^ERROR: |--- .+' <<<"$said" || tail -n 1 <<<"$said")
        printf '%-34s %s\n' "$name" "${why#*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs noticed"
((missed == 0))
