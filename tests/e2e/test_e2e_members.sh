#!/usr/bin/env bash
# Members that lose their coordinator:
# - A restarted coordinator gets every step that workers trained without it.
# - A worker leaves with its state saved if its coordinator's address becomes unreachable.
# - A worker sees the end of its run in the run folder.
# ctest: timeout=300 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data

reset() {
    rm -rf run worker-*
    node_pid=()
}

# --- a coordinator killed in the middle of a round: the workers go on training and report these steps after its restart
begin_long_rounds() {
    reset
    write_config run.yaml train.max_steps=800 train.sync_every=400 train.batch_size=8 model.n_embd=64 model.n_layer=4 \
        coordinator.min_workers=2 coordinator.evict_after_s=1000 train.eval_every=0
    for name in coordinator worker-0 worker-1; do node_start $name; done
}
kill_in_round() {
    until_true 60 "the middle of round 1" grep -q 'step *150 ' worker-0.log
    node_kill coordinator || return 1
    sleep 1.5
    node_start coordinator
}
storm begin_long_rounds kill_in_round
nodes_finish 100
json lines run/metrics.jsonl step worker round step | sort -u >steps.txt
(($(wc -l <steps.txt) == 1600)) || fail "metrics.jsonl has $(wc -l <steps.txt) steps of 1600"
echo "killed coordinator: metrics.jsonl has every step"

# --- a coordinator that is silent while its run folder names an unreachable address: the worker saves its state and sends
# LEAVE over its old connection
reset
write_config run.yaml train.method=diloco train.max_steps=1000000 train.sync_every=5 train.eval_every=0 \
    checkpoint.worker_every=1000000
node_start coordinator
node_start worker-0
until_true 60 "some rounds" rounds_reach 5
kill -STOP "${node_pid[coordinator]}"
mv run/address address.before
sed "s|127.0.0.1|$(printf 'a%.0s' {1..70}).invalid|" address.before >run/address # no name service knows such a label
finish "${node_pid[worker-0]}" 30 1 worker-0
grep -q "address changed" worker-0.log || fail "the log of worker-0 has another reason: $(tail -n 2 worker-0.log)"
mv address.before run/address
kill -CONT "${node_pid[coordinator]}"
until_true 30 "LEAVE of worker-0" grep -q 'worker-0 left' coordinator.log
node_start worker-0
until_true 30 "worker-0 to load its state" grep -Eq 'loaded the saved state after round ([2-9]|[0-9]{2,}) ' worker-0.log
echo "unreachable coordinator: the worker left with its state saved"

# --- a run that ended while the coordinator was down: the worker sees summary.json in the run folder
node_kill coordinator
echo '{}' >run/summary.json
finish "${node_pid[worker-0]}" 30 0 "the worker of a complete run"
grep -q 'done: the run in run is complete' worker-0.log ||
    fail "the log of worker-0 has another reason: $(tail -n 2 worker-0.log)"
echo "complete run: the worker sees it in the run folder"
