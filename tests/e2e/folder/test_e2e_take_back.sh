#!/usr/bin/env bash
# atoll rollback, exclude and audit on stopped runs of real processes:
# - rollback then continue gives the bits of a run that stopped there, whose workers start with fresh moments;
# - exclude of one of three workers gives those of the run in which it did not deliver;
# - kill -9 of either verb leaves the old run or the new one; audit finds one flipped bit.
# ctest: timeout=240 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

export PATH=$BIN:$PATH
KILLS=${KILLS:-8}
make_data
write_config run.yaml codec.up=int8:64 codec.down=int8:64 checkpoint.keep=0 coordinator.evict_after_s=2

theta() { json get "$1/summary.json" theta_hash; }

# train RUN WORKERS FLAGS...: runs coordinator and workers 0 .. WORKERS - 1, with folders RUN-wN, until the run is done.
train() {
    local run=$1 n=$2 i ids=()
    shift 2
    start "$run.log" atoll-coordinator run.yaml --dir "$run" "${overrides[@]}" --coordinator.min_workers="$n" "$@"
    ids=("$pid")
    until_true 20 "the address of $run" test -s "$run/address"
    for ((i = 0; i < n; i++)); do
        start "$run.log" atoll-worker --join "$run" --dir "$run-w$i" --name "w$i" --data.train="$WORK/data/train_*.bin" \
            --data.val="$WORK/data/val_*.bin" --train.threads=1
        ids+=("$pid")
    done
    for i in "${ids[@]}"; do finish "$i" 60 0 "a process of $run"; done
}

copy() { # FROM TO: the run and its workers
    local i
    rm -rf "$2" "$2"-w?
    cp -a "$1" "$2"
    for i in 0 1 2; do [[ ! -d $1-w$i ]] || cp -a "$1-w$i" "$2-w$i"; done
}

# --- a run that stops after round 8, and the same one, longer ---------------------------------------------------------

train eight 3 --train.max_steps=40
copy eight whole
train whole 3 --train.max_steps=60
atoll audit whole >audit.txt || fail "audit of an undamaged run: $(<audit.txt)"
grep -q "^checked  rounds 1 to 12: 12 updates from 36 deltas" audit.txt || fail "$(<audit.txt)"

# --- rollback ---------------------------------------------------------------------------------------------------------

copy whole back
atoll rollback back --to 8 >back.txt || fail "rollback: $(<back.txt)"
grep -q "^kept    rounds 1 to 8: theta $(theta eight)" back.txt || fail "another theta than after round 8: $(<back.txt)"
grep -q "^taken   rounds 9 to 12: 4 updates" back.txt || fail "$(<back.txt)"
[[ $(rounds_done back) == 8 && ! -e back/summary.json ]] || fail "the curves show round $(rounds_done back)"
grep -q '"event":"rollback","round":8,"before":12' back/metrics.jsonl || fail "metrics.jsonl does not say it"
atoll status back --json >status.json && fail "a run that was taken back counts as finished"
(($(json get status.json round) == 8)) || fail "status shows round $(json get status.json round)"
atoll audit back >audit.txt || fail "audit after a rollback: $(<audit.txt)"
grep -q "^history  rolled back from round 12 to round 8" audit.txt || fail "$(<audit.txt)"
train back 3 --train.max_steps=60
grep -q "loading a snapshot, with fresh moments: the run was taken back" back.log || fail "the workers do not say it"
copy eight stopped
rm stopped-w?/state*.bin # as they are behind a snapshot
train stopped 3 --train.max_steps=60
[[ $(theta back) == "$(theta stopped)" ]] || fail "rollback and continue: $(theta back), a run that stopped there: $(theta stopped)"
[[ $(theta back) != "$(theta whole)" ]] || fail "the moments of rounds that were taken back are still used"

# --- exclude ----------------------------------------------------------------------------------------------------------

copy eight nine
train nine 3 --train.max_steps=45
copy eight without
train without 2 --train.max_steps=45 # worker 2 has a place, and never delivers
[[ $(theta nine) != "$(theta without)" ]] || fail "worker 2 changes nothing"
atoll exclude nine w2 --since 9 >nine.txt || fail "exclude: $(<nine.txt)"
grep -q "^merged    rounds 9 to 9 again: theta $(theta without)" nine.txt || fail "$(<nine.txt), without it $(theta without)"
grep -q "^w2 *revoked" <<<"$(atoll workers nine)" || fail "the key of the worker is still valid: $(atoll workers nine)"
grep -q '"event":"exclude","worker":"w2","round":8,"before":9' nine/metrics.jsonl || fail "metrics.jsonl does not say it"
grep -q '"event":"round","round":9,.*"tokens":16640,.*"delivered":2' nine/metrics.jsonl || fail "the curve keeps its tokens"
! grep -q '"event":"step","worker":"w2",.*"round":9' nine/metrics.jsonl || fail "the curve keeps its steps"
! grep -q '"event":"eval","round":9' nine/metrics.jsonl || fail "the curve keeps an evaluation of other parameters"
train nine 2 --train.max_steps=45 # the last evaluation
[[ $(theta nine) == "$(theta without)" ]] || fail "exclude: $(theta nine), the run without it: $(theta without)"
atoll audit nine >audit.txt || fail "audit after exclude: $(<audit.txt)"
copy nine longer
copy without longer2
train longer 2 --train.max_steps=60
train longer2 2 --train.max_steps=60
[[ $(theta longer) == "$(theta longer2)" ]] || fail "exclude and continue: $(theta longer), without it: $(theta longer2)"

# --- refusals ---------------------------------------------------------------------------------------------------------

refused() { # CODE PATTERN COMMAND...
    local code=0 want=$1 pattern=$2
    shift 2
    "$@" >refused.txt 2>&1 || code=$?
    if ((code != want || $(wc -l <refused.txt) != 1)) || ! grep -qE "^atoll: $pattern" refused.txt; then
        fail "$*: exit code $code: $(<refused.txt)"
    fi
}
refused 2 "--to 12: the run has 12 rounds; possible are 0 to 11$" atoll rollback whole --to 12
refused 2 "--to ROUND is missing" atoll rollback whole
refused 1 "no worker of the run is named x; its workers: w0, w1, w2$" atoll exclude whole x
refused 2 "--since 13: the run has 12 rounds" atoll exclude whole w1 --since 13
refused 1 "data is not a run folder" atoll audit data
copy eight busy
start busy.log atoll-coordinator --dir busy --train.max_steps=60
coordinator=$pid
until_true 20 "the address" test -s busy/address
refused 1 "another coordinator serves busy: stop it" atoll rollback busy --to 3
refused 1 "another coordinator serves busy: stop it" atoll exclude busy w1
refused 1 "a coordinator serves busy: stop it, then audit the run" atoll audit busy
kill -TERM "$coordinator"
finish "$coordinator" 20 75 "a stopped coordinator"

# --- async counts rounds by coordinator.min_workers, which only config.yaml has -----------------------------------------

train loose 3 --train.method=async --train.max_steps=60
refused 2 "--to 999: the run has $(rounds_done loose) rounds; possible are 0 to" atoll rollback loose --to 999
atoll exclude loose w1 --since 5 --keep >loose.txt || fail "exclude of async: $(<loose.txt)"
grep -qE "^the run has [0-9]+ rounds now, 12 before" loose.txt || fail "$(<loose.txt)"
train loose 3 --train.method=async --train.max_steps=60
atoll audit loose >audit.txt || fail "audit of async: $(<audit.txt)"

# --- one flipped bit --------------------------------------------------------------------------------------------------

copy whole hurt
size=$(stat -c %s hurt/journal/00000002.log)
for at in 0 40 $((size / 3)) $((size - 1)); do
    byte=$(od -An -tu1 -j "$at" -N 1 whole/journal/00000002.log)
    # shellcheck disable=SC2059 # the format is the byte
    printf "\\x$(printf %x $((byte ^ 4)))" | dd of=hurt/journal/00000002.log bs=1 seek="$at" conv=notrunc status=none
    code=0
    atoll audit hurt >audit.txt 2>&1 || code=$?
    ((code == 1)) || fail "audit with a flipped bit at byte $at of $size: exit code $code: $(<audit.txt)"
    grep -qE "^atoll: journal/00000002.log.* byte [0-9]+" audit.txt || fail "$(<audit.txt)"
    cp -a whole/journal/00000002.log hurt/journal/
done
chmod -R a-w hurt && { atoll audit hurt >audit.txt 2>&1 || fail "audit of a read-only folder: $(<audit.txt)"; }
chmod -R u+w hurt

# --- kill -9 ----------------------------------------------------------------------------------------------------------

began=$(now_ms)
copy whole killed
atoll exclude killed w2 --since 4 >/dev/null
took=$(($(now_ms) - began))
old=0 new=0
for ((i = 0; i < KILLS; i++)); do
    copy whole killed
    if ((i % 2)); then
        start kill.log atoll rollback killed --to 5
    else
        start kill.log atoll exclude killed w2 --since 4
    fi
    sleep "$(printf '0.%03d' $((i * took * 3 / 2 / KILLS)))"
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    ended "$pid"
    atoll repair killed >repair.txt 2>&1 || fail "kill $i: $(<repair.txt)" # takes the lock, as a start does
    atoll audit killed >audit.txt 2>&1 || fail "kill $i: $(<audit.txt)"
    if grep -q "^history" audit.txt; then new=$((new + 1)); else old=$((old + 1)); fi
    to=12
    if ((i % 2)) && grep -q "^history" audit.txt; then to=5; fi
    grep -q "^checked  rounds 1 to $to:" audit.txt || fail "kill $i: $(<audit.txt)"
    [[ -z $(find killed -maxdepth 1 -name '*take-back*') ]] || fail "kill $i left $(ls killed)"
done
echo "killed $KILLS times: $old old runs, $new new ones; theta of the rollback $(theta back), of the exclusion $(theta nine)"
