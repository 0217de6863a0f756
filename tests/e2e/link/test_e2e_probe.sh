#!/usr/bin/env bash
# atoll probe finds the settings of a relay, also while workers train, and changes nothing of the run.
# ctest: timeout=400 waits=1 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.max_steps=1000 coordinator.min_workers=2

run() { # FOLDER: starts a coordinator there
    start "$1.log" "$BIN/atoll-coordinator" run.yaml --dir "$1" "${overrides[@]}"
    coordinator=$pid
    until_true 20 "the coordinator's address" test -s "$1/address"
}
workers() { # FOLDER JOIN: starts two workers
    pids=()
    for i in 0 1; do
        start "$1-$i.log" "$BIN/atoll-worker" --join "$2" --dir "$1-worker-$i" --name "worker-$i" \
            --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin"
        pids+=("$pid")
    done
}
ends() { # FOLDER
    for i in 0 1; do finish "${pids[i]}" 90 0 "worker-$i of $1"; done
    finish "$coordinator" 20 0 "the coordinator of $1"
}

run quiet
workers quiet quiet
ends quiet

# The relay's settings, before any worker joins. Another program may take the processor for a while: five trials.
run measured
start relay.log "$BIN/atoll" relay up=8mbit,down=20mbit,rtt=40ms --join measured --join-file far.join
relay=$pid
until_true 20 "the join file" test -s far.join
near() { # VALUE SETTING: within 15 %
    awk -v v="$1" -v s="$2" 'BEGIN { exit !(v > 0.85 * s && v < 1.15 * s) }'
}
fits() {
    "$BIN/atoll" probe far.join >probe.txt 2>probe.log || fail "probe: $(<probe.log)"
    link=$(sed -nE 's/^link +//p' probe.txt)
    [[ $link =~ ^up=([0-9.]+)mbit,down=([0-9.]+)mbit,rtt=([0-9.]+)ms$ ]] || fail "unexpected output: $(<probe.txt)"
    near "${BASH_REMATCH[1]}" 8 && near "${BASH_REMATCH[2]}" 20 && near "${BASH_REMATCH[3]}" 40
}
fits || fits || fits || fits || fits || fail "up=8mbit,down=20mbit,rtt=40ms is measured as $link"

# While two workers train; the coordinator may still rest after the probes before.
workers measured far.join
until_true 60 "the first round" rounds_reach 1 measured
"$BIN/atoll" probe measured >busy.txt 2>busy.log || fail "probe of a busy run: $(<busy.log)"
ends measured
kill -TERM "$relay"
finish "$relay" 20 0 "the relay"
[[ $(json get quiet/summary.json theta_hash) == "$(json get measured/summary.json theta_hash)" ]] || fail "a probe changes theta"
(($(json get measured/summary.json workers) == 2)) || fail "a probe counts as a worker"

# The bytes of the run are those of its workers: both runs sent the same deltas and updates. Probes count apart.
for way in up down; do
    quiet=$(json get quiet/summary.json "bytes_$way") measured=$(json get measured/summary.json "bytes_$way")
    ((measured < quiet + quiet / 10 && quiet < measured + measured / 10)) || fail "bytes_$way: $quiet without probes, $measured with"
    others=$(json get measured/summary.json "other_bytes_$way")
    ((others > 1000000)) || fail "other_bytes_$way of the run with probes is $others"
    (($(json get quiet/summary.json "other_bytes_$way") < 100000)) || fail "the run without probes has other bytes"
    last=$(grep '"event":"round"' measured/metrics.jsonl | tail -n 1)
    [[ $last == *"\"other_bytes_$way\":"* ]] || fail "the rounds of metrics.jsonl have no other_bytes_$way"
done

refused() { # CODE TEXT ARGUMENT
    local code=0
    "$BIN/atoll" probe "$3" >none.log 2>&1 || code=$?
    [[ $code == "$1" && $(wc -l <none.log) == 1 && $(<none.log) == *"$2"* ]] || fail "probe $3: code $code, $(<none.log)"
}
key=$(printf '%064d' 1)
refused 1 'no coordinator runs in that folder' measured
(umask 077 && echo "tcp://127.0.0.1:1/$key/$key" >dead.join)
refused 1 'refused the connection' dead.join
echo "measured $link; busy: $(sed -nE 's/^link +//p' busy.txt)"
