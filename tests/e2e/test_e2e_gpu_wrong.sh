#!/usr/bin/env bash
# Emulated GPUs:
# - Impossible settings and environments end in one line without a crash.
# - Unusual sizes work, and each kind of attention.
# - A run continues on a GPU and again on the CPU.
# ctest: timeout=170 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml
export ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_emulated.so ATOLL_EMULATED_GPUS=3

launch() { # FOLDER SETTINGS...: sets $status to the exit code
    local dir=$1
    shift
    status=0
    timeout 60 "$BIN/atoll" launch run.yaml --workers 1 --dir "$dir" --train.max_steps=2 --train.sync_every=1 \
        --inner.warmup_steps=0 "$@" >"$dir.log" 2>&1 || status=$?
}

refused() { # LINE SETTINGS...
    local line=$1 name=wrong$((++wrong))
    shift
    launch "$name" "$@"
    ((status == 1 || status == 2)) || fail "$*: exit code $status, expected 1 or 2"
    grep -qE -- "$line" "$name.log" || fail "$*: no line \"$line\" in: $(<"$name.log")"
    [[ -n ${passing:-} ]] || ! grep -q 'restarting in' "$name.log" ||
        fail "$*: launch restarts a worker after a permanent error: $(<"$name.log")"
    echo "$*: $(grep -hE -m 1 -- "$line" "$name.log")"
}
wrong=0

refused 'train.devices: "cuda:0,0" lists cuda:0 twice' --train.devices=cuda:0,0
for text in 'cuda:' 'cuda:0-1' 'cuda:0, 1' 'cuda:0,' 'cuda:-1' 'gpu' 'CUDA' ' cuda' 'cpu,cuda' ''; do
    refused 'train.devices: .* is not valid; allowed: auto, cpu, cuda' --train.devices="$text"
done
refused 'device "cuda:99999999999999999999" is unknown' --train.devices=cuda:99999999999999999999
refused 'device cuda:9: ' --train.devices=cuda:9
refused 'train.batch_size: 4 is not divisible by train.ranks = 3; nearest: 3 or 6' --train.devices=cuda:0,1,2
refused 'train.ranks: 3 does not match the 2 GPUs' --train.devices=cuda:0,1 --train.ranks=3
refused 'train.recompute: "some" is not a choice; allowed: ' --train.devices=cuda --train.recompute=some
wide='--model.n_embd=256 --model.n_head=1'
# shellcheck disable=SC2086 # two settings
refused 'heads of 256 columns .n_embd / n_head.: a GPU supports at most 128; use train.devices=cpu instead' \
    --train.devices=cuda $wide
refused '16384 sequences of 4 heads: a GPU supports 65535 heads in one batch: lower train.batch_size and raise' \
    --train.devices=cuda:0 --train.batch_size=16384 --model.block_size=1 --model.n_head=4 --train.eval_every=0
export ATOLL_ATTENTION=fast
refused 'ATOLL_ATTENTION is "fast": set it to exact, cudnn or plain' --train.devices=cuda --train.precision=bf16
ATOLL_ATTENTION=cudnn
refused 'no cuDNN; use ATOLL_ATTENTION=plain instead' --train.devices=cuda --train.precision=bf16
unset ATOLL_ATTENTION
ATOLL_NCCL_LIBRARY=$WORK/none ATOLL_CUDA_PLUGIN=$BIN/none.so refused 'no .*none.so: .*; use train.devices=cpu instead' \
    --train.devices=cuda
passing=1 ATOLL_EMULATED_MEMORY=1000 refused 'has no memory left: check nvidia-smi' --train.devices=cuda

# The advice of `atoll generate` names its own options, not train.*.
generate() { # LINE RUN OPTIONS...
    local line=$1 code=0
    shift
    "$BIN/atoll" generate "$@" --tokens 2 >generate.log 2>&1 || code=$?
    ((code == 1 || code == 2)) || fail "generate $*: exit code $code, expected 1 or 2"
    grep -qE -- "$line" generate.log || fail "generate $*: no line \"$line\" in: $(<generate.log)"
    if grep 'train\.' generate.log; then fail "generate $*: the advice names a key that generate does not have"; fi
    echo "generate $*: $(grep -hE -- "$line" generate.log)"
}
# shellcheck disable=SC2086
launch wide --train.devices=cpu $wide
((status == 0)) || fail "$wide: exit code $status: $(tail -n 3 wide.log)"
generate 'heads of 256 columns .*; use --device cpu instead$' wide --device cuda
ATOLL_CUDA_PLUGIN=$BIN/none.so generate '^atoll: CUDA: no .*; use --device cpu instead$' wide --device cuda
generate 'device cuda:9: not on this machine, which has cuda:0 to cuda:2$|cuda:9: the emulation has 3' wide --device cuda:9
generate 'device "gpu" is unknown: use auto, cpu or cuda$' wide --device gpu
ATOLL_EMULATED_MEMORY=1000 generate 'no memory left: check nvidia-smi for other processes, or use another GPU' wide --device cuda
[[ -e /proc/driver/nvidia/version ]] ||
    ATOLL_CUDA_PLUGIN='' generate 'CUDA: (no|the NVIDIA driver shows no GPU).*; use --device cpu instead$' wide --device cuda:0

# Sizes that no fast kernel supports.
for odd in '--train.batch_size=1 --model.block_size=1' '--model.n_embd=9 --model.n_head=3 --model.vocab_size=257' \
    '--model.n_embd=40 --train.batch_size=3'; do
    # shellcheck disable=SC2086 # several settings
    launch odd --train.devices=cuda --train.precision=bf16 $odd
    ((status == 0)) || fail "$odd: exit code $status: $(tail -n 3 odd.log)"
    grep -q 'plain loops, which is slow' odd/logs/worker-0.log ||
        fail "$odd: the log does not name the slower attention kernel"
    rm -rf odd
done

# Attention in bf16: the log names what computes it.
export ATOLL_EMULATE_CUDNN=1
for wish in '' cudnn exact plain; do
    name='bf16, emulated cuDNN'
    [[ $wish != plain ]] || name='bf16, plain attention'
    ATOLL_ATTENTION=$wish launch attention --train.devices=cuda --train.precision=bf16
    ((status == 0)) || fail "ATOLL_ATTENTION=$wish: exit code $status: $(tail -n 3 attention.log)"
    grep -q "$name" attention/logs/worker-0.log || fail "ATOLL_ATTENTION=$wish: the log does not name $name"
    rm -rf attention
done
unset ATOLL_EMULATE_CUDNN

# One run on the CPU, a GPU and the CPU again.
steps_reach() { (($(grep -c '"event":"step"' moved/metrics.jsonl) >= $1)); }
mkdir moved
touch moved/metrics.jsonl
steps=0
for device in cpu cuda:1 cpu; do
    start moved.log "$BIN/atoll" launch run.yaml --workers 1 --dir moved --train.max_steps=100000 \
        --train.devices="$device"
    until_true 60 "steps on $device" steps_reach $((steps + 12))
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    ended "$pid"
    ((code == 75)) || fail "$device: exit code $code, expected 75: $(tail -n 5 moved.log)"
    steps=$(grep -c '"event":"step"' moved/metrics.jsonl)
done
json lines moved/metrics.jsonl step loss | awk '
    NR == 1 { first = $1 }
    { last = $1 }
    END { printf "%d steps on CPU, GPU and CPU: loss from %g to %g\n", NR, first, last; exit !(last < first) }' ||
    fail "the loss does not fall"
