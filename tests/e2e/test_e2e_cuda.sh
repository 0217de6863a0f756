#!/usr/bin/env bash
# train.devices=cuda. Without a usable GPU, the run is refused with one line. With the emulator, the losses equal those
# of the CPU. The emulator runs the CUDA back end's kernels on the CPU (tests/cuda/emulator/emulate.h); the programs
# load it like the real plugin.
# ctest: timeout=170
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml
emulated=$BIN/atoll_cuda_emulated.so
[[ -e $emulated ]] || fail "$emulated is missing"

launch() { # FOLDER SETTINGS...: sets $status to the exit code
    local dir=$1
    shift
    status=0
    "$BIN/atoll" launch run.yaml --workers 2 --dir "$dir" --train.max_steps=10 --train.eval_every=100 "$@" \
        >"$dir.log" 2>&1 || status=$?
}

refused() { # FOLDER LINE
    ((status == 1 || status == 2)) || fail "$1: exit code $status, expected 1 or 2"
    grep -qE -- "$2" "$1.log" "$1"/logs/*.log || fail "$1: no line \"$2\""
    echo "$1: $(grep -hE -m 1 -- "$2" "$1"/logs/worker-0.log "$1.log" | sed -n 1p)"
}

export ATOLL_CUDA_PLUGIN=$WORK/none.so
launch missing --train.devices=cuda
refused missing 'CUDA: no .*none.so'
echo "not a library" >broken.so
ATOLL_CUDA_PLUGIN=$WORK/broken.so launch broken --train.devices=cuda:0
refused broken 'CUDA: broken.so cannot be loaded'
ATOLL_CUDA_PLUGIN=$emulated launch absent --train.devices=cuda:3
refused absent 'device cuda:3'
ATOLL_CUDA_PLUGIN=$emulated launch several --train.devices=cuda:0,1
refused several 'device cuda:1: the emulation has 1'
unset ATOLL_CUDA_PLUGIN
if [[ ! -e /proc/driver/nvidia/version ]]; then
    launch driverless --train.devices=cuda
    # Possible causes: no driver, a driver library without its kernel module, or no plugin.
    refused driverless 'CUDA: (no NVIDIA driver|the NVIDIA driver shows no GPU|no .*atoll_cuda.so)'
    launch auto
    ((status == 0)) || fail "train.devices=auto without a GPU: exit code $status"
fi

launch cpu --train.devices=cpu
((status == 0)) || fail "the run on the CPU: exit code $status"
if grep 'tensor cores' cpu/logs/worker-0.log; then fail "the worker on the CPU logs about tensor cores"; fi
export ATOLL_CUDA_PLUGIN=$emulated
llama='--model.family=llama --model.n_layer=2 --model.n_kv_head=1 --model.block_size=16 --model.tie_embeddings=off'
llama+=' --train.method=local-sgd --train.max_steps=4 --train.sync_every=2 --train.grad_accum=2 --train.batch_size=2'
for settings in '' '--train.method=ddp --train.max_steps=4' '--codec.up=int8 --checkpoint.worker_every=0' '--inner.optimizer=muon' \
    "$llama --train.recompute=block"; do
    rm -rf cuda
    # shellcheck disable=SC2086 # the first settings are empty
    launch cuda --train.devices=cuda $settings
    ((status == 0)) || fail "the run on CUDA $settings: exit code $status: $(tail -n 3 cuda.log)"
    grep -q 'cuda:0 emulated' cuda/logs/worker-0.log || fail "the log of worker-0 does not name the device"
    grep -q 'memory of the host, in MiB: .*anchor .*, pinned buffers .* free' cuda/logs/worker-0.log ||
        fail "the log of worker-0 lacks its host memory"
    grep -q 'fp32, which does not use the GPU' cuda/logs/worker-0.log ||
        fail "the log of worker-0 lacks the hint about fp32 and tensor cores"
    if grep 'making deltas on the CPU' cuda/logs/worker-0.log; then fail "$settings: the CPU makes the deltas, expected the device"; fi
    if [[ $settings ]]; then
        rm -rf cpu
        # shellcheck disable=SC2086
        launch cpu --train.devices=cpu $settings
    fi
    json lines cpu/metrics.jsonl step loss >cpu.txt
    json lines cuda/metrics.jsonl step loss >cuda.txt
    (($(wc -l <cpu.txt) == $(wc -l <cuda.txt))) || fail "$(wc -l <cpu.txt) steps on the CPU, $(wc -l <cuda.txt) on CUDA"
    paste <(sort -g cpu.txt) <(sort -g cuda.txt) >both.txt
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
        END { printf "largest difference of the losses to the CPU: %g\n", most; exit !(NR > 0 && most < 1e-4) }' \
        both.txt ||
        fail "$settings: the losses differ from the CPU"
done
