#!/usr/bin/env bash
# planted_cuda.sh BIN NAME:TEST:[CHECKED]...: test TEST of every program BIN/planted_cuda_NAME must fail, with CHECKED by
# a word of the checker (races.h); prints how it noticed.
set -euo pipefail

bin=$1
shift
missed=0
for pair in "$@"; do
    IFS=: read -r name test checked <<<"$pair"
    if [[ ! -x $bin/planted_cuda_$name ]]; then
        echo "$name: no program: its line is gone, see tests/cuda/planted_cuda.cmake"
        missed=$((missed + 1))
        continue
    fi
    said=$("$bin/planted_cuda_$name" "$test" 2>&1) && ended=well || ended=badly
    if [[ $ended == well || ($checked == CHECKED && $said != *', code 0x'*) ]]; then
        printf '%-40s NOT NOTICED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E ', code 0x|, line [0-9]+: |off by|want|behind the end|Test failed' <<<"$said" || tail -n 1 <<<"$said")
        printf '%-40s %s\n' "$name" "${why#*ERROR*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs noticed"
((missed == 0))
