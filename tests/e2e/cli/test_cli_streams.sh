#!/usr/bin/env bash
# Standard streams that are closed, full, or not read to the end, and a closed terminal:
# - No log line reaches a file of the run.
# - No run ends because of its streams.
# - A command fails if it cannot write its result.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.max_steps=20
by=() # command that starts the programs (env, nohup)
coordinator() { exec "${by[@]}" "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}" "$@"; }
worker() { exec "${by[@]}" "$BIN/atoll-worker" --join run --dir worker --name worker --data.train='data/train_*.bin'; }

# Closed streams: without precautions, the first files opened would get the descriptors 0 to 2.
closed() { "$@" <&- >&- 2>&-; }
start none.log closed coordinator
coordinator=$pid
start none.log closed worker
finish "$pid" 60 0 "a worker without standard streams"
finish "$coordinator" 60 0 "a coordinator without standard streams"
grep -qv '^{' run/metrics.jsonl && fail "metrics.jsonl has a foreign line: $(grep -v '^{' run/metrics.jsonl)"
start again.log coordinator
coordinator=$pid
start again.log worker
finish "$pid" 60 0 "the restarted worker"
finish "$coordinator" 60 0 "the restarted coordinator"
rm run/summary.json
start last.log coordinator # waits for workers that have not received DONE
until_true 60 "the address of the coordinator" grep -q '^listening' last.log
kill -TERM "$pid"
finish "$pid" 60 0 "the coordinator of a complete run after SIGTERM"
[[ -s run/summary.json ]] || fail "the coordinator wrote no summary.json"
echo "closed: no log line is in the files of the run"

# A reader that ends early.
rm -rf run worker
start head.log coordinator
coordinator=$pid
one_line() { read -r _; }
code=0
(worker) 2>&1 | one_line || code=$?
((code == 0)) || fail "a worker whose reader ended: exit code $code"
finish "$coordinator" 60 0 "the coordinator of that worker"
checkpoint=run/checkpoints/$(readlink run/checkpoints/latest)
cp -r "$checkpoint" model
cp -r run complete
timeout 60 "$BIN/atoll" generate "$checkpoint" --tokens 1000000 | one_line ||
    fail "generate does not end with its reader: exit code ${PIPESTATUS[0]}"
echo "reader ended: the run continues, generate ends"

# A closed terminal: SIGHUP ends a program like SIGTERM, unless nohup started it.
hang_up() { # EXPECTED_CODE WHAT
    local code=$1 what=$2
    rm -rf run worker
    start hup.log coordinator --train.max_steps=10000000
    coordinator=$pid
    start hup.log worker
    until_true 60 "a round" rounds_reach 1
    kill -HUP "$pid" "$coordinator"
    if ((code == 0)); then
        until_true 60 "rounds after SIGHUP" rounds_reach $(($(rounds_done) + 3))
        kill -TERM "$pid" "$coordinator"
    fi
    finish "$pid" 60 75 "a worker $what"
    finish "$coordinator" 60 75 "a coordinator $what"
}
by=(env --default-signal=HUP) # the test itself may run under nohup
hang_up 75 "whose terminal is closed"
by=(nohup)
hang_up 0 "started with nohup"
echo "SIGHUP: the programs end and can resume, or continue under nohup"

# A full disk.
code=0
"$BIN/atoll" config print run.yaml >/dev/full 2>full.txt || code=$?
[[ $code == 1 && $(<full.txt) == 'atoll: cannot write the output: No space left on device' ]] ||
    fail "config print to a full disk: exit code $code: $(<full.txt)"
for words in 'atoll help' 'atoll help launch' 'atoll launch --help' 'atoll --version' 'atoll prepare again text.txt --force' \
    'atoll export model out' 'atoll status complete' 'atoll codec list' 'atoll generate model --tokens 3' 'atoll config print run.yaml' \
    'atoll-coordinator --version' 'atoll-worker --help'; do
    rm -rf out
    code=0
    # shellcheck disable=SC2086 # split into words
    "$BIN"/$words >/dev/full 2>full.txt || code=$?
    [[ $code == 1 && $(<full.txt) == 'atoll: cannot write the output: No space left on device' ]] ||
        fail "$words to a full disk: exit code $code: $(<full.txt)"
    rm -rf out
    code=0
    # shellcheck disable=SC2086 # split into words
    "$BIN"/$words >&- 2>full.txt || code=$?
    [[ $code == 1 && $(<full.txt) == 'atoll: cannot write the output: standard output is closed' ]] ||
        fail "$words to a closed output: exit code $code: $(<full.txt)"
done
"$BIN/atoll" config print run.yaml | one_line || fail "config print to a reader that ended: exit code ${PIPESTATUS[0]}"
echo "full: an incomplete result is a failure"

# If the name service is missing or does not know the host, status fails at once, not after --timeout.
if unshare -rn true 2>/dev/null; then
    key=$(printf '%064d' 0) code=0
    ATOLL_JOIN=tcp://no-such-host.invalid:29600/$key/$key unshare -rn "$BIN/atoll" status --timeout=1000 2>host.txt || code=$?
    [[ $code == 1 && $(<host.txt) == 'atoll: host no-such-host.invalid: '* ]] ||
        fail "status without a name service: $(<host.txt)"
    echo "status does not wait for a missing name service"
    if ! grep -q 'not found' host.txt; then
        start early.log unshare -rn "$BIN/atoll-worker" --join "tcp://no-such-host.invalid:29600/$key/$key" \
            --name early --data.train="$WORK/data/train_*.bin"
        until_true 60 "the log line about the name service" grep -q 'retrying: host no-such-host.invalid: DNS does not answer' early.log
        kill -TERM "$pid"
        finish "$pid" 60 75 "a worker after SIGTERM while it waits for a name service"
        [[ ! -e atoll-worker-early ]] || fail "a worker that never connected leaves a folder"
        echo "a worker that waits for a name service ends on SIGTERM"
    fi
fi

# A name that does not exist yet: final without --max-wait, retried with it until the name is there.
if unshare -rnm true 2>/dev/null; then
    key=$(printf '%064d' 0) code=0
    echo 'hosts: files' >nsswitch.conf
    echo '127.0.0.1 localhost' >hosts
    booting() { # ARGS: a worker whose coordinator's name comes from ./hosts alone
        # shellcheck disable=SC2016 # the inner shell expands
        export ATOLL_JOIN=tcp://boots-later:29600/$key/$key
        exec unshare -rnm bash -c 'mount --bind hosts /etc/hosts && mount --bind nsswitch.conf /etc/nsswitch.conf && exec "$@"' - \
            "$BIN/atoll-worker" --data.train="$WORK/data/train_*.bin" "$@"
    }
    (booting --name late) >final.txt 2>&1 || code=$?
    [[ $code == 2 && $(<final.txt) == 'atoll: host boots-later: not found (check the spelling)' ]] ||
        fail "a name that does not exist: exit code $code: $(<final.txt)"
    start late.log booting --name late --max-wait 60
    until_true 20 "the log line about the name" grep -q 'retrying: host boots-later: not found (check the spelling)' late.log
    echo '127.0.0.1 boots-later' >>hosts
    until_true 20 "the answer of the host" grep -q 'retrying: .*tcp://boots-later:29600' late.log
    kill -TERM "$pid"
    finish "$pid" 60 75 "a worker after SIGTERM while it waits for a coordinator"
    echo "a name that does not exist yet is retried"
fi
