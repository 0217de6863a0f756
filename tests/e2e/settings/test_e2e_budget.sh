#!/usr/bin/env bash
# run.max_gb and run.max_hours: a run stops after a round, with a checkpoint and code 75; so do its workers, and a region.
# A start with the same limit stops at once, one with a larger limit goes on with the same bits.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
theta() { json get "$1/summary.json" theta_hash; }
spent='stopped after round [0-9]+: run.max_gb is used up \([0-9.e-]+ of [0-9.e-]+ GB\): continue with a larger one, such as --run.max_gb=[0-9.e-]+'

# launches FOLDER CODE FLAGS...: atoll launch ends with CODE.
launches() {
    local folder=$1 code=$2 status=0
    shift 2
    rm -f "$folder.log"
    "$BIN/atoll" launch run.yaml --workers 2 --dir "$folder" "${overrides[@]}" "$@" >"$folder.log" 2>&1 || status=$?
    ((status == code)) || fail "$folder $*: exit code $status, expected $code: $(tail -n 3 "$folder.log")"
}

# --- every method stops and continues ---------------------------------------------------------------------------------

for method in ddp diloco streaming async; do
    write_config run.yaml train.method=$method train.max_steps=200 train.eval_every=0
    launches "whole-$method" 0
    gb=$(python3 -c "import json; s = json.load(open('whole-$method/summary.json')); print((s['bytes_up'] + s['bytes_down']) / 2e9)")
    launches "$method" 75 --run.max_gb="$gb"
    grep -qE "$spent" "$method.log" || fail "$method: $(tail -n 5 "$method.log")"
    grep -qE '^\[w1\].*'"$spent" "$method.log" || fail "$method: a worker does not say why: $(grep '^\[w1\]' "$method.log" | tail -n 2)"
    ! grep -q restarting "$method.log" || fail "$method: launch restarts: $(grep restarting "$method.log")"
    grep -q '"event":"alert".*"rule":"budget","state":"start"' "$method/metrics.jsonl" || fail "$method: no alert at 80 %"
    done=$(rounds_done "$method")
    ((done > 0)) || fail "$method stopped before a round"
    [[ -e $method/checkpoints/$(printf 'round_%06d' "$done") ]] || fail "$method: no checkpoint of round $done: $(ls "$method/checkpoints")"
    began=$(now_ms)
    launches "$method" 75 --run.max_gb="$gb"
    (($(rounds_done "$method") == done)) || fail "$method: the same limit trained on"
    (($(now_ms) - began < 10000)) || fail "$method: the same limit took $(($(now_ms) - began)) ms"
    launches "$method" 0 --run.max_gb=none
    [[ $method == async || $(theta "$method") == "$(theta "whole-$method")" ]] || fail "$method: a stop changes the bits"
    echo "$method: stopped after round $done, and continued"
done

# --- by hand: coordinator, region, workers ----------------------------------------------------------------------------

write_config run.yaml train.max_steps=100000 run.max_hours=0.0012 coordinator.min_workers=2 codec.up=int8:64 codec.down=int8:64
node_start coordinator
until_true 20 "the coordinator" test -s run/address
start region.log "$BIN/atoll-coordinator" --upstream run --dir region --coordinator.listen="tcp://127.0.0.1:*"
region=$pid
node_start a
until_true 20 "the region" test -s region/address
start b.log "$BIN/atoll-worker" --join region --dir b --name b --data.train="$WORK/data/train_*.bin"
b=$pid
start follow.log "$BIN/atoll" follow run newest --every 1000000
follower=$pid
finish "${node_pid[coordinator]}" 60 75 "the coordinator"
finish "$follower" 10 75 "a follower"
[[ $(json get newest/atoll.json round) == "$(rounds_done run)" ]] || fail "a follower lacks the last model: $(<follow.log)"
grep -qE "^atoll: stopped after round [0-9]+: run.max_hours .*; newest holds round $(rounds_done run), and the same" follow.log ||
    fail "a follower says: $(<follow.log)"
finish "${node_pid[a]}" 10 75 "a worker"
finish "$region" 10 75 "the region"
finish "$b" 10 75 "a worker of the region"
for log in coordinator a region b; do
    grep -q 'run.max_hours is used up' "$log.log" || fail "$log does not say why: $(tail -n 2 "$log.log")"
    ! grep -q 'is used up.*the same way' "$log.log" || fail "$log says that the same start helps"
done
"$BIN/atoll" status diloco >status.log 2>&1 || fail "status: $(<status.log)"
! grep -q '^budget' status.log || fail "status shows a budget that has no limit: $(<status.log)"

# --- killed at any time: the counters stay, and a container engine does not restart it ---------------------------------

status=0
"$BIN/atoll-coordinator" --dir run >again.log 2>&1 || status=$?
((status == 75)) || fail "the same limit: exit code $status: $(<again.log)"
status=0
ATOLL_SUPERVISED=container "$BIN/atoll-coordinator" --dir run >again.log 2>&1 || status=$?
((status == 0)) || fail "in a container: exit code $status: $(<again.log)"
for value in -1 nan many; do
    status=0
    "$BIN/atoll-coordinator" --dir run --run.max_hours=$value >again.log 2>&1 || status=$?
    ((status == 2)) || fail "run.max_hours=$value: exit code $status: $(<again.log)"
done
echo "the run, its region and the workers stopped with code 75"
