#!/usr/bin/env bash
# Two workers behind one line of 1 Mbit/s with 50 ms each way: it trains, and heartbeats go on while deltas of two seconds
# saturate the line. Then the line is cut in mid-transfer: only the chunks under way are sent again.
# ctest: timeout=300 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh

make_data
# 67 thousand parameters in fp32: 270 kB a delta, 2.1 s of the line. A worker that is not heard of for 5 s would be gone.
write_config run.yaml model.n_embd=64 train.max_steps=30 train.sync_every=15 train.eval_every=0 train.eval_tokens=128 \
    codec.up=fp32 codec.down=fp32 coordinator.min_workers=2 coordinator.evict_after_s=5
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
coordinator=$pid
until_true 20 "the coordinator's address" test -s run/address
port=$(sed -nE 's|.*tcp://127\.0\.0\.1:([0-9]+).*|\1|p' run/address)
start wanlink.log "$BIN/wanlink" --to "127.0.0.1:$port" --rate-mbit 1 --delay-ms 50 --control "$WORK/line"
line=$pid
until_true 20 "the relay's address" grep -q '^127' wanlink.log
relay=$(sed -n 1p wanlink.log)

began=$(now_ms)
workers=()
for i in 0 1; do
    start "worker-$i.log" "$BIN/atoll-worker" --join "tcp://$relay" --dir "worker-$i" --name "worker-$i" \
        --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin"
    workers+=("$pid")
done
until_true 60 "the first round" grep -q '"event":"round"' run/metrics.jsonl
echo "the first round took $(seconds $(($(now_ms) - began))) s"

# Both workers are downloading the update: 4.3 s, cut after two.
sleep 2
echo cut >"$WORK/line"
for i in 0 1; do finish "${workers[i]}" 60 0 "worker-$i"; done
finish "$coordinator" 20 0 coordinator
took=$(($(now_ms) - began))
kill -TERM "$line"
finish "$line" 5 0 wanlink

! grep -qE 'silent|evict' coordinator.log || fail "heartbeats did not get through: $(grep -E 'silent|evict' coordinator.log)"
(($(json get run/summary.json rounds) == 2 && $(json get run/summary.json workers) == 2)) || fail "two rounds, two workers"
up=$(sed -nE 's/.*bytes up ([0-9]+),.*/\1/p' wanlink.log)
down=$(sed -nE 's/.*bytes down ([0-9]+).*/\1/p' wanlink.log)
params=$(json get run/summary.json params)
deltas=$((2 * 2 * 4 * params))
chunk=$((256 << 10)) # at most one of each worker was under way
((up >= deltas && up < deltas * 11 / 10 + 2 * chunk)) || fail "$up bytes went up for $deltas bytes of deltas"
((down < deltas * 11 / 10 + 2 * chunk)) || fail "$down bytes came down for $deltas bytes of updates"
echo "2 rounds of $params parameters over 1 Mbit/s in $(seconds "$took") s: $up bytes up, $down down for $deltas of deltas, one cut"
