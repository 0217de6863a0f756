#!/usr/bin/env bash
# Files that Atoll did not write or that were damaged: pipes in the run folder, damaged checkpoints and journals, truncated shards.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml

# Before: open(2) waited for a reader of the pipe, and the coordinator ignored SIGTERM.
for name in metrics.jsonl lock; do
    rm -rf piped && mkdir piped && mkfifo "piped/$name"
    start piped.log "$BIN/atoll-coordinator" run.yaml --dir piped
    finish "$pid" 20 1 "a coordinator with a pipe as $name"
    grep -q "^atoll: piped/$name is not a plain file: remove it" piped.log || fail "pipe as $name: $(<piped.log)"
done

# Tools load .../checkpoints/latest as a folder; before, it was a text file.
"$BIN/atoll" launch run.yaml --workers 1 --dir run --quiet >run.log 2>&1 || fail "a run: $(<run.log)"
[[ $(json theta run/checkpoints/latest/model.safetensors) == "$(json get run/summary.json theta_hash)" ]] ||
    fail "checkpoints/latest is not the newest checkpoint: $(ls -l run/checkpoints)"
[[ $(json get run/checkpoints/latest/config.json model_type) == gpt2 ]] || fail "latest has no config.json"
"$BIN/atoll" export run/checkpoints/latest linked >linked.txt || fail "export through the link: $(<linked.txt)"
grep -q "from run/checkpoints/round_000012" linked.txt || fail "export reads through a link that may move: $(<linked.txt)"

# Before, export and generate read a damaged checkpoint without a word.
grep -q "^run/checkpoints/round_000012: checked all hashes" linked.txt || fail "export does not say what it checked: $(<linked.txt)"
flip() { # FILE OFFSET: inverts a byte; a negative offset counts from the end
    local at=$(($2 < 0 ? $(stat -c %s "$1") + $2 : $2)) byte
    byte=$(od -An -tu1 -j "$at" -N 1 "$1")
    # shellcheck disable=SC2059 # the format is the byte
    printf "\\x$(printf %x $((byte ^ 255)))" | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
}
refused() { # PATTERN COMMAND...: COMMAND must end with 1 and a line that matches
    local pattern=$1 code=0
    shift
    "$@" >refused.txt 2>&1 || code=$?
    if [[ $code != 1 ]] || ! grep -qE "^atoll: $pattern" refused.txt; then fail "$*: exit code $code: $(<refused.txt)"; fi
}
cp -r run/checkpoints/round_000012 hurt
flip hurt/model.safetensors -5
for command in "export hurt out" "generate hurt --tokens 5"; do
    read -ra words <<<"$command"
    refused "hurt: model.safetensors was changed after it was written: give another checkpoint" "$BIN/atoll" "${words[@]}"
done
[[ ! -e out ]] || fail "a refused export left $(ls out)"
flip hurt/model.safetensors -5
flip hurt/coordinator_state.bin -5
refused "hurt: coordinator_state.bin is damaged: give" "$BIN/atoll" export hurt out
rm hurt/coordinator_state.bin # a folder from elsewhere
"$BIN/atoll" export hurt out >export.txt || fail "export of a plain model folder: $(<export.txt)"
grep -q "^hurt: no coordinator_state.bin: checked names, shapes, sizes and finite values" export.txt || fail "$(<export.txt)"
"$BIN/atoll" generate hurt --tokens 5 >/dev/null 2>said.txt
grep -q "hurt: no coordinator_state.bin" said.txt || fail "generate hides that nothing was checked: $(<said.txt)"

# Before, the worker was killed by SIGBUS, or trained on zeros.
cp -r data short
start short.log "$BIN/atoll" launch run.yaml --workers 1 --dir shortened --train.max_steps=1000000 --data.train="$WORK/short/train_*.bin"
until_true 20 "some rounds" grep -q '"round":2,' shortened/metrics.jsonl
truncate -s 1500 short/train_000000.bin
finish "$pid" 10 1 "a run with a truncated shard"
grep -q "worker-0: $WORK/short/train_000000.bin was truncated while it was in use: restore it" short.log || fail "$(<short.log)"

# A damaged newest checkpoint is skipped, and a damaged journal is repaired; before, both ended every start.
long=(--train.max_steps=1000000 --checkpoint.every=4)
begin() { # FOLDER ROUND: a run that was stopped after ROUND
    start begun.log "$BIN/atoll" launch run.yaml --workers 2 --dir "$1" "${long[@]}" "${@:3}"
    until_true 20 "round $2 of $1" rounds_reach "$2" "$1"
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    ended "$pid"
}
goes_on() { # FOLDER ROUND: the run continues past ROUND with its workers
    local folder=$1
    start "$folder.log" "$BIN/atoll" launch run.yaml --workers 2 --dir "$folder" "${long[@]}"
    until_true 20 "round $2 of $folder" rounds_reach "$2" "$folder"
    kill -TERM "$pid"
    finish "$pid" 20 75 "$folder after SIGTERM"
}
begin hit 10
whole=(hit/checkpoints/round_*/coordinator_state.bin) # the kill may have come before `latest` was moved to the newest
newest=$(basename "$(dirname "${whole[-1]}")")
flip "hit/checkpoints/$newest/model.safetensors" -9
before=$(rounds_done hit)
goes_on hit $((before + 4))
grep -q "checkpoint $newest: model.safetensors was changed after it was written: recovered without it from the journal, nothing is lost" hit.log ||
    fail "the skipped checkpoint is not named: $(<hit.log)"
compgen -G "hit/checkpoints/$newest.damaged-*/model.safetensors" >/dev/null || fail "the damaged checkpoint is gone: $(ls hit/checkpoints)"
[[ -e hit/checkpoints/latest/model.safetensors ]] || fail "latest names no checkpoint: $(ls -l hit/checkpoints)"

begin torn 10 --checkpoint.every=0
long=(--train.max_steps=1000000 --checkpoint.every=0)
segments=(torn/journal/*.log)
segment=${segments[-1]}
flip "$segment" $(($(stat -c %s "$segment") / 2))
sum=$(md5sum <"$segment")
code=0
"$BIN/atoll-coordinator" run.yaml --dir torn "${long[@]}" >torn.log 2>&1 || code=$?
if [[ $code != 1 ]] || ! grep -q "^atoll: journal/.* is damaged at byte .*atoll repair RUN" torn.log; then
    fail "damaged journal: exit code $code: $(<torn.log)"
fi
"$BIN/atoll" repair torn/ >repair.txt || fail "repair: $(<repair.txt)"
rounds=$(sed -nE 's/^kept +([0-9]+) rounds: checkpoint round_000000 .*/\1/p' repair.txt)
[[ -n $rounds && $rounds -gt 0 ]] || fail "repair keeps no rounds: $(<repair.txt)"
grep -qE "^lost +rounds $((rounds + 1)) to [0-9]+: [0-9]+ readable updates" repair.txt || fail "repair does not name lost rounds: $(<repair.txt)"
grep -qE "^lost +[0-9]+ readable deltas of worker-1" repair.txt || fail "repair does not name lost deltas: $(<repair.txt)"
[[ $(md5sum <torn/journal.damaged-*/"${segment##*/}") == "$sum" ]] || fail "repair deleted bytes: $(ls torn torn/journal.damaged-*)"
"$BIN/atoll" repair torn >again.txt
grep -q '^torn: nothing to repair' again.txt || fail "the second repair finds damage: $(<again.txt)"
before=$(rounds_done torn)
start torn.log "$BIN/atoll" launch run.yaml --workers 2 --dir torn "${long[@]}" # its workers are ahead of the journal
until_true 20 "the repaired run" rounds_reach $((before + 4)) torn
refused "atoll launch runs in torn: stop it" "$BIN/atoll" repair torn
kill -TERM "$pid"
finish "$pid" 20 75 "the repaired run after SIGTERM"
refused "data is not a run folder" "$BIN/atoll" repair data
