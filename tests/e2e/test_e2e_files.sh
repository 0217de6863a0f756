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
