#!/usr/bin/env bash
# Every step of every worker stands in metrics.jsonl once, though the coordinator is killed, or stopped, and comes back,
# or the connection breaks, while rounds are trained on.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

steps=800 every=200
make_data
# A round takes a second or more, in which metrics are sent once.
write_config run.yaml train.max_steps=$steps train.sync_every=$every model.n_embd=64 model.n_layer=4 train.batch_size=8 log.every_steps=10 \
    coordinator.min_workers=2 coordinator.evict_after_s=1000 train.eval_every=0

begin() {
    rm -rf run worker-0 worker-1 ./*.log
    node_start coordinator
    node_start worker-0
    node_start worker-1
}

# In the middle of a round: what is trained then, nobody hears of before the coordinator is back.
disturb() {
    local round signal
    for round in 1 2 4; do
        until_true 60 "the middle of round $round" grep -q "step *$(((round - 1) * every + every / 2)) " worker-0.log
        signal=KILL
        ((round != 2)) || signal=INT
        kill -$signal "${node_pid[coordinator]}" 2>/dev/null || return 1
        wait "${node_pid[coordinator]}" || true
        ended "${node_pid[coordinator]}"
        sleep 1.5
        node_start coordinator
    done
}

check() {
    sed -n 's/.*"event":"step".*"worker":"\([^"]*\)".*"step":\([0-9]*\).*/\1 \2/p' run/metrics.jsonl | tee raw | sort -u >there
    for name in worker-0 worker-1; do for ((i = 1; i <= steps; i++)); do echo "$name $i"; done; done | sort >expected
    diff expected there >differ || fail "$1: lines that are missing (<) or there twice (>): $(wc -l <differ), such as $(head -n 3 differ | tr '\n' ' ')"
    echo "$1: $(wc -l <there) steps, each there, $(wc -l <raw) lines"
}

storm begin disturb
nodes_finish 100
check "coordinator killed and stopped"

# A relay in front of the coordinator: what is sent while it stands still is lost when it hangs up.
rm -rf run worker-0 worker-1 ./*.log
node_start coordinator
until_true 20 "the coordinator's address" test -s run/address
port=$(sed -nE 's|.*tcp://127\.0\.0\.1:([0-9]+).*|\1|p' run/address)
start wanlink.log "$BIN/wanlink" --to "127.0.0.1:$port" --control "$WORK/line"
line=$pid
until_true 20 "the relay's address" grep -q '^127' wanlink.log
relay=$(sed -n 1p wanlink.log)
for name in worker-0 worker-1; do
    start "$name.log" "$BIN/atoll-worker" --join "tcp://$relay" --dir "$name" --name "$name" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --train.threads=1
    node_pid[$name]=$pid
done
for round in 1 3; do
    until_true 60 "round $round" grep -q "step *$(((round - 1) * every + 10)) " worker-0.log
    echo stall >line
    sleep 1.5
    printf 'cut\ngo\n' >line
done
nodes_finish 60
kill -TERM "$line"
finish "$line" 5 0 wanlink
(($(sed -n 's/^connections \([0-9]*\),.*/\1/p' wanlink.log) > 8)) || fail "nobody connected again: $(<wanlink.log)"
check "connections cut"
