#!/usr/bin/env bash
# Faults in a ddp run, where workers save no state per step:
# - Lossless codec: kill -9 of a worker does not change theta.
# - Lossy codec: SIGTERM of all nodes and kill -9 of the coordinator do not change theta.
# - Lossy codec: kill -9 of a worker loses its residual, but no sample.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

make_data
nodes=(coordinator worker-0 worker-1)
steps=600
settings=(train.method=ddp "train.max_steps=$steps" train.batch_size=8 train.eval_every=200 coordinator.min_workers=2
    coordinator.evict_after_s=1000 checkpoint.every=60)

begin() {
    local node
    rm -rf run worker-0 worker-1
    write_config run.yaml "${settings[@]}" "${codec[@]}"
    for node in "${nodes[@]}"; do node_start "$node"; done
}
steps_reach() { (($(grep -c '"event": *"update"' run/metrics.jsonl 2>/dev/null) >= $1)); }
kill_at() { # NODE STEP
    until_true 30 "step $2" steps_reach "$2"
    node_kill "$1" || return 1
    node_start "$1"
}
stop_at() { # STEP: stops all nodes with SIGTERM and restarts them
    local node
    until_true 30 "step $1" steps_reach "$1"
    kill -STOP "${node_pid[coordinator]}" 2>/dev/null || return 1 # no step can end from here on
    if steps_reach $((steps - 1)); then
        kill -CONT "${node_pid[coordinator]}"
        return 1
    fi
    # Each node gets SIGTERM twice, as from timeout(1) and service managers: once itself, once with its group.
    for node in "${nodes[@]}" "${nodes[@]}"; do kill -TERM "${node_pid[$node]}" 2>/dev/null || true; done
    kill -CONT "${node_pid[coordinator]}"
    for node in "${nodes[@]}"; do finish "${node_pid[$node]}" 20 75 "$node after SIGTERM"; done
    for node in "${nodes[@]}"; do node_start "$node"; done
}
end() { # FOLDER: waits for the end and moves the run to FOLDER
    nodes_finish 60
    rm -rf "$1"
    mv run "$1"
}
get() { json get "$1/summary.json" "$2"; }
same() { # WHAT RUN CALM
    [[ $(get "$2" theta_hash) == "$(get "$3" theta_hash)" ]] ||
        fail "$1: theta $(get "$2" theta_hash), expected $(get "$3" theta_hash)"
    [[ $(get "$2" tokens) == "$(get "$3" tokens)" ]] ||
        fail "$1: $(get "$2" tokens) tokens, expected $(get "$3" tokens)"
    echo "$1: same theta as the undisturbed run"
}

codec=(codec.up=fp32)
begin
end calm
memory=$(grep 'memory in MiB' worker-0.log)
[[ $memory == *gradient* && $memory != *moments* ]] ||
    fail "a ddp worker allocates moments, which only the coordinator needs: $memory"
two_kills() { kill_at worker-1 60 && kill_at worker-1 180; }
storm begin two_kills
end killed
same "fp32, a worker killed twice" killed calm

codec=(codec.up=int8:64 codec.down=int8:64)
begin
end calm8
two_stops() { stop_at 80 && stop_at 177 && kill_at coordinator 390; }
storm begin two_stops
end stopped8
same "int8, stopped twice, the coordinator killed once" stopped8 calm8

one_kill() { kill_at worker-1 130; }
storm begin one_kill
end killed8
[[ $(get killed8 tokens) == "$(get calm8 tokens)" ]] ||
    fail "int8, worker killed: $(get killed8 tokens) tokens, expected $(get calm8 tokens)"
awk -v a="$(get killed8 final_val_loss)" -v b="$(get calm8 final_val_loss)" 'BEGIN { exit !(a - b < 0.05 && b - a < 0.05) }' ||
    fail "int8, worker killed: validation loss $(get killed8 final_val_loss), expected about $(get calm8 final_val_loss)"
echo "int8, a worker killed: same tokens, loss $(get killed8 final_val_loss), undisturbed $(get calm8 final_val_loss)"
