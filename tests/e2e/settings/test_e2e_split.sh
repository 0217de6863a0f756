#!/usr/bin/env bash
# A worker with its own micro-batch, 4 x 2 beside 8 x 1, trains on the same samples: the losses of both runs agree. A
# worker with other samples per step is refused with one line.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml train.batch_size=8 train.grad_accum=1 coordinator.min_workers=2 coordinator.evict_after_s=1000

run() { # SETTINGS of worker-1...: sets loss and samples
    rm -rf run worker-0 worker-1
    mkdir run
    start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
    local coordinator=$pid common=(--join run "--data.train=$WORK/data/train_*.bin" "--data.val=$WORK/data/val_*.bin")
    start worker-0.log "$BIN/atoll-worker" "${common[@]}" --dir worker-0 --name worker-0
    local first=$pid
    if [[ ${refused:-} ]]; then
        start refused.log "$BIN/atoll-worker" "${common[@]}" --dir worker-2 --name worker-2 "$refused"
        finish "$pid" 30 2 "the worker with $refused"
    fi
    start worker-1.log "$BIN/atoll-worker" "${common[@]}" --dir worker-1 --name worker-1 "$@"
    finish "$pid" 60 0 worker-1
    finish "$first" 60 0 worker-0
    finish "$coordinator" 60 0 coordinator
    loss=$(json get run/summary.json final_val_loss)
    samples=$(json get run/summary.json tokens)
}

run
equal=$loss tokens=$samples
refused=--train.batch_size=3
run --train.batch_size=4 --train.grad_accum=2
[[ $samples == "$tokens" ]] || fail "$samples tokens, with one split $tokens"
awk -v a="$loss" -v b="$equal" 'BEGIN { exit !(a - b < 1e-3 && b - a < 1e-3) }' ||
    fail "validation loss $loss, with one split $equal"
(($(grep -c 'a step of the run takes train.batch_size 8 x train.grad_accum 1 = 8' refused.log) == 1)) ||
    fail "the other worker: $(<refused.log)"
echo "4 x 2 beside 8 x 1: validation loss $loss, with 8 x 1 alone $equal; 3 x 2 is refused"
