#!/usr/bin/env bash
# `atoll` around a real run: status while it goes on and after, stopping and continuing, no process left behind, the
# checkpoint as text and as a folder of its own.
# ctest: timeout=400 waits=1
source "$(dirname "$0")/lib.sh"

# However loaded the machine is: the run is held by stopping its workers while it is looked at, a run that was over before
# anybody looked is tried again with more rounds, and limits are for what hangs.
make_data
launch() { exec "$BIN/atoll" launch run.yaml --workers 2 --dir "$WORK/$1" "${overrides[@]}"; }
none_left() { # run: no process has its folder on the command line
    local folder command
    for folder in /proc/[0-9]*; do
        ! command_of "${folder#/proc/}" || [[ $command != *"--dir"[=\ ]"$WORK/$1"[/\ ]* ]] || return 1
    done
}
rounds_reach() { [[ $(json lines "$1/metrics.jsonl" round round 2>/dev/null | tail -n 1) -ge $2 ]]; }
orderly() { ! grep -q 'connection.*lost' "$1" || fail "it looks like an accident: $(grep -m 1 'connection.*lost' "$1")"; }

signal_workers() { # signal: to the workers of the launch started last
    local id command
    for id in $(descendants "$pid"); do
        ! command_of "$id" || [[ $command != */atoll-worker\ * ]] || kill "-$1" "$id" 2>/dev/null || true
    done
}

# held RUN ROUND: that round's checkpoint is written, and the run stays where it is; false when it is over already.
# Checkpoints are seen at once, lines of metrics once a second.
saved() { # run, round
    local newest
    read -r newest 2>/dev/null <"$1/checkpoints/latest" && ((10#${newest#round_} >= $2))
}
over_or_saved() { [[ -e $1/summary.json ]] || saved "$1" "$2"; }
held() {
    until_true 100 "round $2" over_or_saved "$1" "$2"
    signal_workers STOP
    [[ ! -e $1/summary.json ]] && ! saved "$1" $((last - 10))
}

look_at_it() { # while it goes on
    "$BIN/atoll" status stormy --json >now.json 2>status.err || fail "status: $(<status.err)"
    json keys now.json run method round workers || fail "status --json lacks something: $(<now.json)"
    grep -q 'worker-1' <<<"$("$BIN/atoll" status stormy)" || fail "status does not name the workers"
}

# Asked to stop: 75, all gone, and the same command continues to the same end. False: it was over too soon.
stopped() {
    start stormy.log launch stormy
    held stormy 10 || return 1
    look_at_it
    kill -TERM "$pid"
    signal_workers CONT
    finish "$pid" 100 75 "atoll launch after SIGTERM"
    none_left stormy || fail "SIGTERM left something behind"
    orderly stormy.log
    [[ ! -e stormy/address ]] || fail "an address is left where nobody listens"
    "$BIN/atoll" status stormy >out.txt 2>&1 && fail "status of a stopped run should say that it is stopped: $(<out.txt)"
    grep -q 'continue it with' out.txt || fail "status of a stopped run: $(<out.txt)"
}

# Killed outright: the children go too.
killed() {
    start stormy.log launch stormy
    held stormy 20 || return 1
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    ended "$pid"
    until_true 60 "the children to go" none_left stormy
}

for ((steps = 300; ; steps *= 4)); do
    last=$((steps / 5))
    write_config run.yaml train.max_steps=$steps checkpoint.every=10 train.eval_every=20
    start calm.log launch calm
    finish "$pid" 150 0 "atoll launch"
    orderly calm.log
    if grep -rh 'names no configuration key' calm.log calm/logs; then fail "a variable of launch's own is taken for a key"; fi
    stopped && killed && break
    signal_workers CONT
    finish "$pid" 100 0 "a run that was over too soon"
    ((steps < 10000)) || fail "a run of $steps steps is over before anybody looks"
    rm -rf calm stormy ./*.log
done
start stormy.log launch stormy
finish "$pid" 150 0 "atoll launch, continued"
calm=$(json get calm/summary.json theta_hash)
[[ $(json get stormy/summary.json theta_hash) == "$calm" ]] || fail "theta differs after stopping and killing"
echo "stopped, killed and continued: the same theta $calm"

grep -q "^theta_hash *$calm" <<<"$("$BIN/atoll" status calm)" || fail "status of a finished run: $("$BIN/atoll" status calm)"

# Stopped with two workers and continued with one: the line at once says who is missing and for how long.
write_config run.yaml train.max_steps=10000000
start fewer.log launch fewer
until_true 100 "round 3" rounds_reach fewer 3
kill -TERM "$pid"
finish "$pid" 100 75 "atoll launch after SIGTERM"
start fewer.log "$BIN/atoll" launch run.yaml --workers 1 --dir fewer "${overrides[@]}" --coordinator.min_workers=2 \
    --coordinator.evict_after_s=2
until_true 60 "the name of the missing worker" grep -q 'waiting up to 2 s .* for .*worker-1' fewer.log
round=$(json lines fewer/metrics.jsonl round round | tail -n 1) || true # of its last line half may be written
until_true 100 "rounds without it" rounds_reach fewer $((round + 3))
kill -TERM "$pid"
finish "$pid" 100 75 "atoll launch of one worker after SIGTERM"
echo "continued with fewer workers: it says whom it waits for"

# A worker of a run that is over has nothing to do.
start late.log "$BIN/atoll-worker" --join calm --dir late --name late --data.train="$WORK/data/train_*.bin"
finish "$pid" 60 0 "a worker of a run that is over"
grep -q 'the run in calm is complete' late.log || fail "a worker of a run that is over said: $(<late.log)"
[[ ! -e late ]] || fail "it leaves a folder"

# A worker that is started before its coordinator waits for the folder to appear.
start early.log "$BIN/atoll-worker" --join later --dir early --name early --data.train="$WORK/data/train_*.bin"
early=$pid
until_true 60 "the line that says what it waits for" grep -q 'waiting up to .*later/address.*the folder does not exist' early.log
start later.log "$BIN/atoll-coordinator" run.yaml --dir later --train.max_steps=20
finish "$pid" 100 0 "a coordinator started after its worker"
finish "$early" 60 0 "a worker started before its coordinator"
start asked.log "$BIN/atoll-worker" --join never --dir asked --name asked --data.train="$WORK/data/train_*.bin"
until_true 60 "the line that says what it waits for" grep -q 'waiting up to .*never/address' asked.log
kill -TERM "$pid" "$pid" # one request, as timeout(1) and service managers make it
finish "$pid" 60 75 "a worker asked to stop while it waits"
start over.log "$BIN/atoll-worker" --join over --dir asked --name asked --data.train="$WORK/data/train_*.bin"
until_true 60 "the line that says what it waits for" grep -q 'waiting up to .*over/address' over.log
mkdir over
cp calm/summary.json over/
finish "$pid" 30 0 "a worker whose run ends while it waits for an address"
echo "a worker waits for the folder of its coordinator"

# Where nobody answers any more a worker waits on, or for as long as it was told to.
start alone.log "$BIN/atoll-worker" --join tcp://127.0.0.1:9 --max-wait 5 --dir alone --data.train="$WORK/data/train_*.bin"
finish "$pid" 60 75 "a worker whose coordinator never answers"
grep -qE 'the coordinator has not answered for [5-9] s \(--max-wait\); start it again' alone.log ||
    fail "a worker that gives up said: $(<alone.log)"

# A folder that somebody serves by hand is left alone, the address in it above all.
few_files() { # connections of strangers must not take what the journal needs
    ulimit -Sn 256
    exec "$BIN/atoll-coordinator" run.yaml --dir served
}
start served.log few_files
coordinator=$pid
until_true 60 "its address" test -s served/address
address=$(<served/address)
read -r soft hard <<<"$(sed -n 's/^Max open files//p' "/proc/$coordinator/limits")"
[[ $soft == "${hard%% *}" ]] || fail "the coordinator may open $soft files, of ${hard%% *}"
exec {stranger}<>"/dev/tcp/127.0.0.1/${address##*:}"
start refused.log "$BIN/atoll" launch run.yaml --workers 1 --dir served "${overrides[@]}"
finish "$pid" 60 1 "atoll launch in a folder that is served"
[[ $(<refused.log) == 'atoll: another coordinator serves served: '* ]] || fail "refused: $(<refused.log)"
[[ $(<served/address) == "$address" ]] || fail "the address of the other coordinator is gone"
echo "a folder that is served is refused"

# A run that starts from a checkpoint goes on when the same command is given again, also when that is no longer the newest.
latest=$(<calm/checkpoints/latest)
cp -r "calm/checkpoints/$latest" calm/checkpoints/newer
# That has a tokenizer and tokens of its own, which the run's checkpoints have, too, when it is gone.
source=calm/checkpoints/round_source
cp -r "calm/checkpoints/$latest" "$source"
sed -i 's/"bos_token_id": 0/"bos_token_id": null/; s/"eos_token_id": 0/"eos_token_id": [7, 9]/' "$source/config.json"
echo '{"model": {"type": "BPE"}}' >"$source/tokenizer.json"
echo '{"temperature": 0.5}' >"$source/generation_config.json"
echo round_source >calm/checkpoints/latest
for more in 3 4; do
    want=$more
    if [[ -e from/metrics.jsonl ]]; then want=$((want + $(json lines from/metrics.jsonl round round | tail -n 1))); fi
    start from.log "$BIN/atoll" launch run.yaml --workers 1 --dir from --resume calm/ "${overrides[@]}"
    until_true 60 "round $want from a checkpoint" rounds_reach from "$want"
    kill -TERM "$pid"
    finish "$pid" 100 75 "atoll launch --resume after SIGTERM"
    echo newer >calm/checkpoints/latest
    rm -rf "$source"
done
"$BIN/atoll" export from from-out >export.txt || fail "export: $(<export.txt)"
grep -q BPE from-out/tokenizer.json || fail "no tokenizer: $(ls from-out)"
grep -q 0.5 from-out/generation_config.json || fail "no generation_config.json: $(ls from-out)"
[[ $(tr -d ' \n' <from-out/config.json) == *'"bos_token_id":null,"eos_token_id":[7,9]'* ]] || fail "tokens: $(<from-out/config.json)"
grep -q 'init_from: "calm/checkpoints/round' from/config.yaml || fail "it starts from: $(grep init_from from/config.yaml)"
code=0
"$BIN/atoll" launch run.yaml --workers 1 --dir from --resume stormy "${overrides[@]}" 2>from.err || code=$?
[[ $code == 1 && $(<from.err) == *'from already holds a run and --resume is stormy'* ]] || fail "another --resume: $(<from.err)"
echo "$latest" >calm/checkpoints/latest
rm -r calm/checkpoints/newer
echo "a run from a checkpoint continues"

# A first try whose model could not be read is no run yet: another one may take its place, and nothing but that one does.
cp -r "calm/checkpoints/$latest" torn
truncate -s -4 torn/model.safetensors
code=0
"$BIN/atoll" launch run.yaml --workers 1 --dir tried --resume torn "${overrides[@]}" 2>tried.err || code=$?
[[ $code == 2 && $(<tried.err) == *'torn/model.safetensors'* ]] || fail "a torn model: exit $code: $(<tried.err)"
start tried.log "$BIN/atoll" launch run.yaml --workers 1 --dir tried --resume calm "${overrides[@]}"
until_true 60 "round 1 from another checkpoint" rounds_reach tried 1
kill -TERM "$pid"
finish "$pid" 100 75 "atoll launch --resume after SIGTERM"
grep -q 'init_from: "calm/checkpoints/round' tried/config.yaml || fail "it starts from: $(grep init_from tried/config.yaml)"
echo "a run that could not begin begins from another checkpoint"

# The newest checkpoint as text and as a folder.
"$BIN/atoll" generate calm --tokens 40 --seed 3 --prompt 'the ' >one.txt
"$BIN/atoll" export calm out >export.txt || fail "export: $(<export.txt)"
"$BIN/atoll" generate out --tokens 40 --seed 3 --prompt 'the ' >two.txt
cmp -s one.txt two.txt || fail "the exported model writes other text"
[[ $(head -c 4 one.txt) == 'the ' && $(wc -c <one.txt) -gt 40 ]] || fail "generate wrote: $(<one.txt)"
cmp "calm/checkpoints/$(<calm/checkpoints/latest)/model.safetensors" out/model.safetensors || fail "export changed the model"
"$BIN/atoll" export out/ twice/ >export.txt || fail "export of an export: $(<export.txt)"
grep -q '^twice: .* from out$' export.txt || fail "export names its folders: $(<export.txt)"
sed -i 's/"float32"/"bfloat16"/' twice/config.json
"$BIN/atoll" export twice thrice >export.txt || fail "export of half precision: $(<export.txt)"
grep -q '"torch_dtype": "float32"' thrice/config.json || fail "fp32 tensors under another type: $(<thrice/config.json)"
echo '{"model": {}}' >thrice/tokenizer.json
"$BIN/atoll" generate thrice --prompt 'the ' >three.txt 2>&1 && fail "generate takes bytes for a tokenizer's tokens: $(<three.txt)"
grep -q "^atoll: .*--ids '1 2 3'" three.txt || fail "generate with a tokenizer: $(<three.txt)"
"$BIN/atoll" generate thrice --ids '116 104' --tokens 3 >three.txt || fail "generate --ids: $(<three.txt)"
grep -qE '^116 104( [0-9]+){3}$' three.txt || fail "generate --ids wrote: $(<three.txt)"
[[ $(tail -c 1 calm/summary.json | od -An -tx1) == ' 0a' ]] || fail "summary.json does not end with a line end"
[[ $(tail -c 1 data/meta.json | od -An -tx1) == ' 0a' ]] || fail "nor does meta.json"
code=0
"$BIN/atoll" export calm out 2>export.err || code=$?
[[ $code == 1 && $(<export.err) == 'atoll: out exists and is not empty'* ]] || fail "export over a folder: $code $(<export.err)"
echo "generate and export agree"

# A connection that says nothing is cut off after ten seconds, most of which have gone by here.
timeout 14 cat <&"$stranger" >/dev/null || fail "a stranger keeps its connection: $?"
kill -TERM "$coordinator"
finish "$coordinator" 60 75 "the coordinator"
echo "a connection that says nothing is cut off"
