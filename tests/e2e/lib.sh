# Base of the end-to-end tests: source it first.
# - The tests run the programs in $ATOLL_BIN. The working directory is the empty folder $WORK. Ports are ephemeral.
# - At the end, and on any failure, all processes are killed and $WORK is removed (E2E_KEEP=1 keeps it).
# - Only bash and coreutils: a bare system has no procps, jq or python.
# - LONG is 1 with ATOLL_LONG=1: the full-length variants.
# shellcheck shell=bash
set -euo pipefail

BIN=$(cd "${ATOLL_BIN:?folder of the programs under test}" && pwd)
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
WORK=$(mktemp -d "${TMPDIR:-/tmp}/atoll-e2e.XXXXXX")
LONG=${ATOLL_LONG:-0}
export BIN HERE WORK LONG
pid=''       # process id of the last start
started=()   # process ids that the test must end
overrides=() # flags from write_config

# descendants PID: prints the ids of all descendants, parents first. It starts no program: the processes that the caller
# wants to stop would run on meanwhile.
descendants() {
    local stat fields id i parents=() family=("$1")
    for stat in /proc/[0-9]*/stat; do
        fields=''
        IFS= read -r -d '' fields 2>/dev/null <"$stat" || [[ $fields ]] || continue
        id=${fields%% *} fields=${fields##*) } fields=${fields#* } # names may contain blanks and ')'
        parents[id]=${fields%% *}
    done
    for ((i = 0; i < ${#family[@]}; i++)); do
        ((i == 0)) || echo "${family[i]}"
        for id in "${!parents[@]}"; do
            [[ ${parents[id]} != "${family[i]}" ]] || family+=("$id")
        done
    done
}

# command_of PID: sets $command to the command line, with a blank after every word; false if the process is gone.
command_of() {
    local words=()
    mapfile -t -d '' words 2>/dev/null <"/proc/$1/cmdline" || return 1
    command="${words[*]} "
}

cleanup() {
    local status=$? id all=()
    trap - EXIT
    for id in "${started[@]}"; do
        mapfile -t -O "${#all[@]}" all < <(descendants "$id")
        all+=("$id")
    done
    for id in "${all[@]}"; do
        kill -CONT "$id" 2>/dev/null || true
        kill -KILL "$id" 2>/dev/null || true
    done
    for id in "${started[@]}"; do wait "$id" 2>/dev/null || true; done
    if declare -F at_exit >/dev/null; then at_exit; fi # hook of the test
    if ((status != 0 && status != 77)); then
        local log
        for log in "$WORK"/*.log "$WORK"/*/logs/*.log; do
            [[ -s $log ]] && printf -- '--- end of %s\n' "${log#"$WORK"/}" >&2 && tail -n 15 "$log" >&2
        done
    fi
    [[ -n ${E2E_KEEP:-} ]] || rm -rf "$WORK"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
cd "$WORK"

fail() {
    printf 'FAIL %s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# start LOG COMMAND...: runs COMMAND in the background and appends its output to LOG; sets $pid.
start() {
    local log=$1
    shift
    "$@" >>"$log" 2>&1 &
    pid=$!
    started+=("$pid")
}

# ended PID: removes a process that was waited for from the list of cleanup.
ended() {
    local id kept=()
    for id in "${started[@]}"; do [[ $id == "$1" ]] || kept+=("$id"); done
    started=("${kept[@]}")
}

# finish PID SECONDS CODE WHAT: waits for the process; fails unless it exits with CODE within SECONDS.
finish() {
    local code=0 until=$((SECONDS + $2))
    while kill -0 "$1" 2>/dev/null; do
        ((SECONDS < until)) || fail "$4: still running after $2 s"
        sleep 0.05
    done
    wait "$1" || code=$?
    ended "$1"
    ((code == $3)) || fail "$4: exit code $code, expected $3"
}

# until_true SECONDS WHAT COMMAND...: repeats COMMAND until it succeeds; fails after SECONDS and names WHAT.
until_true() {
    local until=$((SECONDS + $1)) what=$2
    shift 2
    while ! "$@" >/dev/null 2>&1; do
        ((SECONDS < until)) || fail "timeout: waiting for $what"
        sleep 0.05
    done
}

now_ms() { date +%s%3N; }
seconds() { printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100)); } # 1234 -> 1.2
json() { "$BIN/e2e_json" "$@"; }

# make_text BYTES: prints sentences of a small grammar, so that a model can learn them. The text is always the same.
make_text() {
    awk -v bytes="$1" 'BEGIN {
        n = split("the old lighthouse keeper|a small grey boat|the harbour master|her brother|a patient gull|the tide", who, "|")
        v = split("watched|carried|remembered|lost|found|counted", verb, "|")
        o = split("the morning mail|seven white stones|the northern light|a coil of rope|every passing ship", what, "|")
        x = 12345
        while (size < bytes) {
            x = (x * 16807) % 2147483647; s = who[x % n + 1]
            x = (x * 16807) % 2147483647; s = s " " verb[x % v + 1]
            x = (x * 16807) % 2147483647; s = s " " what[x % o + 1] (x % 7 ? ". " : ".\n")
            printf "%s", s; size += length(s)
        }
    }' </dev/null
}

make_data() { # writes text.txt and data/
    make_text 60000 >text.txt
    "$BIN/atoll" prepare data text.txt >prepare.log 2>&1 || fail "prepare: $(<prepare.log)"
}

# write_config FILE [KEY=VALUE...]: writes a tiny run with rounds of milliseconds; KEY=VALUE become flags in overrides.
write_config() {
    cat >"$1" <<YAML
run: {name: e2e, seed: 7}
data: {train: "$WORK/data/train_*.bin", val: "$WORK/data/val_*.bin", tokenizer: bytes}
model: {family: gpt2, n_layer: 1, n_head: 2, n_embd: 16, block_size: 32, vocab_size: 256}
train: {method: diloco, max_steps: 60, sync_every: 5, batch_size: 4, threads: 1, eval_every: 4, eval_tokens: 1024}
inner: {learning_rate: 5.0e-3, warmup_steps: 5}
codec: {up: fp32, down: fp32}
coordinator: {listen: "tcp://127.0.0.1:*"}
checkpoint: {every: 4, keep: 2}
YAML
    shift
    # shellcheck disable=SC2034 # read by the test
    overrides=("${@/#/--}")
}

# rounds_done [FOLDER]: prints the last round in metrics.jsonl of the run, or 0.
rounds_done() {
    local last
    last=$(grep '"event": *"round"' "${1:-run}/metrics.jsonl" 2>/dev/null | tail -n 1) || true
    if [[ $last =~ \"round\":\ *([0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi
}

rounds_reach() { (($(rounds_done "${2:-run}") >= $1)); } # ROUND [FOLDER]
