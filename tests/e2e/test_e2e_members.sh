#!/usr/bin/env bash
# A late joiner catches up while the others go on. A stopped worker (SIGSTOP): async goes on at the others' speed, the
# barrier says whom it waits for, and both finish after SIGCONT. ATOLL_LONG=1: it is stopped for 20 s instead of 5.
# ctest: timeout=170
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

stopped_s=5
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

rate_over() { # seconds: tokens per second of the whole run
    local before
    before=$(merged_tokens)
    sleep "$1"
    echo $((($(merged_tokens) - before) / $1))
}

times_of() { # event [worker]: when, in ms
    sed -nE "s/.*\"time\": *([0-9]+)\.?([0-9]*),\"event\": *\"$1\"${2:+,\"worker\": *\"$2\"}.*/\1 \200/p" run/metrics.jsonl |
        while read -r s fraction; do echo "$s${fraction:0:3}"; done
}

# --- a late joiner
write_config run.yaml train.sync_every=$every train.batch_size=8 train.max_steps=$((every * 250)) codec.up=int8:64 \
    codec.down=int8:64 coordinator.min_workers=2 checkpoint.every=10 train.eval_every=0
node_start coordinator
node_start worker-0
node_start worker-1
until_true 60 "round 20" rounds_reach 20
node_start worker-2
nodes_finish 120
[[ $(json get run/summary.json workers) == 3 ]] || fail "three workers should have delivered"
[[ $(json get run/summary.json steps) == $((every * 250)) ]] || fail "steps"
extra=$(($(json get run/summary.json tokens) / (8 * 32 * every) - 2 * 250))
((extra > 0)) || fail "the late joiner added no round: $extra"
joined=$(times_of join worker-2 | sed -n 1p)
trained=$(times_of step worker-2 | sed -n 1p)
((trained - joined < 3000)) || fail "worker-2 took $((trained - joined)) ms from joining to training"
gap=$(times_of round | awk 'NR > 1 && $1 - last > gap { gap = $1 - last } { last = $1 } END { print gap }')
((gap < 2000)) || fail "the others paused for $gap ms"
echo "late joiner: trained $((trained - joined)) ms after it joined, $extra of 250 rounds; longest round of all $gap ms"
wall=$(json get run/summary.json wall_s)
rounds_per_s=$((250 / (${wall%.*} + 1) + 1))

# --- a stopped worker
rounds=$((rounds_per_s * (stopped_s + 6)))
for method in async diloco; do
    reset
    write_config run.yaml train.method=$method train.sync_every=$every train.batch_size=8 train.max_steps=$((every * rounds)) \
        coordinator.min_workers=3 train.eval_every=0 train.dynamic_steps=off outer.max_staleness=1000000 \
        outer.learning_rate=0.1 coordinator.evict_after_s=600
    node_start coordinator
    for i in 0 1 2; do node_start worker-$i; done
    until_true 60 "the first rounds of $method" rounds_reach 5
    before=$(rate_over 1)
    kill -STOP "${node_pid[worker-1]}"
    sleep 1
    during=$(rate_over $((stopped_s - 1)))
    [[ -e run/address ]] || fail "$method: the run was over before its worker was let go: $rounds rounds are too few here"
    "$BIN/atoll" status run >status.txt 2>&1 || fail "status of $method: $(<status.txt)"
    kill -CONT "${node_pid[worker-1]}"
    if [[ $method == async ]]; then
        # Two of three go on; with fewer cores than workers they even speed up.
        ((during * 10 >= before * 5)) || fail "async: $before tokens/s before, $during while one of three is stopped"
        echo "async: $before tokens/s with three workers, $during with one of them stopped for $stopped_s s"
    else
        ((during == 0)) || fail "a barrier with quorum all should wait: $during tokens/s"
        grep -qi 'wait.*worker-1' status.txt || fail "status does not say that it waits for worker-1: $(<status.txt)"
        grep -qi 'wait.*worker-1' coordinator.log || fail "nor does the log"
        echo "barrier: $before tokens/s, then it says: $(grep -i 'wait.*worker-1' status.txt | sed -n 1p | sed 's/  */ /g')"
    fi
    nodes_finish 120
    [[ $(json get run/summary.json workers) == 3 ]] || fail "$method: three workers should have delivered"
    echo "$method: finished after SIGCONT, validation loss $(json get run/summary.json final_val_loss)"
done
