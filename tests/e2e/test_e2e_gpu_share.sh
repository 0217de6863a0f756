#!/usr/bin/env bash
# atoll launch on a machine with several GPUs (emulated): who gets which, what that is told, and what a worker that is
# started again gets. ctest: timeout=170
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh

make_data
write_config run.yaml
export ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_emulated.so ATOLL_EMULATED_SEED=5

launch() { # workers GPUs folder settings...: ended with $status
    local workers=$1 gpus=$2 dir=$3
    shift 3
    status=0
    ATOLL_EMULATED_GPUS=$gpus timeout 60 "$BIN/atoll" launch run.yaml --workers "$workers" --dir "$dir" \
        --train.max_steps=4 --train.sync_every=2 --train.eval_every=100 --inner.warmup_steps=0 "$@" >"$dir.log" 2>&1 ||
        status=$?
}

works() { # workers GPUs folder settings...
    launch "$@"
    ((status == 0)) || fail "$*: ended with $status: $(tail -n 3 "$3.log")"
}

has() { # folder worker pattern
    grep -qE -- "$3" "$1/logs/worker-$2.log" || fail "$1: worker-$2 does not say \"$3\""
}

says_not() { # folder worker pattern
    if grep -E -- "$3" "$1/logs/worker-$2.log"; then fail "$1: worker-$2 should not say \"$3\""; fi
}

val_loss() { json get "$1/summary.json" final_val_loss; }

works 2 4 cpu --train.devices=cpu
works 2 4 parts
has parts 0 '2 workers on 4 GPUs: this one has cuda:0,1$'
has parts 1 '2 workers on 4 GPUs: this one has cuda:2,3$'
has parts 0 ' cuda:0,1 emulated'
has parts 1 ' cuda:2,3 emulated'
for worker in 0 1; do # of all of its GPU's 1 TiB
    has parts $worker 'memory in MiB: .* of 10485[67][0-9] free'
    says_not parts $worker 'GPUs are idle'
done
awk -v a="$(val_loss cpu)" -v b="$(val_loss parts)" 'BEGIN {
    d = a - b; printf "final loss %s on the CPU, %s on two GPUs each\n", a, b; exit !(d < 1e-4 && d > -1e-4) }' ||
    fail "the losses differ"

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

# A list is dealt as it was written; what its parts cannot do is refused before anything starts.
works 2 4 listed --train.devices=cuda:3,1 --train.batch_size=1
has listed 0 'this one has cuda:3$'
has listed 1 ' cuda:1 emulated'
grep -q 'devices: .*cuda:3,1' listed/config.yaml || fail "config.yaml: $(grep devices: listed/config.yaml)"
refused() { # line settings...
    local line=$1
    shift
    launch 2 4 wrong "$@"
    ((status == 2)) || fail "$*: ended with $status, expected 2"
    grep -q -- "$line" wrong.log || fail "$*: no line \"$line\" in: $(<wrong.log)"
}
refused 'train.batch_size: 3 is not divisible by train.ranks = 2' --train.devices=cuda:0,1,2,3 --train.batch_size=3
refused 'lists cuda:0 twice' --train.devices=cuda:0,1,0,2

# What is left over has a line, once.
idle() { # workers GPUs reason settings...
    local workers=$1 gpus=$2 reason=$3
    shift 3
    rm -rf idle
    works "$workers" "$gpus" idle "$@"
    has idle 0 "GPUs are idle: $workers workers? with . each; $reason"
    ((workers == 1)) || says_not idle 1 'GPUs are idle'
}
idle 3 4 'a number of workers that divides 4 uses all'
idle 1 3 'train.batch_size=4 is not divisible by 3'
idle 2 4 'train.ranks=1$' --train.ranks=1
has idle 1 ' cuda:2 emulated'
export ATOLL_EMULATED_NO_NCCL=1
idle 2 4 'NCCL: none' --train.devices=cuda
unset ATOLL_EMULATED_NO_NCCL

# A worker that is started again has the same GPUs, and says so where people look.
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
until_true 60 "its devices in the status" shown
kill -TERM "$pid"
wait "$pid" || true
ended "$pid"
