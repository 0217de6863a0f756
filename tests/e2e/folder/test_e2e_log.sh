#!/usr/bin/env bash
# Processes started by hand keep their lines in a file: the coordinator in RUN/logs, a worker in its own folder. Under
# atoll launch, which writes RUN/logs, there is no second copy. No log holds a key, and a start that fails leaves none.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml

"$BIN/atoll-coordinator" run.yaml --dir run --coordinator.listen=nowhere >failed.log 2>&1 && fail "it listens nowhere"
[[ ! -e run ]] || fail "a failed start leaves $(ls -R run)"

node_start coordinator
until_true 20 "the coordinator's address" test -s run/address
join=$(tail -n 1 run/address)
node_start worker-0
nodes_finish 60
[[ $(grep -c ' coordinator done: 12 rounds, ' run/logs/coordinator.log) == 1 ]] || fail "no end in $(<run/logs/coordinator.log)"
(($(grep -c ' coordinator round  *[0-9]*/12  loss ' run/logs/coordinator.log) == 12)) || fail "not 12 rounds"
grep -q ' worker-0 done: the run is complete: 12 rounds, ' worker-0/worker.log || fail "no end in $(<worker-0/worker.log)"
for part in ${join//\// }; do
    ((${#part} < 40)) || ! grep -qF "$part" run/logs/coordinator.log worker-0/worker.log || fail "a log holds $part"
done

# A later start appends, and the error that ends it is the last line.
code=0
"$BIN/atoll-coordinator" run.yaml --dir run --train.sync_every=7 >/dev/null 2>again.log || code=$?
text=$(sed -n '$s/^atoll: //p' again.log)
[[ $code == 2 && $text && $(tail -n 1 run/logs/coordinator.log) == *"$text" ]] ||
    fail "code $code; the log ends with $(tail -n 1 run/logs/coordinator.log)"

"$BIN/atoll" launch run.yaml --workers 1 --dir launched >launch.log 2>&1 || fail "launch: $(<launch.log)"
[[ $(grep -c '^done: 12 rounds' launched/logs/coordinator.log) == 1 ]] || fail "launch writes other logs than before"
[[ ! -e launched/workers/worker-0/worker.log ]] || fail "a worker of launch has a second log"
