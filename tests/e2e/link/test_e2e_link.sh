#!/usr/bin/env bash
# atoll launch --link: each worker behind its own relay.
# - The same parameters with and without links, bit for bit, for every method with a barrier.
# - The join line stays secret; a relay that dies is started again; a stopped run continues; wrong links are refused.
# ctest: timeout=300 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
write_config run.yaml

launch() { # FOLDER [SETTINGS...]
    local folder=$1
    shift
    "$BIN/atoll" launch run.yaml --workers 2 --dir "$folder" --quiet "$@" >"$folder.log" 2>&1 ||
        fail "$folder: exit code $?: $(tail -n 3 "$folder.log")"
}
hash_of() { json get "$1/summary.json" theta_hash; }

links="20mbit,rtt=4ms;up=5mbit,down=50mbit,rtt=20ms,jitter=2ms,outage=400ms+300ms"
methods=(
    "ddp --train.method=ddp --train.max_steps=20"
    "local-sgd --train.method=local-sgd"
    "diloco --codec.up=int8:256 --codec.down=int8:256"
    "streaming --train.method=streaming --train.overlap=2"
    "sparse --train.method=local-sgd --codec.up=topk:64/4096+sign --codec.down=auto"
)
for line in "${methods[@]}"; do
    read -ra words <<<"$line"
    launch "${words[0]}-near" "${words[@]:1}"
    launch "${words[0]}-far" "${words[@]:1}" --link "$links"
    near=$(hash_of "${words[0]}-near") far=$(hash_of "${words[0]}-far")
    [[ $near && $near == "$far" ]] || fail "${words[0]}: theta is $near without and $far with links"
    [[ ! -e ${words[0]}-far/links ]] || fail "${words[0]}: the join files are still there"
done
grep -q 'worker-1 joins over an emulated link: up=5mbit,down=50mbit,rtt=20ms,jitter=2ms,outage=0.4s+0.3s' ddp-far.log ||
    fail "launch does not tell the links: $(head -n 5 ddp-far.log)"

# A link is as slow as it says: the bytes of worker-0 at 20 Mbit/s are a lower bound of the run's time.
bytes=$(sed -nE 's/.*bytes up ([0-9]+),.*/\1/p' ddp-far/logs/relay-0.log)
took=$(json get ddp-far/summary.json wall_s)
awk -v bytes="$bytes" -v s="$took" 'BEGIN { exit !(bytes > 100000 && s > bytes * 8 / 20e6) }' ||
    fail "$bytes bytes in $took s over 20 Mbit/s"

# One link for all. Relays and the coordinator are killed: the workers go on over
# the next relays.
start killed.log "$BIN/atoll" launch run.yaml --workers 2 --dir killed --quiet --link 1mbit,rtt=10ms
launched=$pid
until_true 30 "the second round" rounds_reach 2 killed
[[ $(stat -c %a killed/links/worker-0.join killed/links/worker-1.join) == $'600\n600' ]] ||
    fail "other users can read the join files: $(ls -l killed/links)"
secret=$(sed -nE '1s|tcp://[^/]*/[^/]*/||p' killed/address)
((${#secret} == 64)) || fail "no secret in killed/address"
relays=() coordinator=''
for id in $(descendants "$launched"); do
    command_of "$id" || continue
    [[ $command != *"$secret"* ]] || fail "the secret is in the list of processes: $command"
    [[ $command != *"relay 1mbit,rtt=10ms "* ]] || relays+=("$id")
    [[ $command != *"/atoll-coordinator "* ]] || coordinator=$id
done
((${#relays[@]} == 2)) || fail "${#relays[@]} relays for 2 workers"
port=$(sed -nE 's|tcp://([^/]*)/.*|\1|p' killed/links/worker-0.join)
kill -KILL "${relays[0]}"
kill -TERM "${relays[1]}"
sleep 1
kill -KILL "$coordinator"
finish "$launched" 60 0 "launch with killed processes"
launch plain
[[ $(hash_of killed) == "$(hash_of plain)" ]] || fail "killed processes change theta"
grep -q 'launch: relay-0 was killed by signal 9 (Killed): restarting in' killed.log || fail "$(grep relay killed.log)"
grep -q 'launch: relay-1 exited with code 0: restarting in' killed.log || fail "$(grep relay killed.log)"
(($(grep -c "started: $port " killed/logs/relay-0.log) == 2)) || fail "the relay has another port: $(<killed/logs/relay-0.log)"
(($(json get killed/summary.json restarts) == 1)) || fail "restarts of relays count as restarts of the run"

# Stop and continue.
start stopped.log "$BIN/atoll" launch run.yaml --workers 2 --dir stopped --quiet --link 1mbit,rtt=10ms
launched=$pid
until_true 30 "the first round" rounds_reach 1 stopped
kill -INT "$launched"
finish "$launched" 30 75 "launch after Ctrl-C"
[[ ! -e stopped/links ]] || fail "the join files are still there"
start stopped.log "$BIN/atoll" launch run.yaml --workers 2 --dir stopped --quiet --link 1mbit,rtt=10ms
finish "$pid" 60 0 "the continued launch"
[[ $(hash_of stopped) == "$(hash_of plain)" ]] || fail "a stop changes theta"

# Mistakes: one line, exit code 2, no folder.
refused() { # LINK TEXT
    local code=0
    "$BIN/atoll" launch run.yaml --workers 2 --dir none --link "$1" >none.log 2>&1 || code=$?
    [[ $code == 2 && $(wc -l <none.log) == 1 && $(<none.log) == *"$2"* && ! -e none ]] ||
        fail "link $1: code $code, $(<none.log)"
}
refused '1mbit;1mbit;1mbit' 'atoll: --link: 3 links for 2 workers'
refused '100mbps' 'atoll: --link: "100mbps" of the link is no rate'
echo "links change no bit of theta: ${methods[*]%% *}"
