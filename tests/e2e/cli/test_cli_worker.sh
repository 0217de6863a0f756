#!/usr/bin/env bash
# Lines of atoll-worker that a person acts on: the keys that are its own, the run that it joined, a folder of another run.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

# --- --help lists the keys that a worker takes, and no other key
"$BIN/atoll-worker" --help >help.txt
listed=$(sed -n '/of its own:/,/^codec.up must/p' help.txt | sed '$d' | grep -oE '[a-z]+\.[a-z_]+' | sort)
[[ $listed == *codec.up* && $listed == *train.batch_size* && $listed == *data.train* ]] || fail "--help lacks a key: $(<help.txt)"
"$BIN/atoll" config help >keys.txt 2>&1 || fail "atoll config help: $(<keys.txt)"
keys=$(grep -oE '^ *[a-z]+\.[a-z_0-9]+' keys.txt | tr -d ' ' | sort -u)
(($(wc -l <<<"$keys") > 60)) || fail "atoll config help lists few keys: $keys"
for key in $keys; do
    "$BIN/atoll-worker" --join nowhere --"$key=?" >out.txt 2>&1 && fail "--$key=? is taken"
    if grep -q "^atoll: $key belongs to the run, not to one worker" out.txt; then
        ! grep -qxF "$key" <<<"$listed" || fail "--help lists $key, which belongs to the run"
    else
        grep -qxF "$key" <<<"$listed" || fail "--help does not list $key: $(<out.txt)"
    fi
done

# --- joining, and a folder that holds the state of another run
make_data
write_config run.yaml run.name=first
worker() { exec "$BIN/atoll-worker" --join "$1" --name vm --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin"; }
for run in one two; do
    start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir $run "${overrides[@]}"
    coordinator=$pid
    until_true 20 "the address of $run" test -s $run/address
    start $run.log worker $run
    if [[ $run == one ]]; then
        finish "$pid" 60 0 "the worker"
        finish "$coordinator" 60 0 "the coordinator"
    else
        finish "$pid" 60 2 "a worker with the folder of another run"
    fi
done
grep -qE ' vm joined first \(diloco\)(; it gets its number in the first round| as worker 0)$' one.log || fail "no line says what the worker joined"
[[ $(tail -n 1 two.log) == 'atoll: ./atoll-worker-vm holds the saved state of another run: use another --dir, or remove this folder' ]] ||
    fail "unexpected error: $(tail -n 1 two.log)"
rm -r atoll-worker-vm
start again.log worker two
finish "$pid" 60 0 "the worker without the folder"
finish "$coordinator" 60 0 "the second coordinator"
echo "a worker takes $(wc -l <<<"$listed") of $(wc -l <<<"$keys") keys, names its run and its folder"
