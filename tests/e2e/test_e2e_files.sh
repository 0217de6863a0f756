#!/usr/bin/env bash
# Files that Atoll did not write or that were damaged: pipes in the run folder, damaged checkpoints and journals, truncated shards.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh

make_data
write_config run.yaml

# Before: open(2) waited for a reader of the pipe, and the coordinator ignored SIGTERM.
for name in metrics.jsonl lock; do
    rm -rf piped && mkdir piped && mkfifo "piped/$name"
    start piped.log "$BIN/atoll-coordinator" run.yaml --dir piped
    finish "$pid" 5 1 "a coordinator with a pipe as $name"
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
    [[ $code == 1 ]] && grep -qE "^atoll: $pattern" refused.txt || fail "$*: exit code $code: $(<refused.txt)"
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
"$BIN/atoll" generate hurt --tokens 5 >/dev/null 2>generate.txt
grep -q "hurt: no coordinator_state.bin" generate.txt || fail "generate hides that nothing was checked"

# Before, the worker was killed by SIGBUS, or trained on zeros.
cp -r data short
start short.log "$BIN/atoll" launch run.yaml --workers 1 --dir shortened --train.max_steps=1000000 --data.train="$WORK/short/train_*.bin"
until_true 20 "some rounds" grep -q '"round":2,' shortened/metrics.jsonl
truncate -s 1500 short/train_000000.bin
finish "$pid" 10 1 "a run with a truncated shard"
grep -q "worker-0: $WORK/short/train_000000.bin was truncated while it was in use: restore it" short.log || fail "$(<short.log)"
