#!/usr/bin/env bash
# Members that join late, stall, or lose their coordinator:
# - A late joiner catches up while the other workers continue.
# - A worker stopped with SIGSTOP: async continues, a barrier logs the worker it waits for; both finish after SIGCONT.
# - A restarted coordinator gets every step that workers trained without it.
# - A worker leaves with its state saved if its coordinator's address becomes unreachable.
# - A worker sees the end of its run in the run folder.
# ATOLL_LONG=1: the worker is stopped for 20 s instead of 2 s.
# ctest: timeout=300 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

stopped_s=2
((LONG)) && stopped_s=20
every=20
make_data

reset() {
    rm -rf run worker-*
    node_pid=()
}

merged_tokens() { # prints the tokens up to the last update
    local last
    last=$(grep '"event": *"update"' run/metrics.jsonl | tail -n 1) || true
    if [[ $last =~ \"tokens\":\ *([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi
}

delta_tokens=$((8 * 32 * every)) # tokens per delta
merged_since() { (($(merged_tokens) >= $1 + $2 * delta_tokens)); } # TOKENS DELTAS

run_over() { [[ -e run/summary.json ]]; }
over_or() { run_over || "$@"; } # COMMAND...

waits_for() { # WORKER: atoll status names it
    "$BIN/atoll" status run >status.txt 2>&1 && grep -qi "wait.*$1" status.txt
}

times_of() { # EVENT [WORKER]: prints the times in ms
    sed -nE "s/.*\"time\": *([0-9]+)\.?([0-9]*),\"event\": *\"$1\"${2:+,\"worker\": *\"$2\"}.*/\1 \200/p" run/metrics.jsonl |
        while read -r s fraction; do echo "$s${fraction:0:3}"; done
}

# --- a late joiner
join_late() { # ROUNDS: false if the run ended before the late joiner delivered a delta
    local rounds=$1 extra joined trained gap
    reset
    write_config run.yaml train.sync_every=$every train.batch_size=8 train.max_steps=$((every * rounds)) codec.up=int8:64 \
        codec.down=int8:64 coordinator.min_workers=2 checkpoint.every=10 train.eval_every=0
    node_start coordinator
    node_start worker-0
    node_start worker-1
    until_true 60 "round 20" rounds_reach 20
    node_start worker-2
    nodes_finish 120
    [[ $(json get run/summary.json steps) == $((every * rounds)) ]] ||
        fail "late joiner: $(json get run/summary.json steps) steps, expected $((every * rounds))"
    extra=$(($(json get run/summary.json tokens) / delta_tokens - 2 * rounds))
    ((extra > 0)) || return 1
    [[ $(json get run/summary.json workers) == 3 ]] || fail "late joiner: summary.json does not count 3 workers"
    joined=$(times_of join worker-2 | sed -n 1p)
    trained=$(times_of step worker-2 | sed -n 1p)
    # The limit of 10 s only detects hangs; other load on the machine decides the speed.
    ((trained - joined < 10000)) || fail "worker-2 took $((trained - joined)) ms from joining to training"
    gap=$(times_of round | awk 'NR > 1 && $1 - last > gap { gap = $1 - last } { last = $1 } END { print gap }')
    ((gap < 10000)) || fail "the other workers paused for $gap ms"
    echo "late joiner: first step $((trained - joined)) ms after joining, $extra of $rounds rounds; longest round $gap ms"
    wall=$(json get run/summary.json wall_s)
    rounds_per_s=$((rounds / (${wall%.*} + 1) + 1))
}
join_late 250 || join_late 1000 || fail "the late joiner delivered no delta"

# --- a stopped worker

stop_one() { # METHOD ROUNDS: false if the run ended before SIGCONT
    local method=$1 before over=0
    reset
    write_config run.yaml train.method="$method" train.sync_every=$every train.batch_size=8 \
        train.max_steps=$((every * $2)) coordinator.min_workers=3 train.eval_every=0 train.dynamic_steps=off \
        outer.max_staleness=1000000 outer.learning_rate=0.1 coordinator.evict_after_s=600
    node_start coordinator
    for i in 0 1 2; do node_start worker-$i; done
    until_true 60 "the first rounds of $method" rounds_reach 5
    if ! kill -STOP "${node_pid[worker-1]}"; then
        nodes_finish 120
        return 1
    fi
    if [[ $method == async ]]; then
        # Up to 3 deltas may be in flight, one per worker. Ten more prove progress without the stopped worker.
        before=$(merged_tokens)
        until_true 60 "ten deltas of the other workers" over_or merged_since "$before" 13
        sleep "$stopped_s"
        "$BIN/atoll" status run >status.txt 2>&1 || fail "status of $method: $(<status.txt)"
        echo "async: $((($(merged_tokens) - before) / delta_tokens)) deltas merged while one worker was stopped"
    else
        until_true 60 "worker-1 in atoll status" over_or waits_for worker-1
        before=$(merged_tokens)
        sleep "$stopped_s"
        (($(merged_tokens) == before)) ||
            fail "a barrier with quorum all must wait: tokens rose from $before to $(merged_tokens)"
        over_or waits_for worker-1 || fail "status no longer names worker-1: $(<status.txt)"
        until_true 60 "worker-1 in the log" over_or grep -qi 'wait.*worker-1' coordinator.log
        run_over || echo "barrier: waits: $(grep -i 'wait.*worker-1' status.txt | sed -n 1p | sed 's/  */ /g')"
    fi
    ! run_over || over=1
    kill -CONT "${node_pid[worker-1]}"
    nodes_finish 120
    [[ $(json get run/summary.json workers) == 3 ]] || fail "$method: summary.json does not count 3 workers"
    ((!over)) || return 1
    echo "$method: finished after SIGCONT, validation loss $(json get run/summary.json final_val_loss)"
}

rounds=$((rounds_per_s * (stopped_s + 6))) # an estimate from the speed above
stop_one async $rounds || stop_one async $((4 * rounds)) || fail "async: the run ended before SIGCONT"
stop_one diloco 200 || stop_one diloco $rounds || fail "diloco: the run ended before SIGCONT"

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
