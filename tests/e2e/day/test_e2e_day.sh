#!/usr/bin/env bash
# A day of an operator: four boxes (hq, kitchen, office, attic) in four network namespaces, with the commands of
# docs/operate.md and those that the programs print. Prints each command with its time, and what it said.
#   start, probe, kill -9, a late worker at 1 Mbit/s, stop, continue by the printed line, change, back up, move, prolong
# Everything happens in namespaces of its own, which end with this process, also when it is killed. Needs root.
# ctest: labels=long timeout=600 waits=1
inside() { [[ ${DAY_INSIDE:-} ]]; }
if ! inside; then
    if [[ $(id -u) != 0 ]] || ! command -v tc ip unshare >/dev/null || ! unshare --net --mount --pid --fork true; then
        echo "network namespaces need root, iproute2 and util-linux"
        exit 77
    fi
    DAY_INSIDE=1 exec unshare --net --mount --pid --fork --kill-child --mount-proc bash "$0"
fi
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

export PATH=$BIN:$PATH
declare -A address=([hq]=10.99.0.1 [kitchen]=10.99.0.2 [office]=10.99.0.3 [attic]=10.99.0.4) node=()
day=$(now_ms)

# --- boxes ------------------------------------------------------------------------------------------------------------

make_net() {
    local box
    mkdir -p /run/netns
    mount -t tmpfs none /run/netns
    ip link set lo up
    ip link add br0 type bridge forward_delay 0
    ip link set br0 up
    for box in hq kitchen office attic; do
        mkdir "$box"
        ln -s "$WORK/data" "$box/data"
        ip netns add "$box"
        ip link add "$box" type veth peer name eth0 netns "$box"
        ip link set "$box" master br0 up
        ip -n "$box" link set lo up
        ip -n "$box" addr add "${address[$box]}/24" dev eth0
        ip -n "$box" link set eth0 up
    done
}

shape() { # BOX RATE: both directions of its link
    tc qdisc replace dev "$1" root tbf rate "$2" burst 16kb latency 200ms
    tc -n "$1" qdisc replace dev eth0 root tbf rate "$2" burst 16kb latency 200ms
}

told() { printf '%7s s  %-8s' "$(seconds $(($(now_ms) - day)))" "$1"; }

# on BOX COMMAND: runs a command of the box to its end; its last lines go into the log of the day, all into $said.
on() {
    local box=$1 began code=0
    began=$(now_ms)
    told "$box" && printf '$ %s\n' "$2"
    said=$(cd "$box" && ip netns exec "$box" bash -c "$2" 2>&1) || code=$?
    ((code == ${expected:-0})) || fail "$box: $2: code $code: $said"
    tail -n "${lines:-1}" <<<"$said" | sed 's/^/                      /' | cut -c 1-160
    printf '                      (%s s)\n' "$(seconds $(($(now_ms) - began)))"
}

# begin BOX PROCESS COMMAND: starts a process of the box.
begin() {
    told "$1" && printf '$ %s &\n' "$3"
    start "$1-$2.log" ip netns exec "$1" bash -c "cd $1 && exec $3"
    node[$1-$2]=$pid
}

# stop BOX PROCESS SIGNAL CODE
stop() {
    local began
    began=$(now_ms)
    told "$1" && printf 'SIG%s to %s' "$3" "$2"
    kill -"$3" "${node[$1-$2]}"
    finish "${node[$1-$2]}" 30 "$4" "$2 on $1"
    printf ' (%s s): %s\n' "$(seconds $(($(now_ms) - began)))" "$(tail -n 1 "$1-$2.log" | cut -c 25-)"
}

# --- the run ----------------------------------------------------------------------------------------------------------

run=hq/runs/joint
round() { # prints the last finished round
    local last
    last=$(grep '"event":"round"' $run/metrics.jsonl 2>/dev/null | tail -n 1) || true
    if [[ $last =~ \"round\":([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi
}
reaches() { (($(round) >= $1)); }
speed() { # WHEN: prints rounds per second over ten seconds
    local from began now
    from=$(round) began=$(now_ms)
    sleep 10
    now=$(round)
    rate[$1]=$(awk -v n=$((now - from)) -v ms=$(($(now_ms) - began)) 'BEGIN { printf "%.2f", 1000 * n / ms }')
    told "" && echo "kitchen and office: ${rate[$1]} rounds per second $1"
}
worker() { # BOX
    begin "$1" worker "atoll-worker --join join --name $1 --data.train='data/train_*.bin'"
}
give_line() { # BOX...: copies the join line, as tail | ssh does
    local box
    for box; do
        told hq && echo "\$ tail -n 1 runs/joint/address | ssh $box 'umask 077; cat > join'"
        (umask 077 && tail -n 1 $run/address >"$box/join")
    done
}
listens() { test -s $run/address; }

declare -A rate=()
make_net
shape kitchen 40mbit
shape office 40mbit
make_data
write_config run.yaml train.max_steps=7600 train.sync_every=40 model.n_embd=96 model.n_layer=2 train.eval_every=0 \
    codec.up=fp32 codec.down=fp32 checkpoint.every=50 inner.learning_rate=1e-3 inner.schedule=constant

echo '--- start'
begin hq coordinator "atoll-coordinator ../run.yaml --dir runs/joint --coordinator.listen=tcp://${address[hq]}:29600 \
--coordinator.min_workers=2 ${overrides[*]}"
until_true 20 "the coordinator's address" listens
give_line kitchen office attic
lines=4 on kitchen "atoll probe join"
worker kitchen
worker office
until_true 60 "ten rounds" reaches 10
lines=9 on kitchen "atoll status join"

echo '--- kill -9'
kill -KILL "${node[kitchen-worker]}"
wait "${node[kitchen-worker]}" 2>/dev/null || true
ended "${node[kitchen-worker]}"
told kitchen && echo "kill -KILL the worker, at round $(round)"
sleep 2
worker kitchen
at=$(round)
until_true 60 "rounds after the kill" reaches $((at + 5))
told kitchen && echo "round $(round); its log: $(grep -m 1 'saved state' kitchen-worker.log | cut -c 25-)"

echo '--- a late worker at 1 Mbit/s'
speed before
shape attic 1mbit
worker attic
until_true 90 "the late worker's first words" grep -q 'this link cannot keep up' attic-worker.log
told attic && grep -m 1 'this link cannot keep up' attic-worker.log | cut -c 25-
speed during
lines=9 on attic "atoll status join"
stop attic worker INT 75
tc qdisc del dev attic root && tc -n attic qdisc del dev eth0 root
speed after

echo '--- stop, and continue by the printed line'
stop hq coordinator INT 75
expected=1 lines=9 on hq "atoll status runs/joint"
line=$(grep -oE 'atoll-coordinator --dir [^ ]+' <<<"$said" | sed -n 1p)
[[ $line ]] || fail "status prints no line to continue: $said"
at=$(round)
begin hq coordinator "$line"
until_true 60 "rounds after the stop" reaches $((at + 5))
lines=2 on hq "atoll generate runs/joint --prompt 'the old ' --tokens 20"

echo '--- change a rate'
stop hq coordinator TERM 75
at=$(round)
begin hq coordinator "atoll-coordinator --dir runs/joint --change inner.learning_rate=5e-4"
until_true 60 "rounds after the change" reaches $((at + 5))
grep '"event":"change"' $run/metrics.jsonl | tail -n 1
grep -q '"lr":0.0005' <(tail -n 40 $run/metrics.jsonl) || fail "no step has the new rate"

echo '--- back up, and move the coordinator to the office; its workers come back a minute later'
stop hq coordinator TERM 75
stop kitchen worker INT 75
stop office worker INT 75
on hq "cp -a runs/joint backup"
on hq "mkdir -p ../office/runs && cp -a runs/joint ../office/runs/ && mv runs/joint runs/moved"
run=office/runs/joint
begin office coordinator "atoll-coordinator --dir runs/joint --coordinator.listen=tcp://${address[office]}:29600"
until_true 20 "the coordinator's address" listens
give_line kitchen office
sleep 65
at=$(round)
worker kitchen
worker office
until_true 60 "rounds after the move" reaches $((at + 5))
! grep -q 'evicted' office-coordinator.log || fail "a worker lost its place: $(grep evicted office-coordinator.log)"
on office "atoll status runs/joint --json | grep -o '\"round\":[0-9]*' | sed -n 1p"

echo '--- prolong: before the end, and after it'
stop office coordinator TERM 75
expected=2 on office "atoll-coordinator --dir runs/joint --change train.max_steps=100"
begin office coordinator "atoll-coordinator --dir runs/joint --change train.max_steps=7800"
finish "${node[office-coordinator]}" 300 0 "the run of 7800 steps"
for box in kitchen office; do finish "${node[$box-worker]}" 30 0 "the worker on $box"; done
told office && tail -n 1 office-coordinator.log
begin office coordinator "atoll-coordinator --dir runs/joint --change train.max_steps=8000"
until_true 20 "the coordinator's address" listens
worker kitchen
worker office
finish "${node[office-coordinator]}" 60 0 "the run of 8000 steps"
told office && tail -n 1 office-coordinator.log
for box in kitchen office; do finish "${node[$box-worker]}" 30 0 "the worker on $box"; done
lines=3 on office "atoll status runs/joint"
(($(json get $run/summary.json steps) == 8000)) || fail "the run has $(json get $run/summary.json steps) steps"

echo "rounds per second: before ${rate[before]}, during ${rate[during]}, after ${rate[after]}"
awk -v b="${rate[before]}" -v d="${rate[during]}" 'BEGIN { exit !(d > b / 2) }' || fail "the late worker slows the others"
