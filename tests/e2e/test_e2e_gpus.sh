#!/usr/bin/env bash
# Several emulated GPUs in one worker; the programs load the emulator like the real plugin:
# - The losses equal those of the CPU.
# - A stopped run continues with another number of GPUs.
# - The worker names a GPU that fails or hangs, and ends.
# ctest: timeout=170 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml
# shellcheck source=tests/e2e/gpu_runs.sh
source "$HERE/gpu_runs.sh"
export ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_emulated.so ATOLL_EMULATED_GPUS=3 ATOLL_EMULATED_SEED=5

run cpu --train.devices=cpu
run two --train.devices=cuda:2,0
same_as_cpu two
grep -q 'cuda:2,0 emulated' two/logs/worker-0.log || fail "the log of worker-0 does not name its GPUs"

# Muon shards the matrices: each matrix has one owner.
run cpu-muon --train.devices=cpu --inner.optimizer=muon
run muon --train.devices=cuda:0,1 --inner.optimizer=muon
same_as_cpu muon cpu-muon

# Stopped in the second round on two GPUs and continued on one, and the reverse.
stop_in_second_round() { # DEVICES
    local code=0
    rm -rf stopped
    start stopped.log "${command[@]}" --dir stopped --train.devices="$1"
    until_true 60 "the first round" rounds_reach 1 stopped
    kill -TERM "$pid"
    wait "$pid" || code=$?
    ended "$pid"
    ((code == 75 || code == 0)) || fail "stopped: exit code $code, expected 75 or 0"
    ! rounds_reach 2 stopped # false on a busy machine
}
for order in 'cuda:0,1 cuda:1' 'cuda:1 cuda:0,2'; do
    read -r first second <<<"$order"
    stopped=
    for _ in 1 2 3 4 5; do stop_in_second_round "$first" && stopped=yes && break; done
    [[ -n $stopped ]] || fail "five runs ended before the test could stop them"
    run stopped --train.devices="$second"
    same_as_cpu stopped
done

# A GPU that fails in the middle of a step.
mkdir -p failing
ATOLL_EMULATED_FAIL=1:400 start failing.log "${command[@]}" --dir failing --train.devices=cuda:0,1,2 --train.batch_size=6
line='device cuda:1 emulated.*a kernel failed.*the other ranks of this worker were stopped'
until_true 60 "the line of the GPU that failed" grep -rqE "$line" failing/logs
grep -rhE -m 1 "$line" failing/logs | sed -n 1p
kill -TERM "$pid"
wait "$pid" || true
ended "$pid"

# A GPU that hangs without an error; closing it hangs, too.
mkdir -p hung
ATOLL_EMULATED_HANG=1:400 ATOLL_GPU_TIMEOUT=3 ATOLL_GPU_GRACE=3 start hung.log "${command[@]}" --dir hung \
    --train.devices=cuda:0,1,2 --train.batch_size=6
until_true 60 "the line of the GPU that hangs" grep -rqE 'device cuda:1 emulated.*the worker did not exit within 3 s' hung/logs
until_true 20 "the end of its worker" grep -q 'worker-0 exited with code 1' hung.log
kill -TERM "$pid"
wait "$pid" || true
ended "$pid"

ATOLL_EMULATED_NO_NCCL=1 "${command[@]}" --dir none --train.devices=cuda:0,1 >none.log 2>&1 &&
    fail "a run on two GPUs without NCCL exits with 0"
grep -rhE -m 1 'NCCL' none.log none/logs | sed -n 1p | grep . || fail "no log line about NCCL"
