#!/usr/bin/env bash
# planted.sh BIN NAME...: every program BIN/planted_NAME must notice its bug; prints which rule it broke, in which run.
set -euo pipefail

bin=$1
shift
missed=0
for name in "$@"; do
    if [[ ! -x $bin/planted_$name ]]; then
        echo "$name: no program: its line is gone, see tests/sim/planted.cmake"
        missed=$((missed + 1))
        continue
    fi
    "$bin/planted_$name" "$name" || missed=$((missed + 1))
done
echo "$(($# - missed)) of $# planted bugs noticed"
((missed == 0))
