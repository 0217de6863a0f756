#!/usr/bin/env bash
# Every form of the downlink: relay, union, auto and a codec of its own. Workers and the coordinator are killed with
# kill -9 during the run. All copies of theta stay equal, and theta ends where the undisturbed run ends.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

rounds=60
make_data

run_once() { # starts a new run with all nodes
    rm -rf run worker-0 worker-1 worker-2 ./*.log
    node_start coordinator
    node_start worker-0
    node_start worker-1
    node_start worker-2
}

run_ends() { # waits for the end; sets theta
    nodes_finish 100
    if grep -q 'wrong parameters on this worker' worker-?.log; then fail "$what: a copy of theta differs: $(grep -h 'wrong parameters on this worker' worker-?.log)"; fi
    theta=$(json get run/summary.json theta_hash)
}

kill_three() {
    local victim next
    for victim in worker-1 coordinator worker-2; do
        next=$(($(rounds_done) + 3))
        ((next <= rounds)) || return 1
        until_true 60 "three rounds" rounds_reach "$next"
        node_kill "$victim" || return 1
        node_start "$victim"
    done
}

try() { # WHAT SETTINGS...
    what=$1
    shift
    write_config run.yaml train.method=local-sgd train.max_steps=$((rounds * 10)) train.sync_every=10 train.fragments=2 \
        "codec.up=$up" coordinator.min_workers=3 coordinator.evict_after_s=1000 checkpoint.every=9 train.eval_every=0 "$@"
    run_once
    local calm stormy ways
    run_ends
    calm=$theta
    bytes=$(json get run/summary.json bytes_down) # of the undisturbed run, summed over the workers
    whole=$(grep -o '"update_bytes":[0-9]*' run/metrics.jsonl | awk -F: '{ n += 3 * $2 } END { print n }')
    ways=$(grep '"event":"update"' run/metrics.jsonl | grep -o '"codec":"[^"]*"' | sort | uniq -c | tr -s ' \n' ' ')
    mv run/metrics.jsonl calm.jsonl # a killed coordinator may lose its last line, so keep the complete file
    storm run_once kill_three
    run_ends
    stormy=$theta
    [[ $stormy == "$calm" ]] || fail "$what: theta is $stormy after the kills, expected $calm"
    echo "$what: theta $calm, $bytes bytes down for 3 x $((whole / 3)) bytes of updates; updates:$ways"
}

up=int8:256
try 'int8, relayed' codec.down=relay
((bytes * 100 < whole * 80)) ||
    fail "$what: $bytes bytes down for 3 x $((whole / 3)): relay must not send a worker its own delta"
up=topk:64/4096+sign
try relay codec.down=relay
grep -q '"codec":"relay"' calm.jsonl || fail "metrics.jsonl has no update with codec relay"
try union codec.down=union
try auto codec.down=auto
weighed=$(grep '"event":"update"' calm.jsonl | sed -n 's/.*"codec":"\([a-z]*\).*"relay_bytes":\([0-9]*\),"union_bytes":\([0-9]*\).*/\1 \2 \3/p')
[[ $(wc -l <<<"$weighed") == $((2 * rounds)) ]] ||
    fail "some updates of auto lack relay_bytes and union_bytes in metrics.jsonl"
awk '($1 == "relay") != ($2 <= $3) { exit 1 }' <<<"$weighed" || fail "auto chose the larger form: $weighed"
grep -Eq '  down by (union|relay)' coordinator.log || fail "the round lines of auto do not name the chosen form"
try 'top-k' codec.down=topk:64/4096+sign
try 'clipped, relayed' codec.down=relay merge.clip=median merge.rule=mean
echo "every form of the downlink survives kill -9 of a worker and of the coordinator"
