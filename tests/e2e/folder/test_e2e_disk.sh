#!/usr/bin/env bash
# A disk fills up and later has free space again: the restarted run ends at the theta of the undisturbed run.
# - First the disk of the whole run under `atoll launch`.
# - Then the disk of one worker, which is killed while its disk is full.
# The disk is a small tmpfs in a mount namespace. The test is skipped if the system does not allow that.
# ctest: timeout=300 labels=long
# shellcheck source=tests/e2e/lib.sh
if [[ -z ${DISK_NAMESPACE:-} ]]; then
    unshare -rm mount -t tmpfs none /mnt 2>/dev/null || exit 77
    DISK_NAMESPACE=1 exec unshare -rm bash "$0"
fi
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

rounds=70
disk=$WORK/disk
at_exit() { umount -l "$disk" 2>/dev/null || true; } # hook of cleanup

new_disk() { # SIZE
    at_exit
    mkdir -p "$disk"
    mount -t tmpfs -o "size=$1" none "$disk"
}

# Fill the disk, and keep it full when space is freed, until the file "enough" exists.
fill_disk() {
    rm -f "$WORK/enough"
    while [[ -e $disk && ! -e $WORK/enough ]]; do
        dd if=/dev/zero of="$disk/ballast" bs=4096 oflag=append conv=notrunc status=none 2>/dev/null || true
        sleep 0.01
    done &
    filler=$!
    started+=("$filler")
    until_true 10 "a full disk" disk_full
}

disk_full() { [[ $(stat -f -c %f "$disk") == 0 ]]; } # free blocks

free_disk() {
    touch "$WORK/enough" # no kill: a dd left behind could fill the disk again
    wait "$filler"
    ended "$filler"
    rm "$disk/ballast"
}

make_data
# A saved state of 2 MB is larger than a single write.
write_config run.yaml model.n_embd=96 train.max_steps=$((rounds * 5)) codec.up=int8:64 codec.down=int8:64 \
    coordinator.min_workers=2 coordinator.evict_after_s=1000 train.eval_every=20 checkpoint.every=7

launch() { start "$1.log" "$BIN/atoll" launch run.yaml --workers 2 --dir "$2" "${overrides[@]}"; }

launch calm calm
finish "$pid" 60 0 "the undisturbed run"
calm=$(json get calm/summary.json theta_hash)

# --- the disk of the whole run
begin_launch() {
    rm -f full.log
    new_disk 40m
    launch full disk/run
    node_pid=([launch]=$pid)
}
fill_in_time() {
    local run
    until_true 30 "round $((trial * 12))" rounds_reach $((trial * 12)) disk/run
    mapfile -t run < <(descendants "$pid")
    kill -STOP "${run[@]}" 2>/dev/null || return 1 # the run must not end while the disk fills
    if rounds_reach $((rounds - 1)) disk/run; then
        kill -CONT "${run[@]}" 2>/dev/null
        return 1
    fi
    fill_disk
    kill -CONT "${run[@]}"
}
# repeats_logged LOG METRICS: the coordinator logs exactly the rounds that metrics.jsonl lists twice: they were in
# metrics.jsonl, but not in the journal.
repeats_logged() {
    local want got
    want=$(json lines "$2" round round | awk '$1 <= last { print $1, last } { last = $1 }')
    ((trial == 1)) || [[ -n $want ]] || fail "metrics.jsonl lists no round twice"
    got=$(sed -nE 's/^repeating rounds? ([0-9]+)( to ([0-9]+))?: .*/\1 \3/p' "$1" |
        awk '{ print $1, (NF > 1 ? $2 : $1) }')
    [[ $got == "$want" ]] || fail "repeated rounds: \"$want\" by metrics.jsonl, \"$got\" by the log"
    echo "repeated after the full disk: ${want:-none}"
}
for trial in 1 2 3; do
    storm begin_launch fill_in_time
    node_pid=()
    finish "$pid" 30 1 "atoll launch on a full disk"
    grep -q 'No space left on device' full.log || fail "launch does not log the full disk: $(tail -n 5 full.log)"
    round=$(rounds_done disk/run)
    ((round < rounds)) || fail "the disk was full too late: after $round of $rounds rounds"
    free_disk
    json lines disk/run/metrics.jsonl || fail "the full disk left an incomplete line in metrics.jsonl"
    # A round in metrics.jsonl that is missing in the journal: the run must repeat it.
    ((trial == 1)) || printf '{"time":1,"event":"round","round":%d}\n' $((round + trial)) >>disk/run/metrics.jsonl
    launch full disk/run
    finish "$pid" 60 0 "the run after the disk has space"
    repeats_logged full.log disk/run/metrics.jsonl
    theta=$(json get disk/run/summary.json theta_hash)
    [[ $theta == "$calm" ]] || fail "trial $trial: theta is $theta after the full disk, expected $calm"
    [[ $(json get disk/run/summary.json tokens) == "$(json get calm/summary.json tokens)" ]] ||
        fail "trial $trial: the number of tokens differs"
    rm -rf full.log
    echo "launch: full after $round rounds, continued: same theta $theta"
done

# --- the disk of one worker
begin_worker() {
    local node
    rm -rf run worker-0 worker-1 ./*.log
    new_disk 20m
    mkdir disk/worker-1
    ln -s disk/worker-1 worker-1
    for node in coordinator worker-0 worker-1; do node_start "$node"; done
}
kill_it_full() {
    local round status=0
    until_true 30 "round 6" rounds_reach 6
    fill_disk
    for round in 12 18 24; do
        until_true 30 "round $round" rounds_reach "$round"
        node_kill worker-1 || status=1
        ((status == 0)) || break
        node_start worker-1
    done
    ((status)) || until_true 30 "round 30" rounds_reach 30
    free_disk
    return "$status"
}
storm begin_worker kill_it_full
nodes_finish 60
theta=$(json get run/summary.json theta_hash)
[[ $theta == "$calm" ]] || fail "theta is $theta after the kills of a worker with a full disk, expected $calm"
echo "worker: killed three times with a full disk: same theta $theta"
