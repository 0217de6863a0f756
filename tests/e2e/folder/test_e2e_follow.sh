#!/usr/bin/env bash
# `atoll follow`: the newest model as a folder that is always whole; over a restart of the coordinator, from a run folder,
# for each way down, and with refusals in one line.
# ctest: timeout=300 waits=1
source tests/e2e/lib.sh || exit 1

make_data
launch() { exec "$BIN/atoll" launch run.yaml --workers 2 --dir "$WORK/$1" "${overrides[@]}"; }
label() { json get "$1/atoll.json" "$2"; }

# one_line PATTERN CODE ARGUMENTS...: atoll follow fails with CODE and one line.
one_line() {
    local pattern=$1 want=$2 code=0
    shift 2
    "$BIN/atoll" follow "$@" >refused.txt 2>&1 || code=$?
    # shellcheck disable=SC2053 # the right side is a pattern
    [[ $code == "$want" && $(wc -l <refused.txt) == 1 && $(<refused.txt) == $pattern ]] ||
        fail "follow $*: exit code $code, expected $want and $pattern: $(<refused.txt)"
}

# A reader loads the folder again and again: it never sees a part of one, and the files belong together. Only after two
# newer models its folder may be gone.
read_folder() {
    cat "$1/atoll.json" "$1/config.json" "$1/model.safetensors" >/dev/null || return 1
    cp "$1/atoll.json" "$1/model.safetensors" read/ || return 1
    [[ $(json theta read/model.safetensors) == $(label read theta_hash) ]]
}
read_all() {
    local seen=0 folder newest
    while [[ ! -e stop ]]; do
        [[ -e out ]] || continue
        folder=$(readlink -f out)
        if ! read_folder "$folder" 2>read.txt; then
            newest=$(readlink -f out)
            [[ ! -e $folder && $newest != "$folder" ]] || return 1
            continue
        fi
        seen=$((seen + 1))
        sleep 0.05
    done
    echo "$seen"
}

# --- over a connection, with a restart of the coordinator --------------------------------------------------------------
write_config run.yaml train.max_steps=4000
mkdir read
start run.log launch run
launched=$pid
until_true 60 "a join line" test -s run/address
(umask 077 && tail -n 1 run/address >"./join")
start follow.log "$BIN/atoll" follow join out
follower=$pid
read_all >seen.txt &
reader=$!
started+=("$reader")
until_true 60 "a first model" grep -q '^out: round ' follow.log
for id in $(descendants "$launched"); do
    if command_of "$id" && [[ $command == *atoll-coordinator* ]]; then kill -KILL "$id"; fi
done
lines=$(grep -c '^out: round ' follow.log)
more() { (($(grep -c '^out: round ' follow.log) > lines + 1)); }
until_true 60 "models after the restart of the coordinator" more
finish "$launched" 120 0 "atoll launch"
finish "$follower" 30 0 "atoll follow"
touch stop
wait "$reader" || fail "a reader saw a part of a folder"
ended "$reader"
(($(<seen.txt) > 3)) || fail "the reader read $(<seen.txt) folders"
hash=$(json get run/summary.json theta_hash)
[[ $(label out theta_hash) == "$hash" ]] || fail "OUT has another hash than the run: $(<out/atoll.json)"
cmp out/model.safetensors run/checkpoints/latest/model.safetensors || fail "OUT differs from the last checkpoint"
cmp out/config.json run/checkpoints/latest/config.json || fail "config.json differs"
folders=(out.*)
((${#folders[@]} <= 2)) || fail "older folders stay: ${folders[*]}"
echo "followed over a restart of the coordinator; $(<seen.txt) reads were whole"

# --- a run folder: the same model; another run is refused --------------------------------------------------------------
"$BIN/atoll" follow run local >local.txt || fail "follow of a finished run: $(<local.txt)"
[[ $(<local.txt) == "local: round 800 of e2e, theta_hash $hash" ]] || fail "follow of a finished run says $(<local.txt)"
cmp local/model.safetensors out/model.safetensors || fail "the folder gives another model"
"$BIN/atoll" follow run out >local.txt || fail "a second call: $(<local.txt)"
[[ ! -s local.txt ]] || fail "a second call writes again: $(<local.txt)"
"$BIN/atoll" generate out --tokens 5 >/dev/null || fail "generate does not read OUT"
mkdir other
one_line 'atoll: other exists, and atoll follow did not make it: choose a new name' 1 run other
one_line 'atoll: run folder nowhere does not exist*' 1 nowhere new
one_line 'atoll: --every is 0: give a number of rounds' 2 run new --every 0

# --- a worker is excluded from the last round, which has other parameters then ------------------------------------------
cp -a local served
cp -a local.round_000800 served.round_000800
ln -sfn served.round_000800 served
"$BIN/atoll" exclude run worker-1 --since 800 >exclude.txt || fail "exclude: $(<exclude.txt)"
merged=$(sed -n 's/^merged .* theta //p' exclude.txt)
[[ $merged && $merged != "$hash" ]] || fail "exclude changes nothing: $(<exclude.txt)"
replaced() { [[ $(label "$1" theta_hash) == "$merged" ]]; }
start local.log "$BIN/atoll" follow run local
until_true 20 "the new model, from the folder" replaced local
kill -TERM "$pid"
finish "$pid" 20 75 "atoll follow"
start coordinator.log "$BIN/atoll-coordinator" --dir run
coordinator=$pid
until_true 20 "a coordinator" grep -q 'listening on' coordinator.log
start served.log "$BIN/atoll" follow run served
until_true 20 "the new model, from the coordinator" replaced served
kill -TERM "$pid"
finish "$pid" 20 75 "atoll follow"
kill -TERM "$coordinator"
finish "$coordinator" 20 75 "atoll-coordinator"
for folder in local served; do
    [[ $(json theta "$folder/model.safetensors") == "$merged" ]] || fail "$folder does not hold what it says"
done
echo "a round that was merged again is written again"

# --- interrupted: nothing stays, and the next call continues -----------------------------------------------------------
write_config run.yaml train.max_steps=1000000 codec.up=int8 codec.down=int8
start second.log launch second
launched=$pid
until_true 60 "round 8" rounds_reach 8 second
one_line "atoll: out holds a model of another run, e2e (round 800): choose a new name" 1 second out
start again.log "$BIN/atoll" follow second fresh --every 3
until_true 60 "a first model" grep -q '^fresh: round ' again.log
kill -TERM "$pid"
finish "$pid" 20 75 "atoll follow after SIGTERM"
grep -q 'stopped: fresh holds round [0-9]*, and the same command continues' again.log || fail "follow says: $(<again.log)"
[[ ! $(find . -maxdepth 1 -name '*tmp*') ]] || fail "temporary files stay: $(ls)"
before=$(label fresh round)
start again.log "$BIN/atoll" follow second fresh --every 3
follower=$pid
newer() { (($(label fresh round) >= before + 3)); }
until_true 60 "a newer model" newer
kill -TERM "$launched"
finish "$launched" 60 75 "atoll launch after SIGTERM"
until_true 20 "a line about the stopped coordinator" grep -q 'waiting for the coordinator' again.log
kill -TERM "$follower"
finish "$follower" 20 75 "atoll follow without a coordinator"
echo "interrupted and continued"

# --- relayed deltas: OUT follows the checkpoints -----------------------------------------------------------------------
write_config run.yaml train.max_steps=600 codec.up=topk:64/1024 codec.down=relay outer.optimizer=sgd checkpoint.every=10
start relay.log launch relay
launched=$pid
until_true 60 "a run" test -s relay/address
"$BIN/atoll" follow relay relayed >relayed.txt 2>&1 || fail "follow of relayed deltas: $(<relayed.txt)"
finish "$launched" 60 0 "atoll launch"
[[ $(label relayed theta_hash) == $(json get relay/summary.json theta_hash) ]] || fail "relayed: $(<relayed.txt)"
echo "relayed deltas: the last checkpoint"
