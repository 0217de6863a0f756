#!/usr/bin/env bash
# barriers.sh BIN TEST...: is every barrier of every kernel needed, and its absence noticed? Runs the checked programs
# BIN/TEST, which write down the barriers that they reach, then once more for every one of those with it left out: the
# program must fail. A barrier in a source that no program reaches is an error, too, so a new kernel comes with a test.
set -euo pipefail

bin=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for program in "$@"; do
    start=$(date +%s%N)
    CUDA_BARRIERS_TO=$work/$program "$bin/$program" >"$work/said" 2>&1 || { cat "$work/said" && exit 1; }
    echo "$(($(date +%s%N) - start)) $program"
    touch "$work/$program"
done >"$work/times"
mapfile -t programs < <(sort -n "$work/times" | cut -d ' ' -f 2) # short ones first

bad=0
reached=$(sort -u "${programs[@]/#/$work/}")
while read -r place; do
    grep -qF "$place " <<<"$reached" && continue
    echo "$place: no test reaches this barrier"
    bad=$((bad + 1))
done < <(grep -nE '__sync(threads|warp)\(\)' gpu/cuda_*.cu gpu/cuda_*.h | grep -v '#define' |
    sed -E 's|^gpu/([^:]*:[0-9]+):.*|\1|')

# notice BARRIER: how the first program that fails without it says so; nothing where none does.
notice() {
    local program
    for program in "${programs[@]}"; do
        grep -qxF "$1" "$work/$program" || continue
        { CUDA_BARRIER_LEFT_OUT=$1 "$bin/$program" >"$work/said" 2>&1; } 2>/dev/null && continue
        grep -m 1 -E ', code 0x|, line [0-9]+: |off by|want|Test failed' "$work/said" || tail -n 1 "$work/said"
        return
    done
}

n=0
while read -r barrier; do
    n=$((n + 1))
    noticed=$(notice "$barrier")
    [[ -n $noticed ]] || bad=$((bad + 1))
    printf '%-40s %s\n' "$barrier" "${noticed:-NOT MISSED: prove it, then remove it, or extend a test}"
done <<<"$reached"
echo "$n barriers, each left out once; $bad without effect or test"
((n > 0 && bad == 0))
