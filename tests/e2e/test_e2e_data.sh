#!/usr/bin/env bash
# A worker whose shard differs in the middle joins, and is refused once all tokens are hashed. The run continues.
set -euo pipefail
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_text 400000 >text.txt
"$BIN/atoll" prepare data text.txt >prepare.log 2>&1 || fail "prepare: $(<prepare.log)"
cp -r data other
# 64 places of 4096 bytes are read at once; one token between two of them changes.
printf '\001' | dd of=other/train_000000.bin bs=1 seek=$((1024 + 5000)) conv=notrunc status=none
write_config run.yaml train.max_steps=1000000 inner.warmup_steps=10
node_start coordinator
until_true 10 "the address of the run" test -e run/address
node_start w0
until_true 20 "the first worker's hash" test -e w0/data_hashes
start w1.log "$BIN/atoll-worker" --join run --dir w1 --name w1 --data.train="$WORK/other/train_*.bin" \
    --data.val="$WORK/data/val_*.bin" --train.threads=1
finish "$pid" 20 2 "the worker with another shard"
grep -q "the training data of 'w1' differs from the other workers' somewhere in its shards" w1.log ||
    fail "w1 does not say what differs: $(<w1.log)"
grep -q "refused w1: the training data of 'w1' differs" coordinator.log || fail "the coordinator does not name w1"
until_true 20 "more rounds of the first worker" rounds_reach $(($(rounds_done) + 3))
