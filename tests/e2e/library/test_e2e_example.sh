#!/usr/bin/env bash
# examples/library.c: two processes train a run of model.family external; a run with a large batch overflows nothing.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
(($(wc -l <"$HERE/../../examples/library.c") <= 80)) || fail "examples/library.c has more than 80 lines"
start coordinator.log "$BIN/atoll-coordinator" "$HERE/../../examples/library.yaml" --dir run
coordinator=$pid
start first.log "$BIN/example_library" run
first=$pid
start second.log "$BIN/example_library" run
second=$pid
finish "$first" 60 0 "the first process"
finish "$second" 60 0 "the second process"
finish "$coordinator" 60 0 "the coordinator"
theta=$(json get run/summary.json theta_hash)
for log in first.log second.log; do
    grep -q "theta $theta\$" "$log" || fail "$log has other parameters than the run, $theta"
    weights=$(sed -nE 's/^weights of features 0 and 1: (.*); theta.*/\1/p' "$log")
    awk -F ', ' '{ exit !($1 > 0.8 && $2 < -0.4) }' <<<"$weights" || fail "$log: it learned $weights"
done
[[ -s run/checkpoints/latest/model.safetensors ]] || fail "the run has no checkpoint"
[[ $(json get run/summary.json params) == 21 ]] || fail "unexpected number of parameters: $(<run/summary.json)"

# A run chooses the samples of a step: no buffer of the program may overflow.
rm -rf atoll-worker-*
start large.log "$BIN/atoll-coordinator" "$HERE/../../examples/library.yaml" --dir large --coordinator.min_workers=1 \
    --train.batch_size=2000 --train.grad_accum=3 --train.max_steps=10 --train.sync_every=5
coordinator=$pid
start third.log "$BIN/example_library" large
third=$pid
finish "$third" 60 0 "a process with 6000 samples a step"
finish "$coordinator" 60 0 "the coordinator of large steps"
[[ $(json get large/summary.json tokens) == 60000 ]] || fail "unexpected tokens: $(<large/summary.json)"
