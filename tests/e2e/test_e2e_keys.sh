#!/usr/bin/env bash
# Keys, on one machine:
# - All secrets and identities have mode 0600, and no log and no command line holds a secret.
# - Another user of the machine, who cannot read the run folder, gets no answer on loopback.
# - A thief who takes the name of a connected worker is refused.
# - atoll revoke ends a worker of a running coordinator; the others go on; the old secret is void.
# - atoll keygen, atoll workers --add: a worker joins without a secret.
# - atoll revoke without a running coordinator.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.method=diloco train.max_steps=1000000 train.sync_every=5 train.eval_every=0 \
    coordinator.evict_after_s=30

worker() { # LOG JOIN DIR NAME
    start "$1" "$BIN/atoll-worker" --join "$2" --dir "$3" --name "$4" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --train.threads=1
}
joined() { grep -q "\"event\":\"join\",\"worker\":\"$1\"" run/metrics.jsonl; }
private() { # FILE...
    local file
    for file in "$@"; do
        [[ -e $file ]] || fail "$file is missing"
        [[ $(stat -c %a "$file") == 600 ]] || fail "$file has mode $(stat -c %a "$file"), expected 600"
    done
}

umask 022
node_start coordinator
until_true 30 "the address" test -s run/address
line=$(head -n 1 run/address)
secret=${line##*/}
node_start worker-0
node_start worker-1
until_true 60 "both workers" joined worker-1
until_true 60 "some rounds" rounds_reach 5

# --- modes, logs, command lines
until_true 30 "a second saved state" test -s worker-0/state.old.bin
private run/keys run/address run/worker-keys worker-0/key
open=$(find worker-0 -name 'state*.bin' -perm /177 2>find.log || true) # a save renames them meanwhile
[[ -z $open ]] || fail "saved states that others may read: $open"
[[ ! -e worker-0/uuid ]] || fail "the worker's folder still has a uuid"
if grep -rql "$secret" run/metrics.jsonl run/config.yaml worker-0.log run/logs 2>/dev/null; then
    fail "a log holds the secret of the join line"
fi
echo "modes: secrets and identities are private"

# --- another user knows the port only
endpoint=${line%%/"${line#tcp://*/}"}
code=0
"$BIN/atoll" status "$endpoint" --timeout 2 >stranger.txt 2>&1 || code=$?
((code != 0)) || fail "a stranger on loopback got the status"
[[ $(grep -c round stranger.txt) == 0 ]] || fail "the answer to a stranger: $(cat stranger.txt)"
other=$(printf '%064d' 7)
"$BIN/atoll" status "${line%/*}/$other" --timeout 2 >stranger.txt 2>&1 && fail "another secret got the status"
grep -q 'refused a connection from 127.0.0.1: its key is not enrolled' coordinator.log ||
    fail "the coordinator has no line about the refused key"
echo "loopback: a stranger gets no answer"

# --- a thief with the name of worker-0
worker thief.log run thief worker-0
until_true 30 "the refusal of the thief" grep -q "another worker with the name 'worker-0' is connected" thief.log
node_alive worker-0 || fail "worker-0 ended"
kill "$pid"
ended "$pid"
echo "thief: refused"

# --- revoke, while the coordinator runs
at=$(rounds_done)
before=$(now_ms)
"$BIN/atoll" revoke run worker-1 >revoke.txt
finish "${node_pid[worker-1]}" 20 2 worker-1
echo "revoked worker ended after $(($(now_ms) - before)) ms"
grep -q 'the operator of this run has revoked the key of this worker' worker-1.log ||
    fail "worker-1 ended with another line: $(tail -n 1 worker-1.log)"
"$BIN/atoll" workers run >workers.txt
grep -Eq '^worker-1 +revoked' workers.txt || fail "atoll workers: $(cat workers.txt)"
[[ $(head -n 1 run/address) != "$line" ]] || fail "the join line did not change"
until_true 30 "rounds without worker-1" rounds_reach $((at + 3))
"$BIN/atoll" status "$line" --timeout 1 >old.txt 2>&1 && fail "the old join line still works"
grep -q 'refused the secret of this join line.*; on a worker.s machine: --dir with the worker.s folder' old.txt ||
    fail "the refusal does not say what an enrolled worker's machine does: $(<old.txt)"
"$BIN/atoll" status "$line" --timeout 30 --dir worker-0 >own.txt 2>&1 || fail "status with the key of a worker: $(<own.txt)"
grep -q '^worker-0 ' own.txt || fail "status with the key of a worker: $(<own.txt)"
"$BIN/atoll" status "$line" --timeout 1 --dir worker-1 >own.txt 2>&1 && fail "a revoked key got the status"
"$BIN/atoll" status "$line" --dir nowhere >own.txt 2>&1 && fail "a missing key got the status"
[[ $(tail -n 1 own.txt) == 'atoll: cannot open nowhere/key: '* ]] || fail "a missing key: $(<own.txt)"
"$BIN/atoll" status run >/dev/null || fail "atoll status RUN fails after a revoke"
node_start worker-1
finish "${node_pid[worker-1]}" 20 2 "the revoked worker, started again"
echo "revoke: running coordinator"

# --- a worker that the operator enrolls; worker-0 starts again without a secret
key=$("$BIN/atoll" keygen made)
[[ $key == "$("$BIN/atoll" keygen made)" ]] || fail "keygen made another key"
"$BIN/atoll" workers run --add made "$key"
worker made.log "${line%/*}" made made
until_true 30 "the enrolled worker" joined made
node_kill worker-0
worker again.log "${line%/*}" worker-0 worker-0
until_true 30 "worker-0, without a secret" grep -q 'loaded the saved state' again.log
again=$pid
echo "enrolled workers join without a secret"

# --- revoke, while the coordinator is stopped
kill "${node_pid[coordinator]}"
finish "${node_pid[coordinator]}" 30 75 coordinator
"$BIN/atoll" revoke run made >revoke.txt
node_start coordinator
until_true 30 "the end of the revoked worker" grep -q 'refused the\|revoked' made.log
until_true 30 "its eviction" grep -q 'made.*revoked' coordinator.log
at=$(rounds_done)
until_true 30 "rounds of worker-0 alone" rounds_reach $((at + 3))
kill "$again"
echo "revoke: stopped coordinator"
