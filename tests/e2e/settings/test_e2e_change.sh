#!/usr/bin/env bash
# A stopped run continues by the line that it prints. --change prolongs a run and changes a rate, also for workers that
# waited meanwhile, and kills change no bit of it.
# ctest: timeout=300 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

export PATH=$BIN:$PATH
make_data
write_config run.yaml

theta() { json get "$1/summary.json" theta_hash; }

# --- the printed line -------------------------------------------------------------------------------------------------

# printed FOLDER: the command that status prints for a stopped run, as words in $command.
printed() {
    local text
    text=$("$BIN/atoll" status "$1" 2>&1) && fail "status of a stopped run ends with 0"
    [[ $text =~ "continue it with "(.*)$ ]] || fail "status says no command: $text"
    read -ra command <<<"${BASH_REMATCH[1]}"
}

"$BIN/atoll" launch run.yaml --workers 2 --dir whole >whole.log 2>&1 || fail "a whole run: $(tail -n 3 whole.log)"

start launch.log "$BIN/atoll" launch run.yaml --workers 2 --dir launched
launch=$pid
until_true 60 "three rounds" rounds_reach 3 launched
kill -TERM "$launch"
finish "$launch" 30 75 "a stopped launch"
printed launched
[[ ${command[*]} == "atoll launch --dir launched" ]] || fail "status prints ${command[*]}"
"${command[@]}" >again.log 2>&1 || fail "${command[*]}: $(tail -n 3 again.log)"
[[ $(theta launched) == "$(theta whole)" ]] || fail "the printed command changes the bits"
(($(json get launched/summary.json workers) == 2)) || fail "it continues with other workers"

mkdir run
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run --coordinator.min_workers=2
coordinator=$pid
until_true 20 "the address" test -s run/address
for name in a b; do node_start "$name"; done
until_true 60 "three rounds" rounds_reach 3
kill -TERM "$coordinator"
finish "$coordinator" 20 75 "a stopped coordinator"
printed run
[[ ${command[*]} == "atoll-coordinator --dir run" ]] || fail "status prints ${command[*]}"

# --- the checkpoint of a stop, and what generate and export read --------------------------------------------------------

reads() { # TEXT: generate and export say it
    "$BIN/atoll" generate run --tokens 3 >generated.txt 2>generate.log || fail "generate: $(<generate.log)"
    grep -q "reading $1$" generate.log || fail "generate says $(<generate.log), not $1"
    rm -rf exported
    "$BIN/atoll" export run exported >export.log 2>&1 || fail "export: $(<export.log)"
    grep -q "^exported: $1$" export.log || fail "export says $(<export.log), not $1"
}
done=$(rounds_done)
[[ $(readlink run/checkpoints/latest) == "$(printf 'round_%06d' "$done")" ]] || fail "a stop after round $done wrote no checkpoint"
reads "round $done of run"
cp run/metrics.jsonl whole.jsonl
echo '{"event":"round","round":59,"rounds":60}' >>run/metrics.jsonl # as after a kill
reads "round $done of run, which is at round 59 of 60: newer rounds are not in it"
mv whole.jsonl run/metrics.jsonl

# --- a change, for workers that wait ----------------------------------------------------------------------------------

start coordinator2.log "${command[@]}" --change train.max_steps=100 --change=inner.learning_rate=1e-3
coordinator=$pid
nodes_finish 60
finish "$coordinator" 30 0 "the coordinator"
for key in train.max_steps inner.learning_rate; do
    grep -q "\"event\":\"change\".*\"key\":\"$key\"" run/metrics.jsonl || fail "metrics.jsonl has no change of $key"
done
for name in a b; do
    grep -q "the run has new settings: train.max_steps = 100, inner.learning_rate = 0.001" "$name.log" ||
        fail "$name does not take the new settings: $(tail -n 5 "$name.log")"
done
(($(json get run/summary.json rounds) == 20)) || fail "the longer run has $(json get run/summary.json rounds) rounds"
grep -q '  learning_rate: 0.001 .*# changed in this run' run/config.yaml || fail "config.yaml does not name the change"
last=$(grep '"event":"step"' run/metrics.jsonl | tail -n 1)
[[ $last =~ \"lr\":([0-9.e-]+) ]] || fail "no rate in $last"
awk -v lr="${BASH_REMATCH[1]}" 'BEGIN { exit !(lr < 1e-3) }' || fail "the last step has the rate ${BASH_REMATCH[1]}"

# The first command still continues it, and a wrong value is refused with the way to change it.
"$BIN/atoll-coordinator" run.yaml --dir run --coordinator.min_workers=2 >first.log 2>&1 || fail "the first command: $(<first.log)"
grep -q "the run keeps the values that --change gave it: train.max_steps (60 here, 100 in the run)" first.log ||
    fail "the first command does not say what differs: $(<first.log)"
code=0
"$BIN/atoll-coordinator" run.yaml --dir run --train.max_steps=80 >other.log 2>&1 || code=$?
[[ $code == 2 && $(<other.log) == *"train.max_steps: 80 is below the run's 100: it can only grow"* ]] || fail "code $code: $(<other.log)"
code=0
"$BIN/atoll-coordinator" run.yaml --dir run --train.max_steps=120 >other.log 2>&1 || code=$?
[[ $code == 2 && $(<other.log) == *"write --change KEY=VALUE"* ]] || fail "code $code: $(<other.log)" # the rate, too

# --- a new run from this one ------------------------------------------------------------------------------------------

# --resume is the same for the coordinator and for atoll launch: the same command again continues the new run.
for time in first second; do
    start "branch-$time.log" "$BIN/atoll-coordinator" run.yaml --dir branch --resume run
    branch=$pid
    until_true 20 "the coordinator's address" test -s branch/address
    if [[ $time == first ]]; then
        kill -TERM "$branch"
        finish "$branch" 20 75 "the coordinator of branch"
    fi
done
"$BIN/atoll-worker" --join branch --dir branch-worker --data.train="$WORK/data/train_*.bin" >branch-worker.log 2>&1 ||
    fail "branch: $(tail -n 3 branch-worker.log)"
finish "$branch" 20 0 "the coordinator of branch"
grep -Eq 'init_from: *"?run/checkpoints/round_0' branch/config.yaml || fail "branch does not start from run: $(<branch/config.yaml)"
code=0
"$BIN/atoll-coordinator" run.yaml --dir branch --resume never >never.log 2>&1 || code=$?
[[ $code == 1 && $(<never.log) == *"branch already holds a run and --resume is never"* ]] || fail "code $code: $(<never.log)"

# --- a longer CONFIG --------------------------------------------------------------------------------------------------

# A run that is over goes on by its own command with more steps. The coordinator is killed in between.
"$BIN/atoll" launch run.yaml --train.max_steps=40 --workers 2 --dir grown >brief.log 2>&1 || fail "grown: $(tail -n 3 brief.log)"
(($(json get grown/summary.json steps) == 40)) || fail "the brief run has $(json get grown/summary.json steps) steps"
start grown.log "$BIN/atoll" launch run.yaml --train.max_steps=80 --workers 2 --link rtt=100ms --dir grown
launch=$pid
until_true 60 "two more rounds" rounds_reach 10 grown
for id in $(descendants "$launch"); do
    # shellcheck disable=SC2128 # command_of sets it, and it is no array
    if command_of "$id" && [[ $command == *"--dir=grown "* && $command != *" launch "* ]]; then kill -KILL "$id" || true; fi
done
finish "$launch" 120 0 "the grown run"
(($(json get grown/summary.json steps) == 80)) || fail "the grown run has $(json get grown/summary.json steps) steps"
(($(json get grown/summary.json restarts) >= 2)) || fail "the coordinator was not killed"
grep -q "train.max_steps grew from 40 to 80: the cosine schedule of inner.learning_rate now ends at 80" grown.log grown/logs/*.log ||
    fail "the log does not name the schedule: $(<grown.log)"

# --- kills ------------------------------------------------------------------------------------------------------------

# prolong FOLDER: makes a finished run longer, with a lower rate.
prolong() {
    start "$1.log" "$BIN/atoll" launch --dir "$1" --change train.max_steps=400 --change inner.learning_rate=1e-3 \
        --change outer.momentum=0.8
    launch=$pid
}
for run in calm killed; do
    "$BIN/atoll" launch run.yaml --workers 2 --dir $run >$run.log 2>&1 || fail "$run: $(tail -n 3 $run.log)"
    prolong $run
    if [[ $run == killed ]]; then
        until_true 60 "four more rounds" rounds_reach 16 killed
        for part in --dir=killed killed/workers/worker-1; do
            for id in $(descendants "$launch"); do
                # shellcheck disable=SC2128 # command_of sets it, and it is no array
                if command_of "$id" && [[ $command == *"$part "* && $command != *" launch "* ]]; then
                    kill -KILL "$id" || true
                    break
                fi
            done
            sleep 0.3
        done
    fi
    finish "$launch" 120 0 "the longer run $run"
done
(($(json get killed/summary.json restarts) > $(json get calm/summary.json restarts))) || fail "no process was killed"
[[ $(theta killed) == "$(theta calm)" ]] || fail "kills change the bits of a changed run"
(($(json get calm/summary.json steps) == 400)) || fail "the longer run has $(json get calm/summary.json steps) steps"
