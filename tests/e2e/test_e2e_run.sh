#!/usr/bin/env bash
# A run under `atoll launch`: the loss falls, the run folder is complete, and a second run gives the same theta.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml

launch() { # FOLDER SETTINGS...
    local dir=$1 status=0
    shift
    "$BIN/atoll" launch run.yaml --workers 2 --dir "$dir" "$@" >"$dir.log" 2>&1 || status=$?
    ((status == 0)) || { cat "$dir.log" >&2 && fail "atoll launch in $dir: exit code $status"; }
}

launch a --codec.up=int8:64 --codec.down=int8:64
echo "a run with two workers ends with 0"

# The keys of the contract.
json keys a/summary.json method workers params tokens steps rounds final_val_loss wall_s bytes_up bytes_down ddp_bytes \
    utilization tokens_per_s theta_hash restarts
[[ $(json get a/summary.json method) == diloco ]] || fail "summary.json: method is not diloco"
[[ $(json get a/summary.json workers) == 2 ]] || fail "summary.json: workers is not 2"
[[ $(json get a/summary.json rounds) == 12 ]] || fail "summary.json: rounds is not 60 / 5"
[[ $(json get a/summary.json steps) == 60 ]] || fail "summary.json: steps is not 60"
[[ $(json get a/summary.json tokens) == $((2 * 60 * 4 * 32)) ]] ||
    fail "summary.json: tokens is not 2 workers x 60 steps x 4 samples x 32"
[[ $(json get a/summary.json theta_hash) =~ ^[0-9a-f]{16}$ ]] ||
    fail "summary.json: theta_hash is not 16 hexadecimal digits"
[[ $(json get a/summary.json restarts) == 0 ]] || fail "summary.json: restarts is not 0"
echo "summary.json has the keys of the contract"

json lines a/metrics.jsonl round round version tokens bytes_up bytes_down wait_s >rounds.txt
(($(wc -l <rounds.txt) == 12)) || fail "metrics.jsonl has $(wc -l <rounds.txt) rounds, expected 12"
! grep -q -- '-' rounds.txt || fail "a round line lacks a key: $(grep -m 1 -- '-' rounds.txt)"
json lines a/metrics.jsonl step worker step round tokens loss lr grad_norm tokens_per_s tflops >steps.txt
(($(wc -l <steps.txt) == 120)) || fail "metrics.jsonl has $(wc -l <steps.txt) steps, expected 120"
(($(json lines a/metrics.jsonl join worker | sort -u | wc -l) == 2)) || fail "metrics.jsonl does not have 2 joins"
(($(json lines a/metrics.jsonl eval loss | wc -l) >= 3)) || fail "metrics.jsonl has fewer than 3 evaluations"
echo "metrics.jsonl has every round and every step"

json lines a/metrics.jsonl round loss >losses.txt
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(first > 4 && last > 0.5 && last < first - 1) }' losses.txt ||
    fail "the loss does not fall: $(paste -sd' ' losses.txt)"
val=$(json get a/summary.json final_val_loss)
[[ $(json lines a/metrics.jsonl eval loss | tail -n 1 | cut -c 1-6) == "${val:0:6}" ]] ||
    fail "the last eval line is not final_val_loss $val"
echo "the loss falls from $(head -n 1 losses.txt) to $(tail -n 1 losses.txt), validation $val"

for file in config.yaml logs/coordinator.log logs/worker-0.log logs/worker-1.log checkpoints/latest; do
    [[ -s a/$file ]] || fail "the run folder lacks $file"
done
[[ $(readlink a/checkpoints/latest) == round_* ]] || fail "checkpoints/latest is not a link: $(ls -l a/checkpoints)"
latest=a/checkpoints/latest # tools load the newest checkpoint by this path
[[ -s $latest/model.safetensors && -s $latest/config.json ]] || fail "checkpoints/latest does not name a model folder"
[[ $(json theta "$latest/model.safetensors") == "$(json get a/summary.json theta_hash)" ]] ||
    fail "theta_hash differs from the newest checkpoint: $(json theta "$latest/model.safetensors")"
"$BIN/atoll" generate a --tokens 20 --seed 1 --prompt "the " >sample.txt 2>&1 || fail "generate: $(<sample.txt)"
"$BIN/atoll" status a >status.txt 2>&1 || fail "status: $(<status.txt)"
"$BIN/atoll" config print a/config.yaml >printed.yaml 2>&1 ||
    fail "config print cannot read config.yaml: $(<printed.yaml)"
echo "the run folder is complete"

launch b --codec.up=int8:64 --codec.down=int8:64
[[ $(json get a/summary.json theta_hash) == "$(json get b/summary.json theta_hash)" ]] ||
    fail "a second run gives another theta"
echo "a second run gives the same theta: $(json get a/summary.json theta_hash)"

# An evaluation uses the run's parameters, not the worker's trained copy. With this outer rate the run's never change.
for device in cpu cuda; do
    ATOLL_CUDA_PLUGIN=$BIN/atoll_cuda_emulated.so launch "still-$device" --train.max_steps=20 --train.eval_every=1 \
        --codec.up=int8:64 --outer.learning_rate=1e-30 --train.devices="$device"
    evals=$(json lines "still-$device/metrics.jsonl" eval loss | sed '$d') # the last evaluation uses more windows
    (($(wc -l <<<"$evals") >= 2 && $(sort -u <<<"$evals" | wc -l) == 1)) ||
        fail "$device: the validation loss changes although the parameters do not: ${evals//$'\n'/ }"
done
echo "evaluations use the run's parameters"

# Launching a complete run again changes nothing.
launch a --codec.up=int8:64 --codec.down=int8:64
[[ $(json get a/summary.json theta_hash) == "$(json get b/summary.json theta_hash)" ]] ||
    fail "a second launch changed a complete run"
echo "a second launch changes nothing in a complete run"

for method in ddp local-sgd async; do
    launch "m-$method" --train.method="$method" --train.max_steps=20
    [[ $(json get "m-$method/summary.json" method) == "$method" ]] || fail "summary.json: method is not $method"
    echo "method $method: validation loss $(json get "m-$method/summary.json" final_val_loss)"
done

# Llama: grouped keys and values, untied output layer; a new run starts from its exported folder.
llama=(--model.family=llama --model.n_kv_head=1 --model.tie_embeddings=off --train.max_steps=20)
launch llama "${llama[@]}"
json lines llama/metrics.jsonl round loss >losses.txt
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(first > 4 && last > 0.5 && last < first - 0.5) }' losses.txt ||
    fail "llama: the loss does not fall: $(paste -sd' ' losses.txt)"
"$BIN/atoll" generate llama --tokens 20 --seed 1 --prompt "the " >sample.txt 2>&1 || fail "generate: $(<sample.txt)"
"$BIN/atoll" export llama exported >export.txt 2>&1 || fail "export: $(<export.txt)"
cmp -s exported/model.safetensors llama/checkpoints/latest/model.safetensors ||
    fail "export changed the tensors"
launch again "${llama[@]}" --model.init_from="$WORK/exported" --train.max_steps=5
awk -v got="$(json lines again/metrics.jsonl round loss | sed -n 1p)" 'END { exit !(got < $1 + 0.2) }' losses.txt ||
    fail "a run from the exported model starts with a higher loss than the source's last"
# Without keys of the model, family and shape come from the folder; the run continues without that folder.
sed '/^model:/d' run.yaml >bare.yaml
mv exported moved
"$BIN/atoll" launch bare.yaml --workers 2 --dir bare --model.init_from=moved --train.max_steps=5 >bare.log 2>&1 ||
    fail "a run without keys of the model: $(tail -n 3 bare.log)"
got=$(json lines bare/metrics.jsonl round loss | sed -n 1p)
[[ $got == "$(json lines again/metrics.jsonl round loss | sed -n 1p)" ]] ||
    fail "the model of the folder gives another loss than its settings: $got"
mv moved exported
"$BIN/atoll" launch bare.yaml --workers 2 --dir bare --model.init_from=moved --train.max_steps=5 >bare.log 2>&1 ||
    fail "a run that continues without its first folder: $(tail -n 3 bare.log)"
if "$BIN/atoll" launch run.yaml --workers 2 --dir other --model.init_from="$WORK/exported" --model.n_embd=32 >other.log 2>&1; then
    fail "launch accepts another model than that of init_from"
fi
grep -q 'init_from: .*family is llama, not gpt2.*n_embd is 16, not 32' other.log || fail "not all differences: $(<other.log)"
[[ $(grep -c '^atoll: ' other.log) == 1 && ! -e other ]] || fail "a refused launch: $(<other.log)"
if "$BIN/atoll" launch run.yaml --workers 2 --dir other "${llama[@]}" --model.init_from="$WORK/exported" \
    --model.rope_theta=50 >other.log 2>&1; then fail "launch accepts another rope_theta than that of init_from"; fi
grep -qh 'init_from: .*rope_theta is 10000, not 50' other.log ||
    fail "no line about init_from: $(tail -n 3 other.log)"
if "$BIN/atoll" launch run.yaml --workers 2 --dir tied "${llama[@]}" --model.init_from="$WORK/exported" \
    --model.tie_embeddings=on >tied.log 2>&1; then fail "launch drops the output layer of init_from"; fi
grep -qh 'init_from: .*tie_embeddings is off, not on' tied.log ||
    fail "no line about init_from: $(tail -n 3 tied.log)"
echo "llama: loss from $(head -n 1 losses.txt) to $(tail -n 1 losses.txt), exported and continued"
