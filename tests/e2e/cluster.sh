# A coordinator and workers as separate processes that the test kills and restarts: source after lib.sh.
# shellcheck shell=bash disable=SC2154 # pid and overrides are lib.sh's
declare -A node_pid=() node_starts=()

# node_start NAME: starts the coordinator (NAME "coordinator") or the worker NAME.
node_start() {
    local name=$1
    mkdir -p run
    if [[ $name == coordinator ]]; then
        start "coordinator.log" "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
    else
        start "$name.log" "$BIN/atoll-worker" --join run --dir "$name" --name "$name" --data.train="$WORK/data/train_*.bin" \
            --data.val="$WORK/data/val_*.bin" --train.threads=1
    fi
    node_pid[$name]=$pid
    node_starts[$name]=$((${node_starts[$name]:-0} + 1))
}

node_alive() { kill -0 "${node_pid[$1]}" 2>/dev/null; }

node_kill() { # NAME: false if the node had already ended
    local id=${node_pid[$1]}
    kill -KILL "$id" 2>/dev/null || return 1
    wait "$id" 2>/dev/null || true
    ended "$id"
}

# nodes_finish SECONDS: waits until every node ended with 0.
nodes_finish() {
    local name
    for name in "${!node_pid[@]}"; do finish "${node_pid[$name]}" "$1" 0 "$name"; done
}

# storm BEGIN DISTURB: BEGIN starts a run; DISTURB kills its nodes and restarts them. DISTURB returns false if a node
# ended before its kill: on a busy machine the run may finish first. In that case both functions run again, up to 5
# times.
storm() {
    local trial
    for trial in 1 2 3 4 5; do
        "$1"
        if "$2"; then return; fi
        nodes_finish 100
    done
    fail "$trial runs ended before the test killed their nodes"
}
