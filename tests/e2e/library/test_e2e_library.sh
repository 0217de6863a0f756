#!/usr/bin/env bash
# Programs that use libatoll, in runs of a built-in model:
# - A native worker and two library workers train one run: one theta_hash, and each sample once.
# - Tensors in another order, or with the prefix of transformers, give the same parameters.
# - kill -9 of a library worker does not change the run: its state comes back.
# - Wrong uses end with one line.
# ctest: timeout=240
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"
make_data
data="$WORK/data/train_*.bin"

# run_start KEY=VALUE...: a new run, whose coordinator is $coordinator.
run_start() {
    rm -rf run w0 w1 w2 ./*.out ./*.log
    write_config run.yaml train.eval_every=0 "$@"
    start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
    coordinator=$pid
}

# library NAME WORD...: starts a library worker; its output goes to NAME.out, its lines to NAME.log.
library() {
    local name=$1
    shift
    "$BIN/e2e_library" run "$name" "$data" "$@" >>"$name.out" 2>>"$name.log" &
    pid=$!
    started+=("$pid")
}

theta_of() { sed -n 's/^theta //p' "$1"; }

# --- a native worker beside two programs
run_start coordinator.min_workers=3 train.max_steps=30
library w0 reverse prefix
first=$pid
library w1
second=$pid
start w2.log "$BIN/atoll-worker" --join run --dir w2 --data.train="$data" --data.val="$WORK/data/val_*.bin" --train.threads=1
third=$pid
finish "$first" 60 0 "the first program"
finish "$second" 60 0 "the second program"
finish "$third" 60 0 "the native worker"
finish "$coordinator" 60 0 "the coordinator"
theta=$(json get run/summary.json theta_hash)
[[ $theta && $theta == "$(theta_of w0.out)" && $theta == "$(theta_of w1.out)" ]] ||
    fail "theta is $theta, the programs have $(theta_of w0.out) and $(theta_of w1.out)"
[[ $(json get run/summary.json steps) == 30 && $(json get run/summary.json tokens) == $((3 * 30 * 4 * 32)) ]] ||
    fail "unexpected steps or tokens: $(<run/summary.json)"
[[ $(json get run/summary.json final_val_loss) == [0-9]* ]] || fail "the native worker did not evaluate"
grep -h '^samples' w0.out w1.out | cut -d ' ' -f 2- | tr ' ' '\n' | sort >samples.txt
(($(wc -l <samples.txt) == 2 * 30 * 4)) || fail "the programs trained on $(wc -l <samples.txt) samples"
[[ -z $(uniq -d samples.txt) ]] || fail "trained twice on $(uniq -d samples.txt | tr '\n' ' ')"
! grep -q 'skipped' coordinator.log || fail "a step without a gradient norm counts as skipped"

# --- the order of the tensors, and kill -9, do not change the run
run_undisturbed() {
    run_start coordinator.min_workers=2 train.max_steps=60 codec.up=int8:64 codec.down=int8:64
    library w0
    first=$pid
    library w1
    second=$pid
    finish "$first" 60 0 "w0"
    finish "$second" 60 0 "w1"
    finish "$coordinator" 60 0 "the coordinator"
    theta=$(json get run/summary.json theta_hash)
}
run_undisturbed
run_start coordinator.min_workers=2 train.max_steps=60 codec.up=int8:64 codec.down=int8:64
library w0 slow
first=$pid
library w1 slow
second=$pid
for round in 2 4 6 8; do
    until_true 60 "round $round" rounds_reach "$round"
    kill -KILL "$second"
    wait "$second" 2>/dev/null || true
    ended "$second"
    library w1 slow
    second=$pid
done
finish "$first" 60 0 "w0"
finish "$second" 60 0 "w1 after 4 kills"
finish "$coordinator" 60 0 "the coordinator"
[[ $(json get run/summary.json theta_hash) == "$theta" ]] || fail "kills changed theta from $theta: $(<run/summary.json)"
[[ $(theta_of w0.out) == "$theta" && $(theta_of w1.out) == "$theta" ]] || fail "the programs have other parameters"
mapfile -t states < <(sed -n 's/^state //p' w1.out)
((${#states[@]} == 4 && states[0] >= 5 && states[3] > states[0])) || fail "restored states: ${states[*]}"

# --- wrong uses
# wrong CODE TEXT WORD...: the program ends with this code and line.
wrong() {
    local code=$1 text=$2
    shift 2
    run_start coordinator.min_workers=1 train.max_steps=20
    library w0 "$@"
    finish "$pid" 60 "$code" "e2e_library $*"
    [[ $(grep '^error' w0.log) == *"$text"* ]] || fail "$*: $(<w0.log)"
    kill -KILL "$coordinator"
    ended "$coordinator"
}
wrong 11 "tensor 'h.0.attn.c_proj.weight' has the shape [16, 17], but the run's has [16, 16]" wrong
wrong 11 'trained on 635 tokens, but it has 20 samples of 32 tokens' tokens
run_start train.max_steps=10
library w0 nan
finish "$pid" 60 0 "a program with one round of NaN"
[[ $(grep -v samples w0.out) == *'state 0'*'nan 4'* ]] || fail "NaN is not refused: $(grep -v samples w0.out)"
finish "$coordinator" 60 0 "the coordinator"
echo "programs and a native worker train one run; kills change nothing"
