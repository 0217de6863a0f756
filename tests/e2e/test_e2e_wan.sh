#!/usr/bin/env bash
# Two workers behind one link of 1 Mbit/s and 50 ms each way:
# - Heartbeats pass while deltas of 2 s saturate the link.
# - After a cut during a transfer, the nodes resend only the chunks in flight.
# ctest: timeout=300 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
# 67 thousand parameters in fp32 are 270 kB per delta, or 2.1 s of the link. The coordinator evicts a worker that is
# silent for 5 s.
write_config run.yaml model.n_embd=64 train.max_steps=30 train.sync_every=15 train.eval_every=0 train.eval_tokens=128 \
    codec.up=fp32 codec.down=fp32 coordinator.min_workers=2 coordinator.evict_after_s=5
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
coordinator=$pid
until_true 20 "the coordinator's address" test -s run/address
keys=$(sed -nE '1s|tcp://[^/]*/||p' run/address)
port=$(sed -nE 's|.*tcp://127\.0\.0\.1:([0-9]+).*|\1|p' run/address)
start relay.log "$BIN/atoll" relay 1mbit,rtt=100ms --to "127.0.0.1:$port" --control "$WORK/line"
line=$pid
until_true 20 "the relay's address" grep -q '^127' relay.log
relay=$(grep -m 1 '^127' relay.log)

began=$(now_ms)
workers=()
for i in 0 1; do
    start "worker-$i.log" "$BIN/atoll-worker" --join "tcp://$relay/$keys" --dir "worker-$i" --name "worker-$i" \
        --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin"
    workers+=("$pid")
done
until_true 60 "the first round" grep -q '"event":"round"' run/metrics.jsonl
echo "the first round took $(seconds $(($(now_ms) - began))) s"

# Both workers download the update, which takes 4.3 s. Cut the link after 2 s.
sleep 2
echo cut >"$WORK/line"
for i in 0 1; do finish "${workers[i]}" 60 0 "worker-$i"; done
finish "$coordinator" 20 0 coordinator
took=$(($(now_ms) - began))
kill -TERM "$line"
finish "$line" 5 0 relay

! grep -qE 'silent|evict' coordinator.log || fail "heartbeats did not pass: $(grep -E 'silent|evict' coordinator.log)"
(($(json get run/summary.json rounds) == 2 && $(json get run/summary.json workers) == 2)) ||
    fail "summary.json does not count 2 rounds and 2 workers"
up=$(sed -nE 's/.*bytes up ([0-9]+),.*/\1/p' relay.log)
down=$(sed -nE 's/.*bytes down ([0-9]+).*/\1/p' relay.log)
params=$(json get run/summary.json params)
deltas=$((2 * 2 * 4 * params))
chunk=$((256 << 10)) # at most one chunk per worker was in flight
((up >= deltas && up < deltas * 11 / 10 + 2 * chunk)) || fail "$up bytes up for $deltas bytes of deltas"
((down < deltas * 11 / 10 + 2 * chunk)) || fail "$down bytes down for $deltas bytes of updates"
echo "2 rounds of $params parameters over 1 Mbit/s in $(seconds "$took") s: $up bytes up, $down down for $deltas of deltas, 1 cut"
