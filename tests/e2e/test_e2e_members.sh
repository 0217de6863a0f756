#!/usr/bin/env bash
# A late joiner catches up while the others go on. A stopped worker (SIGSTOP): async goes on with the others, the
# barrier says whom it waits for, and both finish after SIGCONT. A coordinator that was killed gets every step.
# ATOLL_LONG=1: the worker is stopped for 20 s instead of 2.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh
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

merged_tokens() { # so far, from the last update
    local last
    last=$(grep '"event": *"update"' run/metrics.jsonl | tail -n 1) || true
    if [[ $last =~ \"tokens\":\ *([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi
}

delta_tokens=$((8 * 32 * every)) # of a delta
merged_since() { (($(merged_tokens) >= $1 + $2 * delta_tokens)); } # tokens deltas

run_over() { [[ -e run/summary.json ]]; }
over_or() { run_over || "$@"; } # command

waits_for() { # worker: the coordinator says so
    "$BIN/atoll" status run >status.txt 2>&1 && grep -qi "wait.*$1" status.txt
}

times_of() { # event [worker]: when, in ms
    sed -nE "s/.*\"time\": *([0-9]+)\.?([0-9]*),\"event\": *\"$1\"${2:+,\"worker\": *\"$2\"}.*/\1 \200/p" run/metrics.jsonl |
        while read -r s fraction; do echo "$s${fraction:0:3}"; done
}

# --- a late joiner
join_late() { # rounds: false when the run was over before it had a part in it
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
    [[ $(json get run/summary.json steps) == $((every * rounds)) ]] || fail "steps"
    extra=$(($(json get run/summary.json tokens) / delta_tokens - 2 * rounds))
    ((extra > 0)) || return 1
    [[ $(json get run/summary.json workers) == 3 ]] || fail "three workers should have delivered"
    joined=$(times_of join worker-2 | sed -n 1p)
    trained=$(times_of step worker-2 | sed -n 1p)
    # Ten seconds: no measure of speed, which other work on this machine decides; nothing hung.
    ((trained - joined < 10000)) || fail "worker-2 took $((trained - joined)) ms from joining to training"
    gap=$(times_of round | awk 'NR > 1 && $1 - last > gap { gap = $1 - last } { last = $1 } END { print gap }')
    ((gap < 10000)) || fail "the others paused for $gap ms"
    echo "late joiner: trained $((trained - joined)) ms after it joined, $extra of $rounds rounds; longest round of all $gap ms"
    wall=$(json get run/summary.json wall_s)
    rounds_per_s=$((rounds / (${wall%.*} + 1) + 1))
}
join_late 250 || join_late 1000 || fail "the late joiner added no round"

# --- a stopped worker

stop_one() { # method rounds: false when the run was over before its worker was let go
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
        # Its own last delta may be on its way still, and one of each of the others: ten more are work done without it.
        before=$(merged_tokens)
        until_true 60 "ten deltas of the others" over_or merged_since "$before" 13
        sleep "$stopped_s"
        "$BIN/atoll" status run >status.txt 2>&1 || fail "status of $method: $(<status.txt)"
        echo "async: $((($(merged_tokens) - before) / delta_tokens)) deltas merged while one worker was stopped"
    else
        until_true 60 "atoll status to say that it waits for worker-1" over_or waits_for worker-1
        before=$(merged_tokens)
        sleep "$stopped_s"
        (($(merged_tokens) == before)) || fail "a barrier with quorum all should wait: $before tokens became $(merged_tokens)"
        over_or waits_for worker-1 || fail "status no longer says that it waits for worker-1: $(<status.txt)"
        until_true 60 "the log to say so, too" over_or grep -qi 'wait.*worker-1' coordinator.log
        run_over || echo "barrier: stands still, and says: $(grep -i 'wait.*worker-1' status.txt | sed -n 1p | sed 's/  */ /g')"
    fi
    ! run_over || over=1
    kill -CONT "${node_pid[worker-1]}"
    nodes_finish 120
    [[ $(json get run/summary.json workers) == 3 ]] || fail "$method: three workers should have delivered"
    ((!over)) || return 1
    echo "$method: finished after SIGCONT, validation loss $(json get run/summary.json final_val_loss)"
}

rounds=$((rounds_per_s * (stopped_s + 6))) # a guess: this machine may be faster by now than it was above
stop_one async $rounds || stop_one async $((4 * rounds)) || fail "async: over before its worker was let go"
stop_one diloco 200 || stop_one diloco $rounds || fail "diloco: over before its worker was let go"

# --- the coordinator is killed in the middle of a round: the workers train on and report those steps when it is back
begin_long_rounds() {
    reset
    write_config run.yaml train.max_steps=800 train.sync_every=400 train.batch_size=8 model.n_embd=64 model.n_layer=4 \
        log.every_steps=10 coordinator.min_workers=2 coordinator.evict_after_s=1000 train.eval_every=0
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
echo "a coordinator that was killed: every step is in metrics.jsonl"

# The coordinator is silent, and its run folder names another address, which nobody can dial: the worker saves its state
# and leaves by the connection that it has.
reset
write_config run.yaml train.method=diloco train.max_steps=1000000 train.sync_every=5 train.eval_every=0 \
    checkpoint.worker_every=1000000
node_start coordinator
node_start worker-0
until_true 60 "some rounds" rounds_reach 5
kill -STOP "${node_pid[coordinator]}"
mv run/address address.before
echo 'tcp://192.0.2.1:29600' >run/address # without keys
finish "${node_pid[worker-0]}" 30 2 worker-0
grep -q "address changed" worker-0.log || fail "worker-0 ended for another reason: $(tail -n 2 worker-0.log)"
mv address.before run/address
kill -CONT "${node_pid[coordinator]}"
until_true 30 "LEAVE to come" grep -q 'worker-0 left' coordinator.log
node_start worker-0
until_true 30 "the state" grep -Eq 'loaded the saved state after round ([2-9]|[0-9]{2,}) ' worker-0.log
echo "a coordinator that moved out of reach: the worker left with its state saved"

# The run ended and nobody told the worker, which was stopped, say: its folder does.
node_kill coordinator
echo '{}' >run/summary.json
finish "${node_pid[worker-0]}" 30 0 "the worker of a run that is over"
grep -q 'done: the run in run is complete' worker-0.log || fail "it ended for another reason: $(tail -n 2 worker-0.log)"
echo "a run that ended unheard: the worker sees it in the folder"
