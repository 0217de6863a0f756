#!/usr/bin/env bash
# planted_ranks.sh BIN NAME:TEST...: test TEST of every program BIN/planted_ranks_NAME must fail, with the plugin
# planted_plugin_NAME.so where there is one; prints how it noticed.
set -euo pipefail

bin=$1
shift
missed=0
for pair in "$@"; do
    name=${pair%:*} test=${pair#*:}
    plugin=$bin/planted_plugin_$name.so
    [[ -e $plugin ]] || plugin=$bin/atoll_cuda_checked.so
    if [[ ! -x $bin/planted_ranks_$name ]]; then
        echo "$name: no program: its line is gone, see tests/cuda/planted_ranks.cmake"
        missed=$((missed + 1))
        continue
    fi
    if said=$(ATOLL_CUDA_PLUGIN=$plugin "$bin/planted_ranks_$name" "$test" 2>&1); then
        printf '%-40s NOT NOTICED\n' "$name"
        missed=$((missed + 1))
    else
        why=$(grep -m 1 -E 'without an event|is off by|differs|: loss|not made|error:' <<<"$said" || tail -n 1 <<<"$said")
        printf '%-40s %s\n' "$name" "${why#*ERROR*--- }"
    fi
done
echo "$(($# - missed)) of $# planted bugs noticed"
((missed == 0))
