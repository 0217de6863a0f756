# Base of the end-to-end tests: source it first. Works in an empty folder $WORK that is removed at the end, with every
# process that `start` started. $BIN is the folder of the programs; LONG is 1 with ATOLL_LONG=1.
# shellcheck shell=bash
set -euo pipefail

BIN=${ATOLL_BIN:?folder of the programs under test}
WORK=$(mktemp -d "${TMPDIR:-/tmp}/atoll-e2e.XXXXXX")
LONG=${ATOLL_LONG:-0}
cd "$WORK"
started=()
overrides=()
export BIN WORK LONG

clean_up() {
    local id
    for id in "${started[@]}"; do kill -KILL "$id" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$WORK"
}
trap clean_up EXIT

fail() {
    printf 'FAIL %s: %s\n' "${0##*/}" "$*" >&2
    local log
    for log in *.log; do
        [[ -s $log ]] && printf -- '--- end of %s\n' "$log" >&2 && tail -n 15 "$log" >&2
    done
    exit 1
}

now_ms() { date +%s%3N; }
seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); }
json() { "$BIN/e2e_json" "$@"; }

# make_text BYTES: text with something to learn in it, always the same.
make_text() {
    awk -v bytes="$1" 'BEGIN {
        n = split("the of and a to in he was that it his her with as had for she not at but be on they have him which", w, " ")
        for (x = 12345; bytes > 0; bytes -= length(out)) {
            x = (x * 16807) % 2147483647
            out = w[x % n + 1] (x % 11 ? " " : ".\n")
            printf "%s", substr(out, 1, bytes)
        }
    }'
}

make_data() { # text.txt and data/
    make_text 60000 >text.txt
    "$BIN/atoll" prepare data text.txt >prepare.log 2>&1 || fail "prepare: $(<prepare.log)"
}

# write_config FILE [key=value...]: a tiny model and run; key=value are kept as flags in overrides.
write_config() {
    cat >"$1" <<YAML
run: {name: e2e, seed: 1}
data: {train: "$WORK/data/train_*.bin", val: "$WORK/data/val_*.bin", tokenizer: bytes}
model: {family: gpt2, n_layer: 2, n_head: 2, n_embd: 16, block_size: 32, vocab_size: 256}
train: {method: diloco, max_steps: 60, sync_every: 5, batch_size: 4, threads: 1, eval_every: 4, eval_tokens: 1024}
inner: {learning_rate: 5.0e-3, warmup_steps: 5}
coordinator: {listen: "tcp://127.0.0.1:*"}
checkpoint: {every: 5, keep: 2}
log: {every_steps: 1}
YAML
    shift
    # shellcheck disable=SC2034 # for the test
    overrides=("${@/#/--}")
}

# start LOG COMMAND...: in the background, output appended to LOG; sets $pid.
start() {
    local log=$1
    shift
    "$@" >>"$log" 2>&1 &
    pid=$!
    started+=("$pid")
}

# ended PID: it is gone and waited for; clean_up has nothing to kill there.
ended() {
    local id kept=()
    for id in "${started[@]}"; do [[ $id == "$1" ]] || kept+=("$id"); done
    started=("${kept[@]}")
}

# finish PID SECONDS CODE WHAT: it must end by itself within that time, with that code.
finish() {
    local code=0 until=$((SECONDS + $2))
    while kill -0 "$1" 2>/dev/null; do
        ((SECONDS < until)) || fail "$4 did not end within $2 s"
        sleep 0.05
    done
    wait "$1" || code=$?
    ended "$1"
    ((code == $3)) || fail "$4 ended with $code, expected $3"
}

# until_true SECONDS WHAT COMMAND...: until the command succeeds.
until_true() {
    local until=$((SECONDS + $1)) what=$2
    shift 2
    while ! "$@" >/dev/null 2>&1; do
        ((SECONDS < until)) || fail "waited in vain for $what"
        sleep 0.05
    done
}
