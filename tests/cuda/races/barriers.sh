#!/usr/bin/env bash
# barriers.sh BIN TEST...: is every barrier of every kernel needed, and its absence noticed? Runs the checked programs
# BIN/TEST, test by test, which write down the barriers that they reach, then once more for every one of those with it
# left out: some test must fail. A barrier in a source that no program reaches is an error, too, so a new kernel comes with a test.
set -euo pipefail

bin=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What can be run by itself, "PROGRAM TEST", or "PROGRAM" where it takes no name of a test.
list_runs() {
    local program source
    for program in "$@"; do
        source=tests/parity/${program%_checked}.c
        if grep -q cmocka_set_test_filter "$source"; then
            grep -oE 'cmocka_unit_test\(test_\w+' "$source" | sed "s/.*(/$program /"
        else
            echo "$program"
        fi
    done
}

mapfile -t runs < <(list_runs "$@")
for run in "${runs[@]}"; do
    # shellcheck disable=SC2086 # a program and the name of a test
    CUDA_BARRIERS_TO=$work/$run "$bin/"$run >"$work/said" 2>&1 || { cat "$work/said" && exit 1; }
    touch "$work/$run"
    echo "$(sort -u "$work/$run" | wc -l) $run"
done >"$work/reached"
mapfile -t runs < <(sort -n "$work/reached" | cut -d ' ' -f 2-) # first those that try little else: they are soon there

bad=0
reached=$(sort -u "${runs[@]/#/$work/}")
while read -r place; do
    grep -qF "$place " <<<"$reached" && continue
    echo "$place: no test reaches this barrier"
    bad=$((bad + 1))
done < <(grep -nE '__sync(threads|warp)\(\)' gpu/cuda/kernels/cuda_*.cu gpu/cuda/kernels/cuda_*.h | grep -v '#define' |
    sed -E 's|^gpu/(.*/)?([^/:]*:[0-9]+):.*|\2|')

# notice BARRIER: how the first run that fails without it says so; nothing where none does.
notice() {
    local run
    for run in "${runs[@]}"; do
        grep -qxF "$1" "$work/$run" || continue
        # shellcheck disable=SC2086
        { CUDA_BARRIER_LEFT_OUT=$1 "$bin/"$run >"$work/said" 2>&1; } 2>/dev/null && continue
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
