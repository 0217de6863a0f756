#!/usr/bin/env bash
# inner.scaling: the learning rate is the scaled one, in the steps and in the metrics. A run keeps it when it continues
# with another coordinator.min_workers.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data

run() { # SETTINGS...: sets theta and peak, the largest rate of the steps
    rm -rf run worker-0 worker-1 ./*.log
    node_pid=()
    write_config run.yaml coordinator.min_workers=2 coordinator.evict_after_s=1000 inner.schedule=constant "$@"
    node_start coordinator
    node_start worker-0
    node_start worker-1
    if [[ ${stop_at:-} ]]; then
        until_true 30 "rounds" rounds_reach "$stop_at"
        node_kill coordinator || return 1
        overrides+=(--coordinator.min_workers=1)
        node_start coordinator
    fi
    nodes_finish 60
    theta=$(json get run/summary.json theta_hash)
    peak=$(grep '"event":"step"' run/metrics.jsonl | grep -o '"lr":[^,}]*' | cut -d: -f2 | sort -g | tail -n 1)
}

close_to() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > b * (1 - 1e-6) && a < b * (1 + 1e-6)) }'; }

run inner.learning_rate=7.0710678118654755e-03 # 0.005 sqrt(2)
expected=$theta
run inner.learning_rate=5e-3 inner.scaling=sqrt
[[ $theta == "$expected" ]] || fail "sqrt: theta is $theta, with the scaled rate itself $expected"
close_to "$peak" 0.0070710678 || fail "sqrt: the metrics name the rate $peak"
grep -q 'learning rate is 0.00707107 = 0.005 x sqrt(2 workers) (inner.scaling sqrt:2)' coordinator.log ||
    fail "no line about the rate: $(<coordinator.log)"
stop_at=3
run train.max_steps=100 inner.learning_rate=0.0100 inner.scaling=none
expected=$theta
run train.max_steps=100 inner.learning_rate=5e-3 inner.scaling=linear
[[ $theta == "$expected" ]] || fail "linear, continued: theta is $theta, with the scaled rate itself $expected"
close_to "$peak" 0.01 || fail "linear: the metrics name the rate $peak"
(($(grep -c 'learning rate is 0.01 = 0.005 x 2 workers (inner.scaling linear:2)' coordinator.log) == 2)) ||
    fail "the continued run has another rate: $(<coordinator.log)"
grep -q 'scaling: "linear:2" ' run/config.yaml || fail "config.yaml: $(grep scaling run/config.yaml)"
echo "scaled by sqrt and linearly: theta equals the run with that rate; min_workers 2 -> 1 keeps it"
