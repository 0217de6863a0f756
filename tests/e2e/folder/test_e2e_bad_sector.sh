#!/usr/bin/env bash
# A sector that the disk cannot read, in each journal segment and each checkpoint file of a stopped run in turn: the run starts, or
# `atoll repair` makes it start. Where nothing is lost, it ends at the theta of the undisturbed run. Prints a table.
# ctest: timeout=240
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"

# on_bad_disk FILE BLOCK COMMAND...: COMMAND cannot read 4096 bytes of FILE. A second name keeps its inode from being used again, should
# COMMAND remove FILE.
on_bad_disk() {
    local inode
    inode=$(stat -c %i "$1")
    rm -f bad-inode
    [[ ! -f $1 ]] || ln "$1" bad-inode
    BAD_SECTOR_INODE=$inode BAD_SECTOR_BLOCK=$2 LD_PRELOAD=$BIN/bad_sector.so "${@:3}"
}
# A sanitizer must come before a preloaded library.
on_bad_disk /dev/null 0 "$BIN/atoll" --version >/dev/null 2>&1 || exit 77

make_data
write_config run.yaml model.n_embd=32 train.max_steps=150 checkpoint.every=5 checkpoint.keep=0 coordinator.min_workers=1
rounds=30
launch() { "$BIN/atoll" launch run.yaml --workers 1 --dir "$1" --quiet "${overrides[@]}"; }

launch calm >calm.log 2>&1 || fail "the undisturbed run: $(<calm.log)"
calm=$(json get calm/summary.json theta_hash)

# stopped_run FOLDER ROUND: a run whose processes were killed after ROUND
stopped_run() {
    local family
    start "$1.log" launch "$1"
    until_true 60 "round $2" rounds_reach "$2" "$1"
    mapfile -t family < <(descendants "$pid")
    kill -KILL "${family[@]}" "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    ended "$pid"
    until_true 10 "the end of $1" all_gone "${family[@]}"
    (($(rounds_done "$1") < rounds))
}
all_gone() { ! kill -0 "$@" 2>/dev/null; }
for trial in 1 2 3 4 5; do
    # Killed between a checkpoint's round and its files, a run needs two segments.
    stopped_run stopped 12 && (($(rounds_done stopped) % 5)) && break
    rm -rf stopped
done
[[ -d stopped ]] || fail "the run ended before it was killed"
done_rounds=$(rounds_done stopped)

# try FILE BLOCK: starts a copy of the stopped run on a disk with a bad sector in FILE. Sets $happened and $left.
try() {
    local file=$1 block=$2 code=0 theta
    rm -rf copy copy.log repair.txt
    cp -r stopped copy
    happened=started left=$done_rounds
    on_bad_disk "copy/$file" "$block" launch copy >copy.log 2>&1 || code=$?
    if ((code == 1)) && grep -q "^atoll: .*journal/.* is damaged at byte .*, which the disk cannot read, .*atoll repair RUN" copy.log; then
        on_bad_disk "copy/$file" "$block" "$BIN/atoll" repair copy >repair.txt 2>&1 || fail "repair, $file: $(<repair.txt)"
        left=$(sed -nE 's/^kept +([0-9]+) rounds: .*/\1/p' repair.txt)
        happened=repaired code=0
        file=$(sed -nE 's/^moved +journal\/.* to (journal.damaged-.*)/\1/p' repair.txt)
        on_bad_disk "copy/$file" "$block" launch copy >copy.log 2>&1 || code=$?
    fi
    ((code == 0)) || fail "$file, block $block: exit code $code: $(<copy.log)"
    grep -q "nothing is lost" copy.log && happened+=', put aside'
    if grep -q "journal/.* is damaged at byte .*; the file is kept as journal.damaged-" copy.log; then
        happened+=', tail put aside'
        left=$(sed -nE 's/.*and the run continues after round ([0-9]+)$/\1/p' copy.log)
    fi
    theta=$(json get copy/summary.json theta_hash)
    if [[ $happened == repaired* ]]; then
        [[ -n $left && $left -gt 0 ]] || fail "$file: repair keeps no rounds: $(<repair.txt)"
    elif [[ $theta != "$calm" && $left == "$done_rounds" ]]; then
        fail "$file, block $block: theta is $theta, expected $calm: $(<copy.log)"
    fi
    [[ $theta != "$calm" ]] || happened+=', same theta'
}

printf '%-52s %-36s %s\n' "unreadable block" "what happened" "rounds kept of $done_rounds"
segments=(stopped/journal/*.log) checkpoints=(stopped/checkpoints/round_*)
((${#segments[@]} >= 4 && ${#checkpoints[@]} >= 3)) || fail "too few files: ${segments[*]} ${checkpoints[*]}"
newest=${checkpoints[-1]#stopped/} last=${segments[-1]#stopped/}
for path in "${segments[@]}" stopped/checkpoints/round_*/{coordinator_state.bin,model.safetensors,config.json}; do
    file=${path#stopped/}
    blocks=(1)
    [[ $file != "$last" ]] || blocks=(0 $(($(stat -c %s "$path") / 8192)) $((($(stat -c %s "$path") - 1) / 4096)))
    (($(stat -c %s "$path") > 4096)) || blocks=(0)
    for block in "${blocks[@]}"; do
        try "$file" "$block"
        printf '%-52s %-36s %s\n' "$file, block $block" "$happened" "$left"
        case $file in
        "$last") [[ $happened == repaired* || $happened == *"tail put aside"* ]] || fail "the last segment: $happened" ;;
        "$newest"/config.json) [[ $happened == "started, same theta" ]] || fail "$file: $happened" ;;
        "$newest"/*) [[ $happened == "started, put aside, same theta" ]] || fail "$file: $happened" ;;
        *) ((left == done_rounds)) || fail "$file: $left rounds instead of $done_rounds" ;;
        esac
        [[ $file != "$newest/model.safetensors" ]] || compgen -G "copy/$newest.damaged-*/model.safetensors" >/dev/null ||
            fail "the checkpoint is gone: $(ls copy/checkpoints)"
    done
done

# refused FILE PATTERN COMMAND...: COMMAND ends with one line that matches, and renames nothing.
refused() {
    local file=$1 pattern=$2 code=0
    on_bad_disk "$file" 0 "${@:3}" >refused.txt 2>&1 || code=$?
    if [[ $code != 1 || $(grep -c . refused.txt) != 1 ]] || ! grep -qE "^atoll: .*$pattern.*Input/output error" refused.txt; then
        fail "unreadable $file: exit code $code: $(<refused.txt)"
    fi
    ! compgen -G "calm/*.damaged-*" >/dev/null || fail "$file was renamed"
}
latest=$(readlink calm/checkpoints/latest)
for name in model.safetensors coordinator_state.bin; do
    refused "calm/checkpoints/$latest/$name" "cannot read .*$name" "$BIN/atoll" export calm out
    refused "calm/checkpoints/$latest/$name" "cannot read .*$name" "$BIN/atoll" generate calm --tokens 5
done
refused calm/keys "cannot read calm/keys" "$BIN/atoll-coordinator" run.yaml --dir calm "${overrides[@]}"
refused calm/worker-keys "cannot read calm/worker-keys" "$BIN/atoll-coordinator" run.yaml --dir calm "${overrides[@]}"
for path in calm/metrics.jsonl "calm/checkpoints/$latest/model.safetensors"; do
    on_bad_disk "$path" 0 "$BIN/atoll" status calm >status.txt 2>&1 || fail "status, unreadable $path: $(<status.txt)"
done

# A worker's newest state: the one before is whole.
rm -rf copy
cp -r stopped copy
on_bad_disk copy/workers/worker-0/state.bin 1 launch copy >copy.log 2>&1 || fail "an unreadable state.bin: $(<copy.log)"
grep -q "ignored this worker's newest saved state: cannot read .*state.bin: Input/output error" copy/logs/*.log ||
    fail "nobody names the unreadable state: $(tail -n 5 copy/logs/*.log)"

# ddp: whole records behind a changed byte are kept, at an ordinary start.
overrides+=(--train.method=ddp --train.max_steps=400 --checkpoint.every=0)
rounds=400
stopped_run ddp 40 || fail "the ddp run ended before it was killed"
segments=(ddp/journal/*.log)
segment=${segments[-1]}
printf 'changed' | dd of="$segment" bs=1 seek=$(($(stat -c %s "$segment") / 2)) conv=notrunc status=none
sum=$(md5sum <"$segment")
launch ddp >ddp.log 2>&1 || fail "ddp with a changed byte: $(<ddp.log)"
grep -E "${segment#ddp/} is damaged at byte [0-9]+ of [0-9]+: behind it are [1-9][0-9]* whole records \([1-9][0-9]* updates, rounds [0-9]+ to [0-9]+\)" ddp.log ddp/logs/coordinator.log |
    head -n 1 | grep . || fail "the damage is not named: $(<ddp.log)"
[[ $(md5sum <ddp/journal.damaged-*/"${segment##*/}") == "$sum" ]] || fail "bytes are gone: $(ls ddp ddp/journal.damaged-*)"
[[ $(json get ddp/summary.json rounds) == 400 ]] || fail "the ddp run did not end"
