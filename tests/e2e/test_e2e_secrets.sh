#!/usr/bin/env bash
# Secrets of a run on the network:
# - No log, metrics file, summary or config.yaml holds a key. The terminal of launch and of the coordinator shows the
#   join line.
# - The worker's command line in /proc loses its secret; a join line also comes from ATOLL_JOIN, a file or stdin.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

network=--coordinator.listen='tcp://0.0.0.0:*'
make_data
write_config run.yaml train.max_steps=1000000 log.level=trace

# keys_of RUN: sets $keys to a pattern of the keys of the run in hex.
keys_of() { keys=$(grep -ohE '[0-9a-fA-F]{32,}' "$1/keys" "$1/address" | sort -u | paste -sd '|' -); }

# no_keys FOLDER...: no file but those that hold the keys contains one.
no_keys() {
    local found
    found=$(grep -rliE "$keys" "$@" --exclude=keys --exclude=address --exclude=key || true)
    [[ -z $found ]] || fail "a key is in: $found"
}

# --- launch without a terminal: its output is a log, too
start launch.log "$BIN/atoll" launch run.yaml --workers 1 --dir run "$network" "${overrides[@]}"
launch=$pid
until_true 20 "a round" grep -qs '"event": *"round"' run/metrics.jsonl
[[ $(stat -c %a run/address) == 600 ]] || fail "run/address has mode $(stat -c %a run/address)"
keys_of run
[[ $keys == *'|'* ]] || fail "run/address holds no keys"
line=$(tail -n 1 run/address)

# --- a worker by each way; each joins the run
join() { # NAME COMMAND...
    local name=$1
    shift
    start "$name.log" "$@" --dir "$name" --name "$name" --data.train="$WORK/data/train_*.bin" --train.threads=1
    until_true 20 "$name in the run" grep -q "^$name joined" launch.log
    command_of "$pid" || fail "$name ended: $(tail -n 3 "$name.log")"
    ! grep -qiE "$keys" <<<"$command" || fail "the secret is in the list of processes: $command"
    kill "$pid"
    finish "$pid" 20 75 "$name"
}
(umask 077 && echo "$line" >secret.join)
feed() { exec "$@" <secret.join; }
join by-line "$BIN/atoll-worker" --join "$line"
grep -q 'list of processes' by-line.log || fail "no advice about the list of processes: $(<by-line.log)"
join by-file "$BIN/atoll-worker" --join secret.join
! grep 'warn' by-file.log | grep -qv ' coordinator: ' || fail "a warning about a private file: $(<by-file.log)"
join by-stdin feed "$BIN/atoll-worker" --join -
ATOLL_JOIN=$line join by-env "$BIN/atoll-worker"
ATOLL_JOIN=$line "$BIN/atoll" status >status.txt 2>&1 || fail "status by ATOLL_JOIN: $(<status.txt)"
"$BIN/atoll" status - <secret.join >status.txt 2>&1 || fail "status by standard input: $(<status.txt)"
for typo in "tcp:/${line#tcp://}" "tcp;//${line#tcp://}"; do
    code=0
    "$BIN/atoll-worker" --join "$typo" --name typo --data.train='data/train_*.bin' >typo.log 2>&1 || code=$?
    ((code == 2)) || fail "a mistyped join line ends with $code: $(<typo.log)"
    grep -q 'is a mistyped join line' typo.log || fail "unexpected answer to a mistyped join line: $(<typo.log)"
done

kill "$launch"
finish "$launch" 20 75 "atoll launch"
no_keys run/logs run/metrics.jsonl run/config.yaml ./*.log

# --- on a terminal
command -v script >/dev/null || exit 0
start terminal.txt script -qec "'$BIN/atoll' launch run.yaml --workers 1 --dir shown '$network' --train.max_steps=5 --train.sync_every=5 --log.level=info" \
    /dev/null
finish "$pid" 30 0 "atoll launch on a terminal"
grep -qE 'join line \(secret\): tcp://.*/[0-9a-f]{64}/[0-9a-f]{64}' terminal.txt || fail "launch shows no join line: $(<terminal.txt)"
keys=$(grep -oE '[0-9a-fA-F]{64}' terminal.txt | sort -u | paste -sd '|' -)
no_keys shown/logs shown/metrics.jsonl shown/config.yaml shown/summary.json
