#!/usr/bin/env bash
# The CUDA back end's real host code on stubs of NVIDIA's libraries (tests/cuda/stubs/cudart_stub.h):
# - The losses on one GPU and on several GPUs equal those of the CPU.
# - Each failure of the driver, a GPU or NCCL ends the worker in time, with one line.
# ctest: timeout=170 waits=1 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

[[ -e $BIN/atoll_cuda_stubbed.so ]] || exit 77 # a build without the toolkit
make_data
write_config run.yaml
# shellcheck source=tests/e2e/gpu_runs.sh
source "$HERE/gpu_runs.sh"
export ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_stubbed.so ATOLL_STUB_GPUS=3 ATOLL_ALGO_CACHE=$WORK/algorithms
export ATOLL_NCCL_LIBRARY=$BIN/libnccl_stub.so

run cpu --train.devices=cpu
run one --train.devices=cuda:1
same_as_cpu one
grep -q 'cuda:1 Stub 1' one/logs/worker-0.log || fail "the log of worker-0 does not name its GPU"

# refused NAME LINE SETTINGS...: launch exits with 1 or 2 within 60 s and prints LINE.
refused() {
    local name=$1 line=$2 status=0 began=$SECONDS
    shift 2
    "${command[@]}" --dir "$name" --max-restarts 0 "$@" >"$name.log" 2>&1 || status=$?
    ((status == 1 || status == 2)) || fail "$name: exit code $status, expected 1 or 2"
    grep -qF -- "$line" "$name.log" || fail "$name: no line \"$line\": $(tail -n 3 "$name.log")"
    echo "$name: $(grep -m 1 '^atoll:' "$name.log")"
    ((SECONDS - began < 60)) || fail "$name: ended after $((SECONDS - began)) s, expected less than 60 s"
}

ATOLL_STUB_DRIVER=0 refused no-driver 'no NVIDIA driver on this machine: install a driver for CUDA' --train.devices=cuda
ATOLL_STUB_DRIVER=11080 refused old-driver 'the NVIDIA driver supports CUDA 11.8, but this build needs' --train.devices=cuda
ATOLL_STUB_CAPABILITY=70 refused old-gpu 'Stub 0 has compute capability 7.0, but this build needs 8.0' --train.devices=cuda
ATOLL_STUB_MEMORY=1000000 refused small-gpu "cuBLASLt's workspace: out of memory" --train.devices=cuda
refused no-gpu 'device cuda:3: not on this machine, which has cuda:0 to cuda:2' --train.devices=cuda:3
ATOLL_STUB_FAIL=0:400 refused failing \
    'device cuda:0 Stub 0: a kernel failed: an illegal memory access was encountered (cudaErrorIllegalAddress)' \
    --train.devices=cuda:0

ATOLL_STUB_HANG=0:400 ATOLL_GPU_TIMEOUT=3 ATOLL_GPU_GRACE=3 refused hanging-alone \
    'device cuda:0 Stub 0: no progress for 3 s (ATOLL_GPU_TIMEOUT): the GPU or its host thread hangs; the worker did not exit within 3 s' \
    --train.devices=cuda:0

if [[ -e $ATOLL_NCCL_LIBRARY ]]; then # missing in a build without NCCL's header
    run two --train.devices=cuda:2,0
    same_as_cpu two
    run cpu-muon --train.devices=cpu --inner.optimizer=muon
    run muon --train.devices=cuda:0,1 --inner.optimizer=muon
    same_as_cpu muon cpu-muon

    all=("--train.devices=cuda:0,1,2" --train.batch_size=6)
    stopped='the other ranks of this worker were stopped'
    ATOLL_NCCL_LIBRARY=$WORK/none.so refused no-nccl 'NCCL: cannot load libnccl.so.2' "${all[@]}"
    ATOLL_STUB_NCCL_VERSION=21805 refused old-nccl 'NCCL: libnccl.so.2 is version 2.18' "${all[@]}"
    ATOLL_STUB_NCCL_JOIN=refused refused unjoined 'cannot connect the 3 GPUs of this worker: unhandled system error' "${all[@]}"
    ATOLL_STUB_NCCL_REFUSE=1:10 refused refusal "device cuda:1 Stub 1: NCCL: unhandled system error: as the test wanted; $stopped" "${all[@]}"
    ATOLL_STUB_NCCL_BREAK=1:10 refused broken "device cuda:1 Stub 1: NCCL: remote process exited or there was a network error" \
        "${all[@]}"
    ATOLL_STUB_FAIL=2:400 refused failing-one "device cuda:2 Stub 2: a kernel failed: an illegal memory access" "${all[@]}"
    export ATOLL_GPU_TIMEOUT=3 ATOLL_GPU_GRACE=3
    ATOLL_STUB_NCCL_JOIN=never refused unanswered 'the 3 GPUs of this worker did not connect within 3 s' "${all[@]}"
    ATOLL_STUB_NCCL_STALL=1:10 refused stalled "device cuda:1 Stub 1: did not finish work that the other GPUs have finished; no GPU of this worker made progress for 3 s" "${all[@]}"
    ATOLL_STUB_HANG=1:400 refused hanging 'device cuda:1 Stub 1: did not reach collective' "${all[@]}"
    ATOLL_STUB_NCCL_DESTROY=2 refused unclosed 'device cuda:2 Stub 2: communication with the other GPUs of this worker did not close within 3 s' "${all[@]}"
fi
