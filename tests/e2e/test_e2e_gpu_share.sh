#!/usr/bin/env bash
# atoll launch on a machine with several emulated GPUs: the share of each worker, its log lines, and the share of a
# restarted worker.
# ctest: timeout=170 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml
export ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_emulated.so ATOLL_EMULATED_SEED=5

launch() { # WORKERS GPUS FOLDER SETTINGS...: sets $status to the exit code
    local workers=$1 gpus=$2 dir=$3
    shift 3
    status=0
    ATOLL_EMULATED_GPUS=$gpus timeout 60 "$BIN/atoll" launch run.yaml --workers "$workers" --dir "$dir" \
        --train.max_steps=4 --train.sync_every=2 --train.eval_every=100 --inner.warmup_steps=0 "$@" >"$dir.log" 2>&1 ||
        status=$?
}

works() { # WORKERS GPUS FOLDER SETTINGS...
    launch "$@"
    ((status == 0)) || fail "$*: exit code $status: $(tail -n 3 "$3.log")"
}

has() { # FOLDER WORKER PATTERN
    grep -qE -- "$3" "$1/logs/worker-$2.log" || fail "$1: the log of worker-$2 lacks \"$3\""
}

has_not() { # FOLDER WORKER PATTERN
    if grep -E -- "$3" "$1/logs/worker-$2.log"; then fail "$1: the log of worker-$2 must not contain \"$3\""; fi
}

val_loss() { json get "$1/summary.json" final_val_loss; }

works 2 4 cpu --train.devices=cpu
works 2 4 parts
has parts 0 '2 workers on 4 GPUs: this one has cuda:0,1$'
has parts 1 '2 workers on 4 GPUs: this one has cuda:2,3$'
has parts 0 ' cuda:0,1 emulated'
has parts 1 ' cuda:2,3 emulated'
for worker in 0 1; do # all of the GPU's 1 TiB
    has parts $worker 'memory in MiB: .* of 10485[67][0-9] free'
    has_not parts $worker 'GPUs are idle'
done
awk -v a="$(val_loss cpu)" -v b="$(val_loss parts)" 'BEGIN {
    d = a - b; printf "final loss %s on the CPU, %s with two GPUs per worker\n", a, b; exit !(d < 1e-4 && d > -1e-4) }' ||
    fail "the final losses differ"

works 4 2 shared --train.devices=cuda
for worker in 0 1 2 3; do
    has shared $worker "4 workers on 2 GPUs: this one has cuda:$((worker % 2)), shared with 1 more\$"
    has shared $worker "cuda:$((worker % 2)) emulated"
    has shared $worker 'memory in MiB: .* of 523648 free'
done
works 3 2 uneven --train.devices=cuda
has uneven 1 'this one has cuda:1$'
has uneven 1 'memory in MiB: .* of 10485[67][0-9] free'
has uneven 2 'memory in MiB: .* of 523648 free'
works 2 1 one
has one 1 '2 workers on 1 GPU: this one has it, shared with 1 more$'
has one 1 'memory in MiB: .* of 523648 free'

# launch deals a list of GPUs in its order. It refuses impossible shares before it starts a process.
works 2 4 listed --train.devices=cuda:3,1 --train.batch_size=1
has listed 0 'this one has cuda:3$'
has listed 1 ' cuda:1 emulated'
grep -q 'devices: .*cuda:3,1' listed/config.yaml || fail "config.yaml: $(grep devices: listed/config.yaml)"
refused() { # LINE SETTINGS...
    local line=$1
    shift
    launch 2 4 wrong "$@"
    ((status == 2)) || fail "$*: exit code $status, expected 2"
    grep -q -- "$line" wrong.log || fail "$*: no line \"$line\" in: $(<wrong.log)"
}
refused 'train.batch_size: 3 is not divisible by train.ranks = 2' --train.devices=cuda:0,1,2,3 --train.batch_size=3
refused 'lists cuda:0 twice' --train.devices=cuda:0,1,0,2

# worker-0 alone logs idle GPUs.
idle() { # WORKERS GPUS REASON SETTINGS...
    local workers=$1 gpus=$2 reason=$3
    shift 3
    rm -rf idle
    works "$workers" "$gpus" idle "$@"
    has idle 0 "GPUs are idle: $workers workers? with . each; $reason"
    ((workers == 1)) || has_not idle 1 'GPUs are idle'
}
idle 3 4 'a number of workers that divides 4 uses all'
idle 1 3 'train.batch_size=4 is not divisible by 3'
idle 2 4 'train.ranks=1$' --train.ranks=1
has idle 1 ' cuda:2 emulated'
export ATOLL_EMULATED_NO_NCCL=1
idle 2 4 'NCCL: none' --train.devices=cuda
unset ATOLL_EMULATED_NO_NCCL

# A restarted worker gets the same GPUs; its log and atoll status name them.
export ATOLL_EMULATED_GPUS=4
start again.log "$BIN/atoll" launch run.yaml --workers 2 --dir again --train.max_steps=100000
until_true 60 "steps" grep -q ' step ' again/logs/worker-1.log
for id in $(descendants "$pid"); do
    command_of "$id" || continue
    [[ $command != *'--name worker-1 '* ]] || kill -9 "$id"
done
dealt_twice() { (($(grep -c 'this one has cuda:2,3$' again/logs/worker-1.log) == 2)); }
until_true 60 "worker-1's second start" dealt_twice
shown() { "$BIN/atoll" status again >status.txt && grep -qE 'worker-1 .*cuda:2,3 emulated' status.txt; }
until_true 60 "the devices of worker-1 in atoll status" shown
kill -TERM "$pid"
wait "$pid" || true
ended "$pid"
