#!/usr/bin/env bash
# Runs that cannot go on end with one line, and without a restart:
# - launch refuses a first round that would wait for more workers than can join.
# - A failed start leaves nothing behind and counts as no restart.
# - A removed run folder ends the run. RUN/address exists only while a coordinator listens.
# - A full disk ends the run.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml train.max_steps=1000000
started_rounds() { grep -qs '"event": *"round"' "$1/metrics.jsonl"; }
gone() { [[ ! -e $1 ]]; }

# one_line CODE PATTERN COMMAND...: COMMAND ends with CODE and this line on stderr, and restarts nothing.
one_line() {
    local code=$1 pattern=$2 status=0
    shift 2
    timeout 20 "$@" >out.txt 2>err.txt || status=$?
    ((status == code)) || fail "$*: exit code $status, expected $code: $(<err.txt)"
    [[ $(wc -l <err.txt) == 1 ]] || fail "$*: expected one line: $(<err.txt)"
    grep -qE "$pattern" err.txt || fail "$*: $(<err.txt)"
    ! grep -q 'restarting in' out.txt || fail "$*: restarts: $(<out.txt)"
}

# --- more workers than can join
one_line 2 'coordinator.min_workers: .*wait for 5 workers.*--workers is 1' "$BIN/atoll" launch run.yaml --workers 1 --dir few --coordinator.min_workers=5
sed 's/^coordinator: {/&min_workers: 5, /' run.yaml >five.yaml
one_line 2 'five.yaml:[0-9]+: coordinator.min_workers' "$BIN/atoll" launch five.yaml --workers 1 --dir few
gone few || fail "a refused launch leaves a folder"
start few.log "$BIN/atoll" launch five.yaml --workers 1 --dir few --coordinator.listen='tcp://0.0.0.0:*' # others can join
until_true 20 "a run that others can join" grep -q 'worker-0 joined' few.log
kill "$pid"
finish "$pid" 20 75 "launch with a network address"

# --- RUN/address goes when the coordinator ends; its port stays
node_start coordinator
node_start worker
until_true 20 "a round" started_rounds run
port=$(sed -nE 's|.*127\.0\.0\.1:([0-9]+).*|\1|p' run/address)
kill "${node_pid[coordinator]}"
finish "${node_pid[coordinator]}" 20 75 "the stopped coordinator"
gone run/address || fail "run/address stays after the coordinator ended"

# --- a port in use: the start leaves the run as it was, and does not count; only the log has a line more
start holder.log "$BIN/atoll-coordinator" run.yaml --dir holder --coordinator.listen="tcp://127.0.0.1:$port"
holder=$pid
until_true 20 "another coordinator on the port" test -s holder/address
find run -type f ! -name coordinator.log -exec sha256sum {} + | sort >before.txt
one_line 1 "cannot listen on tcp://127.0.0.1:$port: address already in use" "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}" \
    --coordinator.listen="tcp://127.0.0.1:$port"
find run -type f ! -name coordinator.log -exec sha256sum {} + | sort >after.txt
cmp before.txt after.txt || fail "a failed start changes the run folder: $(diff before.txt after.txt)"
one_line 1 "cannot listen on tcp://127.0.0.1:$port" "$BIN/atoll" launch run.yaml --workers 1 --dir new/run --coordinator.listen="tcp://127.0.0.1:$port"
gone new || fail "a failed launch leaves a folder: $(find new)"
kill "$holder"
finish "$holder" 20 75 "the other coordinator"
node_start coordinator
until_true 20 "the address" test -s run/address
grep -q ":$port\b" run/address || fail "the continued run has another port: $(<run/address), before: $port"

# --- the run folder is moved, and moved back: the run continues
before=$(<run/run_id)
mv run elsewhere
finish "${node_pid[coordinator]}" 20 1 "a coordinator whose run folder was moved"
grep -q '^atoll: the run folder run was removed or moved while the run used it: move it back' coordinator.log ||
    fail "unexpected line: $(tail -n 1 coordinator.log)"
gone run/journal || fail "the coordinator made its folder again: $(find run)"
rm -rf run
mv elsewhere run
rm run/address # of the process that ended
node_start coordinator
until_true 20 "the address" test -s run/address
[[ $(<run/run_id) == "$before" ]] || fail "the folder that was moved back holds another run"
: >coordinator.log

# --- the run folder is removed: coordinator, launch
rm -rf run || rm -rf run # the run may write while rm reads the folder
finish "${node_pid[coordinator]}" 20 1 "a coordinator without its run folder"
[[ $(grep -c '^atoll: ' coordinator.log) == 1 ]] || fail "expected one line: $(tail -n 3 coordinator.log)"
grep -q '^atoll: the run folder run was removed or moved while the run used it: move it back' coordinator.log || fail "unexpected line: $(tail -n 1 coordinator.log)"
gone run/journal || fail "the coordinator made its folder again: $(find run)"
kill "${node_pid[worker]}"
finish "${node_pid[worker]}" 20 75 "the worker"
start removed.log "$BIN/atoll" launch run.yaml --workers 2 --dir removed "${overrides[@]}"
until_true 20 "a round" started_rounds removed
for _ in {1..9}; do rm -rf removed && break; done # workers write files meanwhile
finish "$pid" 20 1 "launch without its run folder"
gone removed/journal || fail "launch made its folder again: $(find removed)"
! grep -q 'restarting in' removed.log || fail "launch restarts without its folder: $(grep launch: removed.log)"
[[ $(grep -c '^atoll: ' removed.log) == 1 ]] || fail "expected one line: $(tail -n 3 removed.log)"
grep -Eq '^atoll: .*the run folder (removed )?was removed or moved.* move it back' removed.log || fail "unexpected line: $(tail -n 1 removed.log)"

# --- a full disk
unshare -rm mount -t tmpfs none /mnt 2>/dev/null || exit 0
# shellcheck disable=SC2016 # the inner shell expands it
unshare -rm bash -c 'mkdir full && mount -t tmpfs -o size=2m none full && "$@"' full \
    timeout 20 "$BIN/atoll" launch run.yaml --workers 1 --dir full/run "${overrides[@]}" >full.txt 2>full.err && fail "the disk was not full"
[[ $(wc -l <full.err) == 1 && $(<full.err) == *'No space left'* ]] || fail "a full disk: $(<full.err)"
! grep -q 'restarting in' full.txt || fail "launch restarts on a full disk: $(grep launch: full.txt)"
