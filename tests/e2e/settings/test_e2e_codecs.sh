#!/usr/bin/env bash
# Workers with codecs of their own (codec.up_allowed). The slow link's worker sends fewer bytes; the run ends at the same
# theta when the coordinator and both workers are killed on the way; another codec is refused with one line.
# ctest: timeout=180
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.max_steps=200 train.sync_every=5 coordinator.min_workers=2 coordinator.evict_after_s=1000 \
    train.eval_every=0 codec.up=int8:256 codec.up_allowed=topk:64/4096+sign,bf16

worker() { # NAME CODEC
    start "$1.log" "$BIN/atoll-worker" --join run --dir "$1" --name "$1" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --codec.up="$2"
    node_pid[$1]=$pid
}

run_once() {
    rm -rf run worker-0 worker-1 ./*.log
    node_start coordinator
    worker worker-0 int8:256
    worker worker-1 topk:64/4096+sign
}

kill_three() {
    until_true 60 "rounds" rounds_reach 5
    node_kill coordinator || return 1
    node_start coordinator
    until_true 60 "rounds" rounds_reach 12
    node_kill worker-1 || return 1
    worker worker-1 topk:64/4096+sign
    until_true 60 "rounds" rounds_reach 20
    node_kill coordinator || return 1
    node_start coordinator
}

run_once
nodes_finish 60
calm=$(json get run/summary.json theta_hash)
loss=$(json get run/summary.json final_val_loss)
grep -q 'up topk:64/4096+sign' worker-1.log || fail "worker-1 does not name its codec: $(<worker-1.log)"
storm run_once kill_three
nodes_finish 60
[[ $(json get run/summary.json theta_hash) == "$calm" ]] || fail "theta differs after kills"
grep -q 'refused the delta' coordinator.log && fail "refused: $(grep 'refused the delta' coordinator.log)"

rm -rf run worker-2
node_pid=()
node_start coordinator
start refused.log "$BIN/atoll-worker" --join run --dir worker-2 --name worker-2 \
    --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin" --codec.up=int4:256
finish "$pid" 30 2 "a worker with int4:256"
(($(grep -c 'codec.up: the run does not allow "int4:256": its codec.up is int8:256' refused.log) == 1)) ||
    fail "no line about the codec: $(<refused.log)"
awk -v l="$loss" 'BEGIN { exit !(l > 1 && l < 5) }' || fail "validation loss $loss"
echo "int8 beside topk: validation loss $loss, theta $calm also after kills; int4 is refused"
