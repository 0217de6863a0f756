# atoll launch as a supervisor of stubs for coordinator and workers: restarts, signals, exit codes, locks.
# ctest: waits=1
# shellcheck shell=bash source=tests/e2e/cli/cli.sh
source tests/e2e/cli/cli.sh || exit 1
atoll=$ATOLL_BIN/atoll
cd "$tmp"
mkdir bin
export ATOLL_BIN_DIR=$tmp/bin

# The coordinator stub writes its address and ends with 0 when $STUB_DIR/finish exists.
cat >bin/atoll-coordinator <<'STUB'
#!/bin/bash
printf 'coordinator %s\n' "$*" >>"$STUB_LOG"
while (($#)); do [[ $1 != --dir=* ]] || dir=${1#*=}; shift; done
trap 'echo "coordinator stops"; [[ ! -e $STUB_DIR/complete ]] || exit 0; exit 75' TERM
echo $$ >"$dir/coordinator.pid"
echo tcp://127.0.0.1:12345 >"$dir/address.tmp" && mv "$dir/address.tmp" "$dir/address"
echo "round 1"
until [[ -e $STUB_DIR/finish && -e $STUB_DIR/worker-0.pid && -e $STUB_DIR/worker-1.pid ]]; do sleep 0.02; done
echo "{\"method\": \"diloco\", \"restarts\": $(($(grep -c ^coordinator "$STUB_LOG") - 1)), \"wall_s\": 1.5}" >"$dir/summary.json"
STUB

# A worker stub removes the first line of $STUB_DIR/plan-NAME and executes it; without a line it waits. It first waits
# until both stubs started: an early exit could otherwise keep the second stub from starting.
cat >bin/atoll-worker <<'STUB'
#!/bin/bash
printf 'worker %s\n' "$*" >>"$STUB_LOG"
echo "$ATOLL_WORKERS_HERE $ATOLL_HOST_FREE $ATOLL_HOST_COORDINATOR" >"$STUB_DIR/memory"
while (($#)); do [[ $1 == --name ]] && name=$2; shift; done
trap 'exit 75' TERM
echo $$ >"$STUB_DIR/$name.pid"
echo "this is $name"
until [[ -e $STUB_DIR/worker-0.pid && -e $STUB_DIR/worker-1.pid ]]; do sleep 0.02; done
plan=$STUB_DIR/plan-$name
if [[ -s $plan ]]; then
    line=$(head -n 1 "$plan")
    sed -i 1d "$plan"
    eval "$line"
fi
until [[ -e $STUB_DIR/finish ]]; do sleep 0.02; done
STUB
chmod +x bin/*

printf 'some text to train on\n%.0s' {1..2000} >text.txt
"$atoll" prepare some text.txt >/dev/null
cat >run.yaml <<'YAML'
data: {train: "some/train_*.bin", val: "some/val_*.bin"}
train: {max_steps: 10, threads: 2}
YAML

fresh() { # NAME: starts a case with a new folder
    export STUB_DIR=$tmp/$1 STUB_LOG=$tmp/$1/calls
    mkdir "$STUB_DIR"
    rundir=$STUB_DIR/run
}
launch() { "$atoll" launch run.yaml --workers 2 --dir "$rundir" "$@"; }
by=() # command that starts launch (env, nohup)
launch_in_place() { exec "${by[@]}" "$atoll" launch run.yaml --workers 2 --dir "$rundir" "$@"; } # exec makes $! the process id of launch
begin() { launch_in_place "$@" >"$tmp/.bg" 2>&1 & pid=$!; }
ends() { # CODE: of the launch that began
    code=0
    wait "$pid" || code=$?
    [[ $code == "$1" ]] || fail "exit code $code, expected $1: $(<"$tmp/.bg")"
}
calls() { grep -c "^$1" "$STUB_LOG"; }
restarted() { [[ $(calls coordinator) == 2 ]]; }
both_started() { [[ -s $STUB_DIR/worker-0.pid && -s $STUB_DIR/worker-1.pid ]]; }
gone() { ! kill -0 "$1" 2>/dev/null; }
restarts() { sed -nE 's/.*"restarts": ([0-9]+).*/\1/p' "$rundir/summary.json"; }

# A run without faults: prefixes, logs, forwarded settings, summary.
fresh plain
touch "$STUB_DIR/finish"
expect_success launch --inner.learning_rate=0.5
[[ $out == *"round 1"* && $out == *"[w0] this is worker-0"* && $out == *"[w1] this is worker-1"* ]] ||
    fail "unexpected output: $out"
expect_equal "the coordinator's log" "$(<"$rundir/logs/coordinator.log")" "round 1"
expect_equal "a worker's log" "$(<"$rundir/logs/worker-1.log")" "this is worker-1"
grep -q "^coordinator run.yaml --dir=$rundir --inner.learning_rate=0.5 --coordinator.min_workers=2 --coordinator.listen=tcp://127.0.0.1:\*\$" "$STUB_LOG" ||
    fail "unexpected arguments of the coordinator: $(<"$STUB_LOG")"
grep -q "^worker --join=$rundir --dir=$rundir/workers/worker-1 --name worker-1 --data.train=some/train_\*.bin --data.val=some/val_\*.bin --train.threads=2\$" "$STUB_LOG" ||
    fail "unexpected arguments of a worker: $(<"$STUB_LOG")"
expect_equal restarts "$(restarts)" 0
[[ $(<"$STUB_DIR/memory") =~ ^2\ [1-9][0-9]{6,}\ [1-9][0-9]{7,}$ ]] ||
    fail "unexpected memory variables of a worker: $(<"$STUB_DIR/memory")"
expect_success launch --quiet
[[ $out == *"round 1"* && $out != *"[w0]"* ]] || fail "unexpected output with --quiet: $out"

# A worker dies twice and is restarted. The summary counts the restarts; a later launch adds to them.
fresh killed
# shellcheck disable=SC2016 # the stub expands it
printf 'kill -9 $$\necho "atoll: the GPU fell off"; exit 1\ntouch $STUB_DIR/finish\n' >"$STUB_DIR/plan-worker-0"
expect_success launch
expect_equal "starts of workers" "$(calls worker)" 4
expect_equal restarts "$(restarts)" 2
[[ $out == *"worker-0 was killed by signal 9 (Killed): restarting in 250 ms (restart 1 of 10)"$'\n'* ]] ||
    fail "unexpected output: $out"
[[ $out == *"worker-0 exited with code 1: restarting in 500 ms (restart 2 of 10); its error: the GPU fell off"* ]] ||
    fail "unexpected output: $out"
mkdir "$rundir/journal" && touch "$rundir/journal/segment"
expect_success launch
expect_equal "restarts with the second start of the coordinator" "$(restarts)" 3
rm -r "$rundir/journal"
expect_success launch
expect_equal "restarts of a new run" "$(restarts)" 2

# The coordinator dies and is restarted with the same listen address; it keeps its port itself.
fresh coordinator
begin
wait_until 30 both_started
kill -9 "$(<"$rundir/coordinator.pid")"
wait_until 30 restarted
touch "$STUB_DIR/finish"
ends 0
expect_equal "listen address" "$(grep '^coordinator' "$STUB_LOG" | tail -n 1 | grep -o 'listen=.*')" "listen=tcp://127.0.0.1:*"
expect_equal restarts "$(restarts)" 1

# Restarts have a limit. Launch gives up earlier on a child that fails 3 times right after its start.
fresh bounded
# shellcheck disable=SC2016
printf 'kill -9 $$\nkill -9 $$\nkill -9 $$\n' >"$STUB_DIR/plan-worker-0"
run launch --max-restarts 1
expect_equal "exit code" "$code" 1
expect_equal "starts of workers" "$(calls worker)" 3
[[ $out == *"all 1 restarts are used"* ]] || fail "unexpected output: $out"
expect_equal "the error" "$errors" "atoll: worker-0 was killed by signal 9 (Killed): see its log"
fresh fails-at-start
printf 'exit 1\nexit 1\necho "atoll: no disk"; exit 1\nexit 1\n' >"$STUB_DIR/plan-worker-1"
run launch
[[ $out == *"giving up: worker-1 exited with code 1 right after its start, 3 times in a row"* && $out != *"no disk"* ]] ||
    fail "unexpected output: $out"
expect_equal "the error" "$errors" "atoll: worker-1 exited with code 1: no disk"
expect_equal "exit code" "$code" 1
expect_equal "starts of workers" "$(calls worker)" 4
gone "$(<"$STUB_DIR/worker-0.pid")" || fail "worker-0 is still running"

# Exit code 78 (permanent failure): launch stops at once with one line and exit code 1. Workers may use this code only
# if ATOLL_SUPERVISED=1.
fresh permanent
# shellcheck disable=SC2016 # the stub expands it
for i in 0 1; do
    echo 'echo "atoll: no driver here"; [[ $ATOLL_SUPERVISED == 1 ]] && exit 78' >"$STUB_DIR/plan-worker-$i"
done
run launch
expect_equal "exit code" "$code" 1
expect_equal "starts of workers" "$(calls worker)" 2
launch_lines=$(grep '^launch: ' <<<"$out")
[[ $launch_lines == "launch: stopping: worker-"[01]" failed, and a restart would not help" ]] ||
    fail "unexpected lines of launch: $launch_lines"
[[ $out != *"no driver here"* ]] || fail "the output repeats the error: $out"
grep -q 'atoll: no driver here' "$rundir"/logs/worker-*.log || fail "no log of a worker has the error"
[[ $errors == "atoll: worker-"[01]": no driver here" ]] || fail "unexpected error: $errors"

# A worker that SIGTERM kills before it installs its handler is neither reported nor a failure.
# shellcheck disable=SC2016 # the stub expands it
deaf='trap - TERM; touch $STUB_DIR/deaf; exec sleep 20'
fresh early
# shellcheck disable=SC2016 # the stub expands it
echo 'until [[ -e $STUB_DIR/deaf ]]; do sleep 0.02; done; exit 78' >"$STUB_DIR/plan-worker-0"
echo "$deaf" >"$STUB_DIR/plan-worker-1"
run launch
expect_equal "exit code" "$code" 1
[[ $out == *"worker-0 failed, and a restart"* && $out != *"killed by signal"* ]] || fail "unexpected output: $out"
fresh too-early
echo "$deaf" >"$STUB_DIR/plan-worker-0"
begin
wait_until 30 test -e "$STUB_DIR/deaf"
kill -INT $pid
ends 75
! grep -q 'killed by signal' "$tmp/.bg" || fail "unexpected output: $(<"$tmp/.bg")"

# Exit code 2 (wrong usage) stops all processes at once.
fresh usage
echo 'echo "atoll: no such key"; exit 2' >"$STUB_DIR/plan-worker-1"
run launch
[[ $out == *"launch: stopping: worker-1 failed, and a restart would not help"* ]] ||
    fail "unexpected output: $out"
expect_equal "the error" "$errors" "atoll: worker-1: no such key"
expect_equal "exit code" "$code" 2
expect_equal "starts of workers" "$(calls worker)" 2

fresh coordinator-usage
# shellcheck disable=SC2016 # the stub expands it
sed -i '2i [[ -e $STUB_DIR/refuse ]] \&\& { echo "$*" >>"$STUB_LOG"; exit 2; }' bin/atoll-coordinator
touch "$STUB_DIR/refuse"
run launch
expect_equal "exit code" "$code" 2
expect_equal "starts of the coordinator" "$(wc -l <"$STUB_LOG")" 1

# Launch forwards SIGTERM; if all children stop in time, launch exits with 75 (resumable).
fresh term
begin
wait_until 30 both_started
expect_failure 1 "atoll: the run folder $rundir is in use by process $pid: *" launch
kill -TERM $pid
ends 75
expect_equal "the last line" "$(tail -n 1 "$tmp/.bg")" "launch: stopped: continue with the same command"
gone "$(<"$STUB_DIR/worker-0.pid")" || fail "worker-0 is still running"
gone "$(<"$rundir/coordinator.pid")" || fail "the coordinator is still running"

# A run that was complete before the signal ends with 0, even if the workers exit with 75.
fresh complete
touch "$STUB_DIR/complete"
begin
wait_until 30 both_started
kill -TERM $pid
ends 0
! grep -q 'continue with' "$tmp/.bg" || fail "unexpected output: $(<"$tmp/.bg")"

# Launch sends SIGTERM once per child: a second signal would kill a worker while it saves.
fresh one-signal
# shellcheck disable=SC2016 # the stub expands it
echo 'trap "echo TERM >>$STUB_DIR/signals" TERM; touch $STUB_DIR/listens' >"$STUB_DIR/plan-worker-1"
# shellcheck disable=SC2016
echo 'until [[ -e $STUB_DIR/listens ]]; do sleep 0.02; done; exit 78' >"$STUB_DIR/plan-worker-0"
begin
wait_until 30 test -s "$STUB_DIR/signals"
kill -TERM $pid
wait_until 30 grep -q 'stopping: terminated' "$tmp/.bg"
touch "$STUB_DIR/finish"
ends 1
expect_equal "signals" "$(<"$STUB_DIR/signals")" TERM

# SIGHUP (closed terminal) stops launch, but not under nohup.
fresh hangup
by=(env --default-signal=HUP) # the test itself may run under nohup
begin
wait_until 30 both_started
kill -HUP $pid
ends 75
fresh nohup
by=(nohup)
begin
wait_until 30 both_started
kill -HUP $pid
touch "$STUB_DIR/finish"
ends 0
by=()

# Launch inherits an ignored SIGCHLD and still waits for its children.
fresh sigchld-ignored
touch "$STUB_DIR/finish"
by=(env --ignore-signal=CHLD)
begin
wait_until 30 gone $pid
ends 0
by=()

# Launch kills children that are still running after --stop-timeout.
fresh stubborn
echo "trap '' TERM; touch \$STUB_DIR/deaf" >"$STUB_DIR/plan-worker-0"
begin --stop-timeout 0.5
wait_until 30 test -e "$STUB_DIR/deaf"
kill -INT $pid
ends 75
grep -q 'killing all: still running after' "$tmp/.bg" || fail "unexpected output: $(<"$tmp/.bg")"
gone "$(<"$STUB_DIR/worker-0.pid")" || fail "the worker that ignores SIGTERM is still running"

# A child that prints faster than launch reads does not delay the handling of SIGTERM.
fresh endless
echo 'for i in 1 2 3 4; do yes & done; wait' >"$STUB_DIR/plan-worker-0"
begin
wait_until 30 grep -qx y "$rundir/logs/worker-0.log"
kill -TERM $pid
wait_until 30 gone $pid
ends 75

# SIGKILL of launch leaves no process and no lock behind.
fresh sigkill
begin
wait_until 30 both_started
kill -9 $pid
wait $pid 2>/dev/null || true
wait_until 30 gone "$(<"$STUB_DIR/worker-0.pid")"
wait_until 30 gone "$(<"$STUB_DIR/worker-1.pid")"
wait_until 30 gone "$(<"$rundir/coordinator.pid")"
touch "$STUB_DIR/finish"
expect_success launch

# --resume never refuses a folder with a run; --resume auto continues it.
mkdir -p "$rundir/journal"
touch "$rundir/journal/log"
expect_success launch --resume never # a journal without a checkpoint or metrics is no run yet
mkdir -p "$rundir/checkpoints/round_000000"
expect_failure 1 "atoll: $rundir already holds a run and --resume is never*" launch --resume never
rmdir "$rundir/checkpoints/round_000000" # a run can continue from its journal alone
echo '{}' >"$rundir/metrics.jsonl"
expect_failure 1 "atoll: $rundir already holds a run and --resume is never*" launch --resume never
rm "$rundir/metrics.jsonl"
expect_success launch --resume auto
expect_failure 2 'atoll: --resume: must does not exist: *' launch --resume must
expect_failure 2 'atoll: --workers is missing*' "$atoll" launch run.yaml --dir "$rundir"
expect_failure 2 'atoll: --dir is missing*' "$atoll" launch run.yaml --workers 1
expect_failure 2 'atoll: nowhere.yaml: *' "$atoll" launch nowhere.yaml --workers 1 --dir "$rundir"
expect_failure 2 'atoll: unknown option --worker: did you mean --workers?*' launch --worker 3
expect_failure 2 'atoll: --workers is 65 and coordinator.max_workers is 64: *' "$atoll" launch run.yaml --workers 65 --dir "$tmp/none"
expect_failure 2 'atoll: data.train: no token shards match *' "$atoll" launch run.yaml --workers 1 --dir "$tmp/none" --data.train=nowhere
ln -s loop "$tmp/loop"
expect_failure 1 "atoll: data.train: no token shards match *: cannot read the folder *loop: Too many levels*" "$atoll" launch run.yaml --workers 1 \
    --dir "$tmp/none" --data.train="$tmp/loop/train_*.bin"
expect_failure 2 'atoll: data.val: no token shards match *' "$atoll" launch run.yaml --workers 1 --dir "$tmp/none" --data.val=nowhere
expect_failure 2 'atoll: cannot listen on tcp://192.0.2.1:29600: this machine does not have that address*' \
    "$atoll" launch run.yaml --workers 1 --dir "$tmp/none" --coordinator.listen=tcp://192.0.2.1:29600
expect_failure 2 'atoll: some contains meta.json but no run: *' "$atoll" launch run.yaml --workers 1 --dir some
expect_success "$atoll" help launch
[[ $out == 'usage: atoll launch '* ]] || fail "unexpected output of help launch: $out"
expect_failure 2 'atoll: unknown verb *foo*' "$atoll" help foo
expect_failure 2 'atoll: unexpected argument *zzz*' "$atoll" config help zzz
[[ ! -e $tmp/none ]] || fail "a refused launch left a run folder"
expect_failure 1 "atoll: cannot start */none/atoll-coordinator: *" env ATOLL_BIN_DIR="$tmp/none" "$atoll" launch run.yaml --workers 1 --dir "$tmp/x"
done_testing
