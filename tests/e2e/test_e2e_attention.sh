#!/usr/bin/env bash
# Attention with train.precision=bf16 on the emulated device:
# - with cuDNN (emulated): cuDNN's attention;
# - without cuDNN: plain loops, and one log line;
# - ATOLL_ATTENTION names an unavailable kernel: the worker refuses to start.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml
export ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_emulated.so

launch() { # FOLDER SETTINGS...: sets $status to the exit code
    local dir=$1
    shift
    status=0
    "$BIN/atoll" launch run.yaml --workers 1 --dir "$dir" --train.devices=cuda --train.precision=bf16 \
        --train.max_steps=5 --train.eval_every=100 "$@" >"$dir.log" 2>&1 || status=$?
}

refused() { # FOLDER LINE
    ((status == 1 || status == 2)) || fail "$1: exit code $status, expected 1 or 2"
    grep -hE -m 1 -- "$2" "$1.log" "$1"/logs/*.log || fail "$1: no line \"$2\""
}

launch plain
((status == 0)) || fail "without cuDNN: exit code $status: $(tail -n 3 plain.log)"
grep -h 'attention computes in plain loops, which is slow: "libcudnn.so.9": the emulation has no cuDNN' plain/logs/worker-0.log ||
    fail "without cuDNN: no log line about it"
export ATOLL_EMULATE_CUDNN=1
for wish in '' cudnn exact; do
    rm -rf cudnn
    ATOLL_ATTENTION=$wish launch cudnn
    ((status == 0)) || fail "with cuDNN, ATOLL_ATTENTION=$wish: exit code $status: $(tail -n 3 cudnn.log)"
    grep -q 'bf16, emulated cuDNN' cudnn/logs/worker-0.log || fail "ATOLL_ATTENTION=$wish: the log does not name cuDNN"
    if grep 'plain loops' cudnn/logs/worker-0.log; then fail "ATOLL_ATTENTION=$wish: the worker still computes in plain loops"; fi
    json lines plain/metrics.jsonl step loss >plain.txt
    json lines cudnn/metrics.jsonl step loss >cudnn.txt
    paste plain.txt cudnn.txt | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
        END { printf "largest difference of the losses with and without cuDNN: %g\n", most; exit !(NR > 0 && most < 1e-2) }' ||
        fail "ATOLL_ATTENTION=$wish: the losses differ"
done
ATOLL_ATTENTION=plain launch forced
((status == 0)) || fail "ATOLL_ATTENTION=plain: exit code $status"
grep -q 'bf16, plain attention' forced/logs/worker-0.log ||
    fail "ATOLL_ATTENTION=plain: the log does not name it"
ATOLL_ATTENTION=flash launch unknown
refused unknown 'ATOLL_ATTENTION is "flash": set it to exact, cudnn or plain'
ATOLL_ATTENTION=own launch removed
refused removed 'ATOLL_ATTENTION is "own": those kernels are gone: set it to exact, which gives equal bits with cuDNN, or to plain'
unset ATOLL_EMULATE_CUDNN
ATOLL_ATTENTION=cudnn launch wanted
refused wanted 'the emulation has no cuDNN; use ATOLL_ATTENTION=plain instead'
echo ok
