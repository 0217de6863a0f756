#!/usr/bin/env bash
# A barrier of two workers with rounds far below a second loses one of them:
# - A stopped worker is silent: the waiting line names it within 5 s.
# - The connection of a killed worker closes: it is evicted after 5 s, and the run continues without it.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.max_steps=10000000 train.eval_every=0 checkpoint.every=1000 coordinator.min_workers=2
node_start coordinator
node_start worker-0
node_start worker-1
until_true 60 "five rounds" rounds_reach 5

began=$(now_ms)
kill -STOP "${node_pid[worker-1]}"
until_true 20 "the name of the silent worker" grep -q 'waiting for .*worker-1 (silent for' coordinator.log
named=$(($(now_ms) - began))
kill -CONT "${node_pid[worker-1]}"
# 1 s on top: a loaded machine delays the process that looks
((named < 6000)) || fail "the silent worker was named after $(seconds $named) s"
round=$(rounds_done)
until_true 20 "rounds after SIGCONT" rounds_reach $((round + 3))

began=$(now_ms)
node_kill worker-1 || fail "worker-1 ended before the kill"
until_true 60 "the eviction of the killed worker" grep -q '^evicted worker-1' coordinator.log
gone=$(($(now_ms) - began))
grep -q '^evicted worker-1: .*connection closed (limit .*coordinator.evict_after_s' coordinator.log ||
    fail "the line lacks the rule: $(grep '^evicted' coordinator.log)"
round=$(rounds_done)
until_true 20 "rounds without worker-1" rounds_reach $((round + 3))
((gone < 9000)) || fail "the killed worker was evicted after $(seconds $gone) s"
echo "silent worker named after $(seconds $named) s; killed worker evicted after $(seconds $gone) s"
