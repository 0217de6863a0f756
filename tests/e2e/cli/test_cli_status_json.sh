#!/usr/bin/env bash
# `atoll status --json` has the same keys for a running, a stopped and a finished run, those of docs/run-folder.md.
# Without --json it prints a page for people. `--watch` follows a run to its end; log lines have a date.
# ctest: timeout=120
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
write_config run.yaml train.max_steps=10000000 train.eval_every=0 checkpoint.every=1000
launch() { exec "$BIN/atoll" launch run.yaml --workers 2 --dir run "${overrides[@]}" "$@"; }
round_reaches() { [[ $(json lines run/metrics.jsonl round round 2>/dev/null | tail -n 1) -ge $1 ]]; }

start run.log launch
until_true 60 "round 3" round_reaches 3
"$BIN/atoll" status run --json >running.json || fail "status of a running run"
# shown PAGE SUBJECT: writes the status for people, once the coordinator has heard from worker-1 within the last second.
shown() { "$BIN/atoll" status "$2" >"$1" 2>/dev/null && grep -q '^worker-1 .* now ' "$1"; }
until_true 20 "status of a running run, for people" shown running.txt run
COLUMNS=60 until_true 20 "status of an address, for people" shown remote.txt "$(<run/address)"
kill -TERM "$pid"
finish "$pid" 60 75 "atoll launch after SIGTERM"
code=0
"$BIN/atoll" status run --json >stopped.json 2>stopped.err || code=$?
((code == 1)) || fail "status of a stopped run: exit code $code, expected 1"
"$BIN/atoll" status run >stopped.txt 2>/dev/null && fail "status of a stopped run, for people, exits with 0"

# A run of some seconds, watched to its end from a pipe: one line for each change.
write_config run.yaml train.max_steps=16000 train.sync_every=1000 train.eval_every=4
rm -rf run
start run.log launch
run=$pid
watched() { "$BIN/atoll" status run --watch | tee -a watch.txt; }
until_true 30 "the first answer" "$BIN/atoll" status run
start watch.out watched
watch=$pid
start watch.out "$BIN/atoll" status run --watch --json
finish "$watch" 100 0 "status --watch"
finish "$pid" 100 0 "status --watch --json"
finish "$run" 60 0 "atoll launch" # the run is done before summary.json is there
"$BIN/atoll" status run --json >finished.json || fail "status of a finished run"
"$BIN/atoll" status run >finished.txt || fail "status of a finished run, for people"
# A page has units; beside advice it has neither keys, nor raw numbers, nor zeros, nor a line without a value.
for page in running remote stopped finished; do
    grep -qE '^run +e2e, diloco' $page.txt || fail "the page does not name the run: $(<$page.txt)"
    grep -qE '^sent +[0-9.]+ [kM]B up, [0-9.]+ [kM]B down' $page.txt || fail "bytes of the page have no unit: $(<$page.txt)"
    ! grep -nE '[a-su-z]_[a-z]|[0-9]\.[0-9]{5}|[0-9]{6}| 0$| null|fragment|^[a-z ]{12} *$' <<<"$(grep -vE '^(theta_hash|state|warning|bottleneck) ' $page.txt)" ||
        fail "the page is a dump: $(<$page.txt)"
done
for page in running remote; do
    grep -qE '^state +(training|waiting), round [0-9]+ of [0-9]+, [0-9.]+ %, [0-9].* left' $page.txt ||
        fail "the page lacks the time left: $(<$page.txt)"
    for row in 'worker +doing +tokens +step +heard +devices' 'worker-1 +.* now +cpu.*'; do
        grep -qE "^$row\$" $page.txt || fail "the page lacks a worker: $(<$page.txt)"
    done
done
grep -qE '^state +stopped, round [0-9]+ of [0-9]+, [0-9.]+ %$' stopped.txt || fail "page of a stopped run: $(<stopped.txt)"
grep -qE '^state +done, round 16 of 16, in [0-9].*$' finished.txt || fail "page of a finished run: $(<finished.txt)"
grep -qE '^loss +train [0-9.]+, final validation [0-9.]+ of [0-9.]+ k tokens$' finished.txt || fail "page of a finished run: $(<finished.txt)"
[[ -z $(uniq -d watch.txt) && $(tail -n 1 watch.txt) == 'done  round '*'  100 %  loss '*'  val '*' tokens/s' ]] ||
    fail "status --watch printed: $(<watch.txt)"

for state in running stopped finished; do json names $state.json >$state.names; done
cmp running.names stopped.names || fail "keys of a stopped run: $(diff running.names stopped.names)"
cmp running.names finished.names || fail "keys of a finished run: $(diff running.names finished.names)"
json keys finished.json state run_id method round rounds tokens train_loss val_loss tokens_per_s percent eta_s \
    waiting_for workers bytes_up bytes_down utilization || fail "a key of the contract is missing"
# shellcheck disable=SC2016 # the backquotes are those of the document
sed -n '/^## The status$/,/^## /p' "$HERE/../../docs/run-folder.md" | grep -o '`[a-z_]*`' | tr -d '`' | sort -u >documented
[[ -z $(comm -23 running.names documented) ]] ||
    fail "docs/run-folder.md does not name $(comm -23 running.names documented | tr '\n' ' ')"
[[ $(json get running.json state) =~ ^(training|waiting)$ && $(json get stopped.json state) == stopped ]] ||
    fail "states $(json get running.json state) and $(json get stopped.json state)"
[[ $(json get finished.json state) == 'done' && $(json get finished.json percent) == 100* &&
    $(json get finished.json eta_s) == 0* && $(json get finished.json val_loss) == "$(json get run/summary.json final_val_loss)" ]] ||
    fail "status of a finished run: $(<finished.json)"
for key in run_id method round rounds percent tokens train_loss bytes_up; do
    [[ $(json get stopped.json $key) != null ]] || fail "$key of a stopped run is null: $(<stopped.json)"
done
for key in eta_s train_loss tokens_per_s utilization; do
    [[ $(json get running.json $key) != null ]] || fail "$key of a running run is null: $(<running.json)"
done
grep -qE "^$(date +%Y)-[0-9]{2}-[0-9]{2} [0-9:.]{12} " run/logs/worker-0.log || fail "log lines have no date"
echo "one schema of $(wc -l <running.names) keys; --watch printed $(wc -l <watch.txt) lines"
