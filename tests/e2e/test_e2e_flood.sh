#!/usr/bin/env bash
# Thousands of silent connections from one machine: the coordinator closes the oldest, keeps descriptors for its own
# files, says so once a minute, and no round loses a worker. ATOLL_LONG=1: 20,000 connections.
# ctest: timeout=60
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

connections=6000 hold=4
if ((LONG)); then connections=20000 hold=8; else ulimit -n 4096; fi # of the coordinator and of e2e_flood
make_data
write_config run.yaml train.max_steps=1000000 coordinator.min_workers=2 train.eval_every=0
node_start coordinator
node_start worker-0
node_start worker-1
until_true 20 "round 3" rounds_reach 3

status_of() { sed -n "s/^$1:[^0-9]*\([0-9]*\).*/\1/p" "/proc/${node_pid[coordinator]}/status"; }

memory=$(status_of VmHWM)
flood() { "$BIN/e2e_flood" run "$1" $hold >"$2" || fail "e2e_flood: $(<"$2")"; }
flood $((connections / 2)) flood1.log & # two processes, because the limit of descriptors holds for each
other=$!
flood $((connections / 2)) flood2.log
wait $other || fail "e2e_flood: $(<flood1.log)"
for node in coordinator worker-0 worker-1; do node_alive $node || fail "$node ended"; done
closed=$(sed 's/.*, \([0-9]*\) were.*/\1/' flood?.log | paste -sd +)
((closed >= connections - 2048)) || fail "the coordinator closed only $((closed)) of $connections connections"
grown=$(($(status_of VmHWM) - memory))
until_true 20 "rounds after the flood" rounds_reach $(($(rounds_done) + 10))
rounds=$(rounds_done)
(($(head -n -1 run/metrics.jsonl | grep -c '"event":"round"') >= rounds - 1)) || fail "metrics.jsonl lacks a round"
if grep '"event":"round"' run/metrics.jsonl | grep -v '"workers":2'; then fail "a round went on without a worker"; fi
((grown < 65536)) || fail "the coordinator grew by $grown KiB"
lines=$(grep -c 'did not finish the handshake' coordinator.log) || fail "no line about the strangers"
((lines <= 2)) || fail "$lines lines about the strangers"
echo "$connections silent connections: $rounds rounds, $((closed)) closed at once, $grown KiB more"
grep 'did not finish the handshake' coordinator.log
