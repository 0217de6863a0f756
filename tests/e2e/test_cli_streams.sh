#!/usr/bin/env bash
# Standard output and error that are closed, full, or not read to the end, and a terminal that is closed: no line of
# them lands in a file of the run, no run ends by it, and a result that could not be written is a failure.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.max_steps=20
by=() # what they are started by
coordinator() { exec "${by[@]}" "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}" "$@"; }
worker() { exec "${by[@]}" "$BIN/atoll-worker" --join run --dir worker --name worker --data.train='data/train_*.bin'; }

# Closed: what is opened first would have their numbers.
closed() { "$@" <&- >&- 2>&-; }
start none.log closed coordinator
coordinator=$pid
start none.log closed worker
finish "$pid" 60 0 "a worker without standard streams"
finish "$coordinator" 60 0 "a coordinator without standard streams"
grep -qv '^{' run/metrics.jsonl && fail "something else in metrics.jsonl: $(grep -v '^{' run/metrics.jsonl)"
start again.log coordinator
coordinator=$pid
start again.log worker
finish "$pid" 60 0 "the worker, started again"
finish "$coordinator" 60 0 "the coordinator, started again"
rm run/summary.json
start last.log coordinator # it waits a while for workers that have not heard of the end
until_true 60 "its address" grep -q '^listening' last.log
kill -TERM "$pid"
finish "$pid" 60 0 "the coordinator of a complete run, stopped"
[[ -s run/summary.json ]] || fail "no summary"
echo "closed: nothing is written into files of the run"

# A reader that ends.
rm -rf run worker
start head.log coordinator
coordinator=$pid
one_line() { read -r _; }
code=0
(worker) 2>&1 | one_line || code=$?
((code == 0)) || fail "a worker whose reader ended: $code"
finish "$coordinator" 60 0 "its coordinator"
checkpoint=run/checkpoints/$(<run/checkpoints/latest)
cp -r "$checkpoint" model
cp -r run complete
timeout 60 "$BIN/atoll" generate "$checkpoint" --tokens 1000000 | one_line || fail "generate goes on: ${PIPESTATUS[0]}"
echo "not read to the end: the run goes on, generate ends"

# A terminal that is closed: SIGHUP ends a program like SIGTERM, unless it was started with nohup.
hang_up() { # code what
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
by=(env --default-signal=HUP) # this test may run under nohup itself
hang_up 75 "whose terminal is closed"
by=(nohup)
hang_up 0 "started with nohup"
echo "hung up: ends and can be resumed, or goes on"

# Full.
code=0
"$BIN/atoll" config print run.yaml >/dev/full 2>full.txt || code=$?
[[ $code == 1 && $(<full.txt) == 'atoll: cannot write the output: No space left on device' ]] ||
    fail "config print to a full disk: $code $(<full.txt)"
for words in 'atoll help' 'atoll help launch' 'atoll launch --help' 'atoll --version' 'atoll prepare again text.txt' \
    'atoll export model out' 'atoll status complete' 'atoll codec list' 'atoll generate model --tokens 3' 'atoll config print run.yaml' \
    'atoll-coordinator --version' 'atoll-worker --help'; do
    rm -rf out
    code=0
    # shellcheck disable=SC2086 # words
    "$BIN"/$words >/dev/full 2>full.txt || code=$?
    [[ $code == 1 && $(<full.txt) == 'atoll: cannot write the output: No space left on device' ]] ||
        fail "$words to a full disk: $code $(<full.txt)"
    rm -rf out
    code=0
    # shellcheck disable=SC2086 # words
    "$BIN"/$words >&- 2>full.txt || code=$?
    [[ $code == 1 && $(<full.txt) == 'atoll: cannot write the output: standard output is closed' ]] ||
        fail "$words to an output that is closed: $code $(<full.txt)"
done
"$BIN/atoll" config print run.yaml | one_line || fail "config print to a reader that ends: ${PIPESTATUS[0]}"
echo "full: a result that is not whole is a failure"

# What a worker may set, as `atoll config help` has it.
"$BIN/atoll-worker" --help >help.txt
while read -r key; do
    grep -qF "$key" help.txt || fail "atoll-worker --help does not name $key, which is local"
done < <("$BIN/atoll" config help | sed -nE 's/^  ([a-z_.]+) .* \(local\) .*/\1/p' | grep -v '^coordinator\.')
echo "atoll-worker --help names all keys that are a worker's own"

# Without a name service (or with none that knows the name) status fails at once, not after --timeout.
if unshare -rn true 2>/dev/null; then
    key=$(printf '%064d' 0) code=0
    unshare -rn "$BIN/atoll" status "tcp://no-such-host.invalid:29600/$key/$key" --timeout=1000 2>host.txt || code=$?
    [[ $code == 1 && $(<host.txt) == 'atoll: host no-such-host.invalid: '* ]] ||
        fail "status without a name service: $(<host.txt)"
    echo "a name service that does not answer is not waited for by status"
    if ! grep -q 'not found' host.txt; then
        start early.log unshare -rn "$BIN/atoll-worker" --join "tcp://no-such-host.invalid:29600/$key/$key" \
            --name early --data.train="$WORK/data/train_*.bin"
        until_true 60 "the worker's line" grep -q 'retrying: host no-such-host.invalid: DNS does not answer' early.log
        kill -TERM "$pid"
        finish "$pid" 60 75 "a worker that waits for a name service"
        [[ ! -e atoll-worker-early ]] || fail "it leaves a folder"
        echo "a worker that waits for one ends when it is told to"
    fi
fi
