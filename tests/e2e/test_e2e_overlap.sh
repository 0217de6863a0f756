#!/usr/bin/env bash
# atoll-worker exchanges its delta during a step: the round closes before the worker reports the step that it trained
# meanwhile. Between two steps alone, a delta that is larger than the outbox would take several steps.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
# 1.4 million parameters in fp32 are 5.5 MB. A step takes some tenths of a second, and each round trains one while its
# delta travels.
write_config run.yaml train.method=diloco train.max_steps=20 train.sync_every=2 train.overlap=1 train.grad_accum=8 \
    train.eval_every=0 model.n_embd=192 model.n_layer=3 checkpoint.every=0
timeout 250 "$BIN/atoll" launch run.yaml --workers 1 --dir run --quiet "${overrides[@]}" >launch.log 2>&1 ||
    fail "the run failed: $(tail -n 3 launch.log)"

# Rounds whose event comes before the record of their last step. The last round has no overlap. Without the exchange
# during steps no round does: the outbox holds 2 MiB.
during=$(awk '
    function number(key) { return match($0, "\"" key "\":[0-9]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : 0 }
    /"event":"round"/ { closed[number("round")] = 1 }
    /"event":"step"/ { step = number("step"); if (step % 2 == 0 && step < 20 && closed[step / 2]) n++ }
    END { print n + 0 }' run/metrics.jsonl)
((during >= 3)) || fail "only $during of 9 rounds closed during the step that was trained meanwhile"
[[ $(rounds_done) == 10 ]] || fail "the run has $(rounds_done) rounds, not 10"
echo "$during of 9 rounds closed during a step"
