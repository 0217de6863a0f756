#!/usr/bin/env bash
# kill -9 at random moments of one run, half of the kills of the coordinator, half of a worker: the run ends at the theta
# of the undisturbed run. Environment: SETTINGS="key=value ..." adds settings, WORKERS their number, ROUNDS the length,
# KILLS the number of kills, SOON how many of them come within 50 ms of a restart, SEED their order.
# ctest: timeout=300 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

rounds=${ROUNDS:-126}
workers=${WORKERS:-2}
make_data
# shellcheck disable=SC2086 # split into settings
write_config run.yaml train.max_steps=$((rounds * 20)) train.sync_every=20 train.batch_size=8 codec.up=int8:64 codec.down=int8:64 coordinator.min_workers="$workers" \
    coordinator.evict_after_s=1000 train.eval_every=20 checkpoint.every=7 ${SETTINGS:-}
seed=${SEED:-$(date +%N)}
RANDOM=$((10#$seed % 32768))
echo "seed $((10#$seed % 32768)) (SEED=n repeats the order of kills)"

run_once() {
    rm -rf run worker-? coordinator.log
    node_start coordinator
    for ((i = 0; i < workers; i++)); do node_start "worker-$i"; done
}

began=$(now_ms)
run_once
nodes_finish 120
calm=$(json get run/summary.json theta_hash)
echo "undisturbed: theta $calm in $(seconds $(($(now_ms) - began))) s"
mv run calm

# The k-th kill comes a random delay after k / (kills + 3) of the rounds, so that all kills fall into the run on any
# machine.
kills_all=${KILLS:-20}
soon=${SOON:-0}
victims=()
for ((i = 0; i < kills_all; i++)); do
    if ((i % 2)); then victims+=(coordinator); else victims+=("worker-$((i / 2 % workers))"); fi
done
for ((i = ${#victims[@]} - 1; i > 0; i--)); do
    j=$((RANDOM % (i + 1)))
    swap=${victims[i]} && victims[i]=${victims[j]} && victims[j]=$swap
done

began=$(now_ms)
# kill_soon NAME: kills the node again within 50 ms of its restart.
kill_soon() {
    sleep "0.0$(printf '%02d' $((RANDOM % 50)))"
    node_kill "$1" || return 1
    node_start "$1"
    kills=$((kills + 1))
}

kill_all() {
    local victim left=$soon
    kills=0
    for victim in "${victims[@]}"; do
        ((kills < kills_all)) || return 0
        until_true 60 "round $(((kills + 1) * rounds / (kills_all + 3)))" rounds_reach $(((kills + 1) * rounds / (kills_all + 3)))
        sleep "0.$(printf '%03d' $((RANDOM % 100)))"
        node_kill "$victim" || return 1
        sleep "0.$(printf '%03d' $((RANDOM % 300)))"
        node_start "$victim"
        kills=$((kills + 1))
        if ((left > 0)); then
            kill_soon "$victim" || return 1
            left=$((left - 1))
        fi
    done
}
storm run_once kill_all
nodes_finish 120
stormy=$(json get run/summary.json theta_hash)
echo "after $kills kills: theta $stormy in $(seconds $(($(now_ms) - began))) s"
[[ $stormy == "$calm" ]] || fail "theta is $stormy after the kills, expected $calm"
[[ $(json get run/summary.json tokens) == "$(json get calm/summary.json tokens)" ]] ||
    fail "the number of tokens differs"
# summary.json counts a restart when the new coordinator takes over the run. A coordinator that listens has taken over;
# a coordinator that was killed earlier may not count.
restarts=$(json get run/summary.json restarts)
listened=$(grep -c '^listening on' coordinator.log)
((restarts >= listened - 1 && restarts <= kills_all / 2 + soon && listened > kills_all / 4)) ||
    fail "summary.json counts $restarts restarts, but $listened coordinators listened"
json lines run/metrics.jsonl >/dev/null # every line is complete
echo "$kills kills, $soon of them within 50 ms of a restart: same theta as the undisturbed run"
# Once more with three workers, whose deltas are compared, and with fragments that have sync points of their own, while
# training goes on.
if [[ -z ${SETTINGS:-} ]]; then
    cd "$HERE/../.."
    WORKERS=3 SETTINGS="train.method=streaming train.overlap=6 train.fragments=2" bash "$HERE/test_e2e_kill.sh"
fi
