#!/usr/bin/env bash
# `atoll` and a real run: after its end, with fewer workers, before its coordinator, from a checkpoint; generate and export.
# ctest: timeout=400 waits=1
source tests/e2e/lib.sh || exit 1

make_data
launch() { exec "$BIN/atoll" launch run.yaml --workers 2 --dir "$WORK/$1" "${overrides[@]}"; }

write_config run.yaml train.max_steps=300 checkpoint.every=10 train.eval_every=20
start calm.log launch calm
finish "$pid" 150 0 "atoll launch"
! grep -q 'connection.*lost' calm.log || fail "an orderly end logs a lost connection: $(grep -m 1 'connection.*lost' calm.log)"
if grep -rh 'names no configuration key' calm.log calm/logs; then fail "a program takes a variable of launch for a configuration key"; fi
calm=$(json get calm/summary.json theta_hash)
grep -q "^theta_hash *$calm" <<<"$("$BIN/atoll" status calm)" ||
    fail "status of a finished run: $("$BIN/atoll" status calm)"

# Stopped with two workers, continued with one: the coordinator logs the missing worker and the eviction time.
write_config run.yaml train.max_steps=10000000
start fewer.log launch fewer
until_true 100 "round 3" rounds_reach 3 fewer
kill -TERM "$pid"
finish "$pid" 100 75 "atoll launch after SIGTERM"
start fewer.log "$BIN/atoll" launch run.yaml --workers 1 --dir fewer "${overrides[@]}" --coordinator.min_workers=2 \
    --coordinator.evict_after_s=2
until_true 60 "the name of the missing worker" grep -q 'waiting for .*worker-1; after the first .* the others have 2 s' fewer.log
round=$(rounds_done fewer)
until_true 100 "rounds without it" rounds_reach $((round + 3)) fewer
kill -TERM "$pid"
finish "$pid" 100 75 "atoll launch of one worker after SIGTERM"
echo "continued with fewer workers: the log names the missing worker"

# A worker that joins a complete run ends with 0.
start late.log "$BIN/atoll-worker" --join calm --dir late --name late --data.train="$WORK/data/train_*.bin"
finish "$pid" 60 0 "a worker of a complete run"
grep -q 'the run in calm is complete' late.log || fail "a worker of a complete run logs: $(<late.log)"
[[ ! -e late ]] || fail "a worker of a complete run leaves a folder"

# A worker that is started before its coordinator waits for the folder to appear.
start early.log "$BIN/atoll-worker" --join later --dir early --name early --data.train="$WORK/data/train_*.bin"
early=$pid
until_true 60 "the log line about the address" grep -q 'waiting up to .*later/address.*the folder does not exist' early.log
start later.log "$BIN/atoll-coordinator" run.yaml --dir later --train.max_steps=20
finish "$pid" 100 0 "a coordinator started after its worker"
finish "$early" 60 0 "a worker started before its coordinator"
start asked.log "$BIN/atoll-worker" --join never --dir asked --name asked --data.train="$WORK/data/train_*.bin"
until_true 60 "the log line about the address" grep -q 'waiting up to .*never/address' asked.log
kill -TERM "$pid" "$pid" # timeout(1) and service managers send one request as two signals
finish "$pid" 60 75 "a worker after SIGTERM while it waits"
start over.log "$BIN/atoll-worker" --join over --dir asked --name asked --data.train="$WORK/data/train_*.bin"
until_true 60 "the log line about the address" grep -q 'waiting up to .*over/address' over.log
mkdir over
cp calm/summary.json over/
finish "$pid" 30 0 "a worker whose run ends while it waits for an address"
echo "a worker waits for the folder of its coordinator"

# If the coordinator does not answer, a worker waits for --max-wait seconds.
key=$(printf '%064d' 1) # no coordinator has it
start alone.log "$BIN/atoll-worker" --join "tcp://127.0.0.1:9/$key/$key" --max-wait 5 --dir alone --data.train="$WORK/data/train_*.bin"
finish "$pid" 60 75 "a worker whose coordinator never answers"
grep -qE 'the coordinator has not answered for [5-9] s \(--max-wait\); start it again' alone.log ||
    fail "a worker after --max-wait logs: $(<alone.log)"
start none.log "$BIN/atoll-worker" --join "tcp://127.0.0.1:9/$key/$key" --max-wait none --dir alone --data.train="$WORK/data/train_*.bin"
until_true 20 "the line of a worker that retries" grep -q 'retrying: ' none.log
kill -TERM "$pid"
finish "$pid" 20 75 "a worker that waits without limit"

# launch refuses a folder that another coordinator serves, and keeps its address file.
few_files() { # a low soft limit: the coordinator raises it, and keeps a reserve for its own files
    ulimit -Sn 256
    exec "$BIN/atoll-coordinator" run.yaml --dir served
}
start served.log few_files
coordinator=$pid
until_true 60 "the address of the coordinator" test -s served/address
address=$(<served/address)
read -r soft hard <<<"$(sed -n 's/^Max open files//p' "/proc/$coordinator/limits")"
hard=${hard%% *}
((soft > 256 && soft < hard)) ||
    fail "the coordinator's limit of open files is $soft of $hard"
port=${address#tcp://*:} port=${port%%/*}
exec {stranger}<>"/dev/tcp/127.0.0.1/$port"
start refused.log "$BIN/atoll" launch run.yaml --workers 1 --dir served "${overrides[@]}"
finish "$pid" 60 1 "atoll launch in a folder that is served"
[[ $(<refused.log) == 'atoll: another coordinator serves served: '* ]] ||
    fail "unexpected error of launch: $(<refused.log)"
[[ $(<served/address) == "$address" ]] || fail "launch changed the address file of the other coordinator"
echo "launch refuses a served folder"

# A run that started from a checkpoint continues with the same command, even if a newer checkpoint exists by then.
latest=$(readlink calm/checkpoints/latest)
cp -r "calm/checkpoints/$latest" calm/checkpoints/newer
# The run's checkpoints keep the source's tokenizer and special tokens, even after the source is deleted.
source=calm/checkpoints/round_source
cp -r "calm/checkpoints/$latest" "$source"
sed -i 's/"bos_token_id": 0/"bos_token_id": null/; s/"eos_token_id": 0/"eos_token_id": [7, 9]/' "$source/config.json"
echo '{"model": {"type": "BPE"}}' >"$source/tokenizer.json"
echo '{"temperature": 0.5}' >"$source/generation_config.json"
ln -sfn round_source calm/checkpoints/latest
named=(calm/checkpoints/latest calm/ calm/checkpoints/latest)
for more in 3 4 5; do
    want=$more
    if [[ -e from/metrics.jsonl ]]; then want=$((want + $(json lines from/metrics.jsonl round round | tail -n 1))); fi
    start from.log "$BIN/atoll" launch run.yaml --workers 1 --dir from --resume "${named[more - 3]}" "${overrides[@]}"
    until_true 60 "round $want from a checkpoint" rounds_reach "$want" from
    kill -TERM "$pid"
    finish "$pid" 100 75 "atoll launch --resume after SIGTERM"
    ln -sfn newer calm/checkpoints/latest
    rm -rf "$source"
done
"$BIN/atoll" export from from-out >export.txt || fail "export: $(<export.txt)"
grep -q BPE from-out/tokenizer.json || fail "the export lacks tokenizer.json: $(ls from-out)"
grep -q 0.5 from-out/generation_config.json || fail "the export lacks generation_config.json: $(ls from-out)"
[[ $(tr -d ' \n' <from-out/config.json) == *'"bos_token_id":null,"eos_token_id":[7,9]'* ]] ||
    fail "unexpected special tokens: $(<from-out/config.json)"
grep -q 'init_from: "calm/checkpoints/round' from/config.yaml ||
    fail "unexpected source of the run: $(grep init_from from/config.yaml)"
code=0
"$BIN/atoll" launch run.yaml --workers 1 --dir from --resume fewer "${overrides[@]}" 2>from.err || code=$?
[[ $code == 1 && $(<from.err) == *'from already holds a run and --resume is fewer'* ]] ||
    fail "unexpected error of another --resume: $(<from.err)"
ln -sfn "$latest" calm/checkpoints/latest
rm -r calm/checkpoints/newer
echo "a run from a checkpoint continues"

# A launch that failed to read its model leaves no run: a second launch may use the folder with another model.
cp -r "calm/checkpoints/$latest" torn
truncate -s -4 torn/model.safetensors
code=0
"$BIN/atoll" launch run.yaml --workers 1 --dir tried --resume torn "${overrides[@]}" 2>tried.err || code=$?
[[ $code == 2 && $(<tried.err) == *'torn/model.safetensors'* ]] ||
    fail "truncated model: exit code $code: $(<tried.err)"
[[ ! -e tried ]] || fail "a failed start leaves a folder: $(find tried)"
start tried.log "$BIN/atoll" launch run.yaml --workers 1 --dir tried --resume calm "${overrides[@]}"
until_true 60 "round 1 from another checkpoint" rounds_reach 1 tried
kill -TERM "$pid"
finish "$pid" 100 75 "atoll launch --resume after SIGTERM"
grep -q 'init_from: "calm/checkpoints/round' tried/config.yaml ||
    fail "unexpected source of the run: $(grep init_from tried/config.yaml)"
echo "a run that failed to start starts from another checkpoint"

# generate and export read the newest checkpoint.
"$BIN/atoll" generate calm --tokens 40 --seed 3 --prompt 'the ' >one.txt
"$BIN/atoll" export calm out >export.txt || fail "export: $(<export.txt)"
"$BIN/atoll" generate out --tokens 40 --seed 3 --prompt 'the ' >two.txt
cmp -s one.txt two.txt || fail "the exported model generates another text"
[[ $(head -c 4 one.txt) == 'the ' && $(wc -c <one.txt) -gt 40 ]] || fail "generate wrote: $(<one.txt)"
cmp calm/checkpoints/latest/model.safetensors out/model.safetensors ||
    fail "export changed the model"
"$BIN/atoll" export out/ twice/ >export.txt || fail "export of an export: $(<export.txt)"
grep -q '^twice: .* from out$' export.txt || fail "export prints other folder names: $(<export.txt)"
sed -i 's/"float32"/"bfloat16"/' twice/config.json
"$BIN/atoll" export twice thrice >export.txt || fail "export of half precision: $(<export.txt)"
grep -q '"torch_dtype": "float32"' thrice/config.json ||
    fail "config.json has another type than the fp32 tensors: $(<thrice/config.json)"
echo '{"model": {}}' >thrice/tokenizer.json
"$BIN/atoll" generate thrice --prompt 'the ' >three.txt 2>&1 && fail "generate encodes the prompt as bytes although the model has a tokenizer: $(<three.txt)"
grep -q "^atoll: .*--ids '1 2 3'" three.txt || fail "generate with a tokenizer: $(<three.txt)"
mkdir package
printf '#!/bin/sh\necho "taken: $*"\n' >package/atoll-generate
chmod +x package/atoll-generate
taken() { # ARGUMENTS...: checks that the Python package generates this text
    PATH=$WORK/package:$PATH "$BIN/atoll" generate "$@" >three.txt 2>&1 || fail "generate $*: $(<three.txt)"
    [[ $(<three.txt) == "taken: $*" ]] || fail "generate $*: atoll-generate was not called: $(<three.txt)"
}
taken --tokens 3 thrice --prompt 'the '
taken out --tokenizer tokenizer.json
cp -r out other
sed -i 's/"model_type": "gpt2"/"model_type": "mamba"/' other/config.json
taken other --seed 3
"$BIN/atoll" generate other --ids 1 >three.txt 2>&1 && fail "generate --ids takes an unknown model: $(<three.txt)"
PATH=$WORK/package:$PATH "$BIN/atoll" generate thrice --ids '116 104' --tokens 3 >three.txt || fail "generate --ids: $(<three.txt)"
grep -qE '^116 104( [0-9]+){3}$' three.txt || fail "generate --ids wrote: $(<three.txt)"
[[ $(tail -c 1 calm/summary.json | od -An -tx1) == ' 0a' ]] || fail "summary.json does not end with a newline"
[[ $(tail -c 1 data/meta.json | od -An -tx1) == ' 0a' ]] || fail "meta.json does not end with a newline"
code=0
"$BIN/atoll" export calm out 2>export.err || code=$?
[[ $code == 1 && $(<export.err) == 'atoll: out exists and is not empty'* ]] ||
    fail "export into a folder that is not empty: exit code $code: $(<export.err)"
echo "generate and export agree"

# The coordinator closes a silent connection after 30 s; most of them have passed by now.
timeout 40 cat <&"$stranger" >/dev/null || fail "a silent connection is still open"
kill -TERM "$coordinator"
finish "$coordinator" 60 75 "the coordinator"
echo "the coordinator closes a silent connection"
