#!/usr/bin/env bash
# A worker that comes late over a link of 1 Mbit/s, too slow for the updates of the run: the others go on as before. At
# 20 Mbit/s a late worker takes part.
# ctest: timeout=300 waits=1 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

SECONDS_EACH=6

make_data
write_config run.yaml train.max_steps=2000000 train.sync_every=40 model.n_embd=64 model.n_layer=2 train.eval_every=0 \
    coordinator.min_workers=2 checkpoint.every=100000

join_late() { # JOIN NAME
    start "$2.log" "$BIN/atoll-worker" --join "$1" --dir "$2" --name "$2" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --train.threads=1
    node_pid[$2]=$pid
}
with_workers() { # N: the last round has the deltas of N workers
    [[ $(grep '"event":"round"' run/metrics.jsonl | tail -n 1) == *"\"workers\":$1,"* ]]
}
rounds_meanwhile() { # prints rounds per ten seconds
    local from at=$SECONDS
    from=$(rounds_done)
    until ((SECONDS >= at + SECONDS_EACH)); do sleep 0.2; done
    echo $((($(rounds_done) - from) * 10 / SECONDS_EACH))
}
slowest() { # FROM: prints the longest time between two rounds after round FROM, in ms
    awk -v from="$1" '/"event":"round"/ {
        match($0, /"time":[0-9.]+/); t = substr($0, RSTART + 7, RLENGTH - 7)
        match($0, /"round":[0-9]+/); r = substr($0, RSTART + 8, RLENGTH - 8)
        if (r + 0 > from && last && t - last > most) most = t - last
        last = t
    } END { printf "%d\n", most * 1000 }' run/metrics.jsonl
}

node_start coordinator
until_true 20 "the coordinator's address" test -s run/address
node_start worker-0
node_start worker-1
until_true 60 "the first rounds" rounds_reach 20
before=$(rounds_meanwhile)

start relay.log "$BIN/atoll" relay 1mbit,rtt=40ms --join run --join-file far.join
relay=$pid
until_true 20 "the join file" test -s far.join
from=$(rounds_done)
join_late far.join far
until_true 60 "the late worker" grep -q "far joined" coordinator.log
until_true 60 "its first updates" grep -q "nobody: this worker is .* behind, .* at .* Mbit/s; a round takes .*: this link cannot keep up" far.log
during=$(rounds_meanwhile)
longest=$(slowest "$from")
"$BIN/atoll" status run >status.txt
grep -q 'far .*catching up' status.txt || fail "status does not say what far does: $(<status.txt)"
with_workers 2 || fail "the late worker takes part: $(tail -n 1 run/metrics.jsonl)"

node_kill far
kill -KILL "$relay"
until_true 60 "rounds of two again" with_workers 2
after=$(rounds_meanwhile)

start fast.log "$BIN/atoll" relay 20mbit,rtt=40ms --join run --join-file near.join
until_true 20 "the join file" test -s near.join
join_late near.join near
until_true 30 "a round of three, over a link of 20 Mbit/s" with_workers 3

echo "rounds in 10 s: $before before, $during while a worker of 1 Mbit/s catches up, $after after; longest pause $longest ms"
# A stop of the others would last as long as an update takes to load, which is 4 s.
((longest < 3000)) || fail "a round waited $longest ms"
((during > before / 3)) || fail "the late worker stops the others: $before rounds before, $during with it"
