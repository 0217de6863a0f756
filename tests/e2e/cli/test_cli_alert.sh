#!/usr/bin/env bash
# `atoll alert`: a command for each alert, for a coordinator that is away, and for the end of the run; by run folder and by
# join line. It is killed after its time, and its failure is logged.
# ctest: timeout=180 waits=1 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
cat >hook <<'SH'
#!/bin/sh
read -r line
printf '%s|%s|%s|%s|%s|%s\n' "$ATOLL_ALERT_RUN" "$ATOLL_ALERT_RULE" "$ATOLL_ALERT_STATE" "$ATOLL_ALERT_TEXT" "$line" "$2" >>"$1"
SH
chmod +x hook

# --- wrong usage: one line, before anything is followed ----------------------------------------------------------------

wrong() { # TEXT ARGS...
    local text=$1 status=0
    shift
    "$BIN/atoll" alert "$@" >wrong.log 2>&1 || status=$?
    ((status == 2)) || fail "alert $*: exit code $status: $(<wrong.log)"
    grep -q "$text" wrong.log || fail "alert $*: $(<wrong.log)"
}
mkdir run
wrong 'the command is missing: give it after --' run
wrong 'no program no-such-program is in PATH' run -- no-such-program
wrong 'cannot run ./absent' run -- ./absent
wrong 'every is 0' run --every 0 -- ./hook
wrong 'too few arguments' -- ./hook

# --- a run folder: the budget at 80 %, the stop, the end ---------------------------------------------------------------

write_config run.yaml train.max_steps=10000000 coordinator.min_workers=1
node_start coordinator
until_true 20 "the coordinator" test -s run/address
start alert.log "$BIN/atoll" alert run --every 1 --away 2 -- ./hook out '{}'
alert=$pid
tail -n 1 run/address >line
chmod 600 line
start far.log env ATOLL_JOIN="$(<line)" "$BIN/atoll" alert --every 1 --away 2 -- ./hook far
far=$pid
node_start a
until_true 60 "three rounds" rounds_reach 3
node_kill coordinator || fail "the coordinator had ended"
until_true 30 "the command for a lost coordinator" grep -q '^e2e|away|start|' out
until_true 30 "the same by join line" grep -q '^e2e|away|start|' far
grep -q "|atoll e2e: away: the run in run is stopped, .*|atoll e2e: away: the run in run is stopped, " out ||
    fail "the text is not on standard input and in place of {}: $(<out)"
overrides+=(--run.max_hours="$(python3 -c "print(($SECONDS + 12) / 3600)")") # all of it in about 12 s, 80 % before
node_start coordinator
until_true 60 "the budget at 80 %" grep -qE '^e2e\|budget\|start\|[89][0-9] % of run.max_hours is used: ' out
until_true 60 "the budget at 80 %" grep -qE '^e2e\|budget\|start\|[89][0-9] % of run.max_hours is used: ' far
finish "${node_pid[coordinator]}" 60 75 "the coordinator"
finish "${node_pid[a]}" 20 75 "the worker"
kill -TERM "$alert" "$far"
finish "$alert" 20 0 "atoll alert after SIGTERM"
finish "$far" 20 0 "atoll alert by join line after SIGTERM"

rm -rf run a
write_config run.yaml train.max_steps=1000
node_start coordinator
until_true 20 "the coordinator" test -s run/address
start alert.log "$BIN/atoll" alert run --every 1 -- ./hook end
alert=$pid
until_true 20 "a look at the run" bash -c "sleep 1.5; kill -0 $alert"
node_start a
finish "${node_pid[coordinator]}" 60 0 "the coordinator"
finish "$alert" 30 0 "atoll alert at the end of the run"
grep -qE '^e2e\|done\|start\|the run is done: [0-9]+ rounds, final validation loss [0-9.]+\|' end || fail "the end: $(<end)"
echo "alerts, a lost coordinator and the end of the run reach the command"

# --- a command that hangs or fails -------------------------------------------------------------------------------------

write_config run.yaml train.max_steps=10000000
node_kill a || true
rm -rf run a
node_start coordinator
until_true 20 "the coordinator" test -s run/address
node_kill coordinator || fail "the coordinator had ended"
cat >slow <<'SH'
#!/bin/sh
sleep 1000 & echo $! >>sleeper
wait
SH
chmod +x slow
start slow.log "$BIN/atoll" alert run --every 1 --away 1 --limit 1 -- ./slow
alert=$pid
until_true 30 "the line about the time limit" grep -q 'away: the command took longer than 1 s and was killed; trying again in a minute' slow.log
child_ended() { ! kill -0 "$(<sleeper)"; }
until_true 20 "the end of the command's child" child_ended
kill -TERM "$alert"
finish "$alert" 20 0 "atoll alert after a command that hung"
start false.log "$BIN/atoll" alert run --every 1 --away 1 -- false
alert=$pid
until_true 30 "the line about the failure" grep -q 'away: the command ended with code 1; trying again in a minute' false.log
kill -TERM "$alert"
finish "$alert" 20 0 "atoll alert after a command that failed"
echo "a command that hangs is killed, and failures are logged"
