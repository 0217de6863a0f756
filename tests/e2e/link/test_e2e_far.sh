#!/usr/bin/env bash
# A path with a round trip of 0.9 s between two network namespaces: a worker joins, status answers, the run ends with
# the same parameters, and a port that says nothing is named. ATOLL_LONG=1: also 0.5, 1.4 and 2.0 s, 0.6 s with 5 % loss,
# probe, a coordinator that restarts meanwhile, and a path that drops large packets.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml train.max_steps=15 train.eval_every=0

path() { # RTT_MS LOSS_PERCENT [BYTES]
    local code=0
    rm -f path.log
    start path.log "$BIN/e2e_tun" "$@"
    path=$pid
    for ((i = 0; i < 100; i++)); do
        ! grep -q ready path.log || return 0
        kill -0 "$path" 2>/dev/null || break
        sleep 0.05
    done
    wait "$path" || code=$?
    cat path.log
    exit $((code == 77 ? 77 : 1))
}
ends_now() { # PID
    kill -KILL "$1"
    wait "$1" 2>/dev/null || true
    ended "$1"
}
at() { # NUMBER LOG COMMAND...: starts COMMAND in that namespace
    start "$2" "$BIN/e2e_tun" in "$path" "$1" "${@:3}"
}
coordinator() { # FOLDER [SETTINGS...]
    at 1 "$1.log" "$BIN/atoll-coordinator" run.yaml --dir "$1" --coordinator.listen='tcp://10.99.0.1:*' "${overrides[@]}" "${@:2}"
    coordinator=$pid
    until_true 20 "the address of $1" test -s "$1/address"
    (umask 077 && tail -n 1 "$1/address" >"$1.join")
}
worker() { # FOLDER
    at 2 "$1-worker.log" "$BIN/atoll-worker" --join "$1.join" --dir "$1-worker" --name far --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin"
    worker=$pid
}
ends() { # FOLDER SECONDS
    finish "$worker" "$2" 0 "the worker of $1"
    finish "$coordinator" 20 0 "the coordinator of $1"
    [[ $(json get "$1/summary.json" theta_hash) == "$near" ]] || fail "$1: the path changes theta"
}
run_over() { # RTT_MS LOSS_PERCENT SECONDS
    local began joined=0 folder=run-$1-$2
    path "$1" "$2"
    coordinator "$folder"
    began=$(now_ms)
    worker "$folder"
    until_true 60 "the join over $1 ms, $2 %" grep -q 'far joined' "$folder.log"
    joined=$(($(now_ms) - began))
    ends "$folder" "$3"
    echo "round trip $1 ms, loss $2 %: joined after $(seconds $joined) s, 3 rounds after $(seconds $(($(now_ms) - began))) s"
    ends_now "$path"
}

"$BIN/atoll" launch run.yaml --workers 1 --dir near --quiet "${overrides[@]}" >near.log 2>&1 || fail "near: $(<near.log)"
near=$(json get near/summary.json theta_hash)

path 900 0
coordinator silent
kill -STOP "$coordinator"

worker silent
finish "$worker" 15 1 "a worker whose coordinator says nothing"
grep -qE '^atoll: cannot join: .* accepts connections, but says nothing for [0-9.]+ s \(round trip 9[0-9]{2} ms\)' silent-worker.log ||
    fail "unexpected text: $(<silent-worker.log)"
ends_now "$coordinator"

coordinator run
worker run
at 2 status.txt "$BIN/atoll" status run.join
status=$pid
finish "$status" 30 0 "status"
grep -q '^run .*e2e' status.txt || fail "status: $(<status.txt)"
ends run 60
((LONG)) || exit 0

coordinator measured
at 2 probe.txt "$BIN/atoll" probe measured.join
finish "$pid" 150 0 "probe"
grep -qE '^round trip +9[0-9]{2} ms' probe.txt || fail "probe: $(<probe.txt)"
ends_now "$coordinator"
ends_now "$path"

run_over 500 0 60
run_over 1400 0 90
run_over 2000 0 120
run_over 600 5 120

# The coordinator dies and comes back in the middle of the run: the worker connects again.
path 1400 0
coordinator again
worker again
until_true 60 "the first round" grep -q '"event":"round"' again/metrics.jsonl
ends_now "$coordinator"
rm again/address
coordinator again
ends again 120
ends_now "$path"

# Large packets get lost: worker, coordinator and status say so. The run goes on when they pass again.
path 40 0 1400
overrides+=(--train.max_steps=1000)
coordinator hole
worker hole
until_true 20 "the first round" grep -q '"event":"round"' hole/metrics.jsonl
kill -USR1 "$path"
# The coordinator names each path, the worker the path of its uploads: the hole may open in a download.
until_true 90 "the coordinator's line" grep -qE 'warn: the path (to|from) far probably drops large packets \(MTU\)' hole.log
grep -q 'warn: the path to far probably' hole.log ||
    until_true 20 "the worker's line" grep -q 'warn: the path to the coordinator probably drops large packets (MTU)' hole-worker.log
"$BIN/e2e_tun" in "$path" 1 "$BIN/atoll" status hole >hole.txt
grep -q 'the path probably drops large packets (MTU)' hole.txt || fail "status does not name the path: $(<hole.txt)"
rounds=$(grep -c '"event":"round"' hole/metrics.jsonl)
kill -USR1 "$path"
more_rounds() { (($(grep -c '"event":"round"' hole/metrics.jsonl) > rounds + 2)); }
until_true 60 "rounds after the path is whole again" more_rounds
ends_now "$coordinator"
ends_now "$path"

# They get lost from the beginning: the configuration does not arrive.
path 40 0 600
kill -USR1 "$path"
coordinator never
worker never
until_true 60 "the worker's line" grep -q 'waiting for the coordinator.* it is connected, but does not answer: it is busy, or the path drops large packets (MTU)' never-worker.log
