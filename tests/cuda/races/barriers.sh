#!/usr/bin/env bash
# barriers.sh BIN TEST...: checks that every barrier of every kernel is needed. The programs BIN/TEST run test by test
# and record the barriers that they reach. Then they run once per barrier without it, and some test must fail. A barrier
# that no program reaches is an error, so a new kernel needs a test.
set -euo pipefail

bin=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# list_runs PROGRAM...: prints "PROGRAM TEST" per test, or "PROGRAM" if it takes no name of a test.
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
    # shellcheck disable=SC2086 # split into program and test
    CUDA_BARRIERS_TO=$work/$run "$bin/"$run >"$work/output" 2>&1 || { cat "$work/output" && exit 1; }
    touch "$work/$run"
    echo "$(sort -u "$work/$run" | wc -l) $run"
done >"$work/reached"
mapfile -t runs < <(sort -n "$work/reached" | cut -d ' ' -f 2-) # runs with few barriers first: they are fast

bad=0
reached=$(sort -u "${runs[@]/#/$work/}")
while read -r place; do
    grep -qF "$place " <<<"$reached" && continue
    echo "$place: no test reaches this barrier: add one"
    bad=$((bad + 1))
done < <(grep -nE '__sync(threads|warp)\(\)' gpu/cuda/kernels/cuda_*.cu gpu/cuda/kernels/cuda_*.h | grep -v '#define' |
    sed -E 's|^gpu/(.*/)?([^/:]*:[0-9]+):.*|\2|')

# notice BARRIER: prints the message of the first run that fails without the barrier, or nothing.
notice() {
    local run
    for run in "${runs[@]}"; do
        grep -qxF "$1" "$work/$run" || continue
        # shellcheck disable=SC2086
        { CUDA_BARRIER_LEFT_OUT=$1 "$bin/"$run >"$work/output" 2>&1; } 2>/dev/null && continue
        grep -m 1 -E ', code 0x|, line [0-9]+: |off by|want|expected|Test failed' "$work/output" || tail -n 1 "$work/output"
        return
    done
}

n=0
while read -r barrier; do
    n=$((n + 1))
    noticed=$(notice "$barrier")
    [[ -n $noticed ]] || bad=$((bad + 1))
    printf '%-40s %s\n' "$barrier" "${noticed:-NOT DETECTED: extend a test, or remove the barrier if it is provably unnecessary}"
done <<<"$reached"
echo "$n barriers, each left out once; $bad not detected or not reached"
((n > 0 && bad == 0))
