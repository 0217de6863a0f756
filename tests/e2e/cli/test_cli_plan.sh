# atoll plan: text, JSON, the recommendation, and errors. The numbers are tested in tests/sim/test_sim_plan.c and in
# tests/bench/plan.
# shellcheck shell=bash source=tests/e2e/cli/cli.sh
source tests/e2e/cli/cli.sh || exit 1
atoll=$ATOLL_BIN/atoll

cat >"$tmp/run.yaml" <<'END'
model: {family: gpt2, n_layer: 2, n_head: 2, n_embd: 64, block_size: 32, vocab_size: 256}
train: {method: diloco, max_steps: 600, sync_every: 20, batch_size: 2}
END
plan() { "$atoll" plan "$tmp/run.yaml" --workers 3 "$@"; }
# number KEY: the first number of this key in $out.
number() { sed -n "/\"$1\": /{s/.*\"$1\": \([0-9.e+-]*\).*/\1/p;q}" <<<"$out"; }
# holds CONDITION: an arithmetic comparison of real numbers.
holds() { awk "BEGIN { exit !($1) }" || fail "$1 does not hold"; checks=$((checks + 1)); }

# --- a plan -----------------------------------------------------------------------------------------------------------
expect_success plan --link rtt=40ms --step-seconds 0.1 --only --json
expect_equal rounds "$(number rounds)" 30
holds "$(number round_s) > 2.07 && $(number round_s) < 2.5" # 20 steps, two round trips, and what this machine takes
holds "$(number utilization) > 0.9 && $(number utilization) < 1"
slow=$(number seconds)
expect_success plan --link 1mbit,rtt=40ms --step-seconds 0.1 --only --json
fast=$slow slow=$(number seconds)
holds "$slow > 1.5 * $fast"
bytes=$(number bytes_up)
expect_success plan --link 1mbit,rtt=40ms --step-seconds 0.1 --only --json --codec.up=fp32
holds "$(number bytes_up) > 3.5 * $bytes"
expect_success plan --link 'up=1mbit,rtt=40ms;1gbit;1gbit' --step-seconds 0.1 --only --json # one way is slow
holds "$(number seconds) > 1.1 * $fast && $(number seconds) < 0.9 * $slow"

# --- neighbours and a recommendation ----------------------------------------------------------------------------------
expect_success plan --link 1mbit,rtt=40ms --step-seconds 0.02 --json
for change in 'method ddp' 'method local-sgd' 'method streaming' 'method async' 'H 40' 'H 10' 'overlap 5' \
    'codec int4:256+huff, down int4:256+huff'; do
    [[ $out == *"\"change\": \"$change\""* ]] || fail "no neighbour '$change'"
done
[[ $out == *'"reason": "transfers and waiting take '* ]] || fail "no reason for a slow link"
expect_success plan --link 1gbit --step-seconds 1
[[ $out == *'recommended  keep this configuration: workers compute for '*' of the time'* ]] || fail "$out"
! grep -qv '^planning ' "$tmp/.err" || fail "a plan logs: $errors" # a plan of more than 10 s tells its progress
# People read numbers with units; programs read --json.
for line in 'step         1 s' 'the run      30 rounds in 10 min* without evaluations; [0-9.]* [kM]B up, [0-9.]* [kM]B down over all workers' \
    'a round      [0-9.]* s: compute 20 s, compress *[0-9] *s, send *s, wait *s, apply *s' \
    'H 40  * 40* s  *[0-9] %  * 10 min*  *[0-9] [kM]B  *[0-9] [kM]B'; do
    # shellcheck disable=SC2053 # the right side is a pattern
    [[ $out == *$'\n'$line$'\n'* ]] || fail "the plan has no line '$line': $out"
done
! grep -qE '[0-9]e[+-]?[0-9]|[0-9]{6}' "$tmp/.out" || fail "a raw number in the plan: $out"
script=$(command -v script) || script=''
if [[ $script ]]; then # on a terminal each step is shown, and erased before the result
    TERM=xterm "$script" -qec "'$atoll' plan '$tmp/run.yaml' --workers 2 --link 1gbit --step-seconds 1" /dev/null </dev/null >"$tmp/typed"
    grep -q $'\rE*\033\[Kplanning this configuration\r' "$tmp/typed" || fail "no progress on a terminal: $(<"$tmp/typed")"
    grep -q $'\033\[Krun  ' "$tmp/typed" || fail "the progress is not erased: $(<"$tmp/typed")"
fi

# --- the step, and what does not fit ----------------------------------------------------------------------------------
expect_success plan --measure --json
holds "$(number step_seconds) > 0"
ATOLL_HOST_MEMORY=1000000 expect_success plan --link 1gbit --step-seconds 1 --only
[[ $out == *'does not fit'*'(FSDP2): plan that with'*'--gpus N --gpu-memory GIB'* ]] || fail "$out"
ATOLL_HOST_MEMORY=1000000 expect_failure 1 'atoll: *needs *free*' plan --link 1gbit
expect_success plan --link 1gbit --step-seconds 1 --params 5000000 --model.family=external
[[ $out == *'; 5 M parameters, 3 workers'* ]] || fail "$out"

expect_success plan --link 1gbit --step-seconds 1 --only --run.max_hours=1e-6 --run.max_gb=1e6
[[ $out == *'budget       run.max_hours 1e-06 ends this run at '*' % of it'* ]] || fail "$out"
[[ $out != *'run.max_gb'* ]] || fail "$out"

# Six fragments with a window each: at 1 Mbit/s an answer takes minutes. Nothing is sent twice.
sent() {
    expect_success plan --link "$1,rtt=50ms" --step-seconds 1 --only --json --model.n_layer=8 --model.n_embd=512 \
        --model.n_head=8 --model.vocab_size=8192 --codec.up=int8:256 --train.method=diloco --train.sync_every=30 --train.max_steps=60
    number bytes_up
}
fast=$(sent 100mbit) slow=$(sent 0.5mbit)
holds "$slow < 1.01 * $fast"

# --- boxes: tests/python/plan has the arithmetic ------------------------------------------------------------------------
boxes() { "$atoll" plan --model.preset=llama-1b --link 1gbit --train.precision=bf16 "$@"; }
box() { boxes --gpus 8 --gpu-memory 24 "$@"; }
expect_success box
for line in 'box          8 GPUs of 24 GiB; bf16, AdamW, 2 x 2048 tokens a GPU at once' 'DDP  *  no' 'FSDP2  *  yes' \
    'LoRA  *  yes' 'LoRA on FSDP2  *  yes' 'exchange     *: in the box *, link and coordinator *' \
    '             each box sends 1.2[0-9] GB (10* s on its link) and receives 1.2[0-9] GB (*); the coordinator computes *'; do
    # shellcheck disable=SC2053 # the right side is a pattern
    [[ $out == *$'\n'$line$'\n'* ]] || fail "the plan has no line '$line': $out"
done
(($(wc -l <"$tmp/.out") < 22)) || fail "a plan of a box is long: $out"
[[ $out != *'the run  '* && $out != *instead* ]] || fail "a run without the time of a step: $out"
expect_success box --step-seconds 3 --only
[[ $out == *'the run '* ]] || fail "$out"
expect_failure 2 'atoll: --gpu-memory is missing*' boxes --gpus 8
expect_failure 2 'atoll: --gpus is 5000*' boxes --gpus 5000 --gpu-memory 24
expect_failure 2 'atoll: --lora-rank is 0*' box --lora-rank 0
expect_failure 2 "atoll: --measure is for an atoll-worker*" box --measure
expect_failure 2 'atoll: train.batch_size is 12,*multiple of --gpus 8' box --train.batch_size=12
expect_failure 2 'atoll: --step-seconds is missing: with overlap *' box --train.overlap=5
expect_failure 2 'atoll: model.family external: --gpus *model.preset*' plan --link 1mbit --gpus 8 --gpu-memory 80 \
    --model.family=external
expect_failure 2 'atoll: --gpu-memory is for boxes*' plan --link 1mbit --gpu-memory 80

# --- errors -----------------------------------------------------------------------------------------------------------
expect_failure 2 'atoll: --link is missing*' plan --step-seconds 1
expect_failure 2 'atoll: *10mbits*' plan --link 10mbits --step-seconds 1
expect_failure 2 'atoll: *' plan --link '1mbit;2mbit' --step-seconds 1
expect_failure 2 'atoll: --step-seconds is -1*' plan --link 1mbit --step-seconds -1
expect_failure 2 'atoll: --workers is 1000*' "$atoll" plan "$tmp/run.yaml" --link 1mbit --workers 1000
expect_failure 2 'atoll: model.family external*--params*' plan --link 1mbit --step-seconds 1 --model.family=external
expect_failure 2 'atoll: *no-such.yaml*' "$atoll" plan "$tmp/no-such.yaml" --link 1mbit

done_testing
