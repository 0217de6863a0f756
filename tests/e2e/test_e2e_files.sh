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
