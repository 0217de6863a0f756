#!/usr/bin/env bash
# A region is one worker: two regions with two workers each take part in one run. One region is killed in a round, and
# continues; all three runs end with one theta. Runs that no region can serve are refused in one line.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml train.max_steps=160 codec.up=int8:64 codec.down=int8:64 \
    coordinator.min_workers=2

declare -A region_pid

region_start() { # NAME
    start "$1.log" "$BIN/atoll-coordinator" --upstream run --dir "$1" --coordinator.min_workers=2 \
        --coordinator.listen="tcp://127.0.0.1:*"
    region_pid[$1]=$pid
}

worker_start() { # REGION NAME
    start "$2.log" "$BIN/atoll-worker" --join "$1" --dir "$2" --name "$2" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --train.threads=1
    workers+=("$pid")
}

workers=()
mkdir run
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
upstream=$pid
until_true 20 "the coordinator" test -s run/address
for region in east west; do region_start "$region"; done
for region in east west; do
    until_true 30 "region $region" test -s "$region/address"
    for i in 1 2; do worker_start "$region" "$region-$i"; done
done
until_true 120 "round 3" rounds_reach 3
kill -KILL "${region_pid[east]}"
wait "${region_pid[east]}" 2>/dev/null || true
ended "${region_pid[east]}"
echo "killed region east after round $(rounds_done)"
sleep 0.5
region_start east
finish "$upstream" 200 0 "the coordinator"
for region in east west; do finish "${region_pid[$region]}" 30 0 "region $region"; done
for id in "${workers[@]}"; do finish "$id" 30 0 "a worker"; done

theta=$(json get run/summary.json theta_hash)
for region in east west; do
    [[ $(json get "$region/summary.json" theta_hash) == "$theta" ]] ||
        fail "region $region has theta $(json get "$region/summary.json" theta_hash), the run $theta"
    [[ $(json theta "$region/checkpoints/latest/model.safetensors") == "$theta" ]] ||
        fail "the newest checkpoint of region $region has another theta"
done
[[ $(json get run/summary.json workers) == 2 ]] || fail "the run has $(json get run/summary.json workers) workers"
[[ $(json get west/summary.json workers) == 2 ]] || fail "region west has not two workers"
(($(json get run/summary.json tokens) > 160 * 4 * 32 * 3)) ||
    fail "the run merged $(json get run/summary.json tokens) tokens: less than three workers"
[[ $(json get run/summary.json final_val_loss) =~ ^[0-9.]+$ ]] || fail "the regions did not evaluate"
echo "both regions and the run end with theta $theta"

refused() { # NAME TEXT SETTINGS...
    local name=$1 text=$2 status=0
    shift 2
    mkdir "$name"
    start "$name.log" "$BIN/atoll-coordinator" run.yaml --dir "$name" "${overrides[@]}" "$@"
    local id=$pid
    until_true 20 "the coordinator of $name" test -s "$name/address"
    "$BIN/atoll-coordinator" --upstream "$name" --dir "$name-region" >"$name-region.log" 2>&1 || status=$?
    ((status == 2)) || fail "a region of $name: exit code $status"
    grep -q "$text" "$name-region.log" || fail "a region of $name: $(<"$name-region.log")"
    (($(wc -l <"$name-region.log") <= 2)) || fail "a region of $name is refused in more than one line"
    kill -TERM "$id"
    finish "$id" 20 75 "the coordinator of $name"
}
refused async "train.method async" --train.method=async
refused overlap "train.overlap" --train.overlap=2
refused relay "relays deltas" --codec.up=topk:64/4096+sign --codec.down=auto --outer.optimizer=sgd
! "$BIN/atoll-coordinator" --upstream run --dir other --train.max_steps=9 >other.log 2>&1 || fail "a setting of the run passed"
grep -q "train.max_steps belongs to the run upstream" other.log || fail "$(<other.log)"
! "$BIN/atoll-coordinator" --dir west >other.log 2>&1 || fail "a region started without --upstream"
grep -q "is the folder of a region: give --upstream" other.log || fail "$(<other.log)"
echo "runs that no region can serve are refused in one line"

# The run upstream is taken back: a region that is ahead of it ends with one line, instead of a wait for ever.
write_config run.yaml train.max_steps=100000 train.eval_every=0 checkpoint.keep=0
ahead_start() {
    start back.log "$BIN/atoll-coordinator" run.yaml --dir back "${overrides[@]}"
    upstream=$pid
    until_true 20 "the coordinator" grep -q 'listening on' back.log
    start ahead.log "$BIN/atoll-coordinator" --upstream back --dir ahead --coordinator.listen="tcp://127.0.0.1:*"
    region=$pid
    until_true 30 "the region" grep -q 'listening on' ahead.log
    workers=()
    worker_start ahead ahead-1
}
ahead_start
until_true 60 "round 8" rounds_reach 8 back
for id in "$region" "${workers[0]}" "$upstream"; do
    kill -TERM "$id"
    finish "$id" 30 75 "a process of the run that is taken back"
done
"$BIN/atoll" rollback back --to 4 >/dev/null || fail "rollback"
: >back.log
: >ahead.log
ahead_start
finish "$region" 30 1 "a region that is ahead of its run"
grep -qE '^atoll: the run upstream is at round [0-9]+, and this region has [0-9]+ rounds of it: it was taken back' ahead.log ||
    fail "the region says: $(<ahead.log)"
echo "a region of a run that was taken back says so"
