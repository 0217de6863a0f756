#!/usr/bin/env bash
# The page's metrics in a real Prometheus: promtool, a scrape, the example rules and board, an outage, and the memory of
# 1,000 scrapes.
# ctest: timeout=300 labels=long
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/page/page.sh
source "$HERE/page/page.sh"
deploy=$HERE/../../deploy

for tool in prometheus promtool; do
    command -v $tool >/dev/null || { echo "skipped: there is no $tool: install prometheus" && exit 77; }
done

# --- the files of deploy/
(cd "$deploy/prometheus" && promtool check config prometheus.yml) >promtool.log 2>&1 || fail "the configuration: $(<promtool.log)"
sed "s|RULES|$deploy/prometheus/alerts.yml|" "$HERE/page/alerts_test.yml" >alerts_test.yml
promtool test rules alerts_test.yml >promtool.log 2>&1 || fail "the rules: $(<promtool.log)"
json get "$deploy/grafana/atoll.json" title >board.txt || fail "the board is no JSON"

# --- a run with a hostile name
make_data
write_config run.yaml train.max_steps=1000000 train.eval_every=2 coordinator.min_workers=2
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
coordinator=$pid
until_true 20 "the coordinator's address" test -s run/address
hostile='a"} 1 \b{c="d'
for name in kitchen "$hostile"; do
    start worker.log "$BIN/atoll-worker" --join run --dir "worker-${#name}" --name "$name" \
        --data.train="$WORK/data/train_*.bin" --data.val="$WORK/data/val_*.bin" --train.threads=1
done
until_true 60 "some rounds" rounds_reach 20
serve page.log run --interval 0.5
until_true 20 "rounds on the page" metric_reaches atoll_rounds_total 20
body /metrics >metrics.txt
promtool check metrics <metrics.txt >promtool.log 2>&1 || fail "promtool check metrics: $(<promtool.log)"
[[ ! -s promtool.log ]] || fail "promtool complains: $(<promtool.log)"

# Rules and board use metrics that exist.
grep -ohE '\batoll_[a-z_]+' "$deploy"/prometheus/alerts.yml "$deploy"/grafana/atoll.json | sort -u >used.txt
grep -ohE '"atoll_[a-z_]+"' "$HERE/../../cli/page/page_metrics.c" | tr -d '"' | sort -u >known.txt
[[ -s used.txt && -z $(comm -23 used.txt known.txt) ]] || fail "unknown metrics: $(comm -23 used.txt known.txt)"

# --- Prometheus, with the example's files
server=$((20000 + RANDOM % 10000))
cp "$deploy"/prometheus/*.yml .
sed -i "s/127.0.0.1:9600/127.0.0.1:$port/; s/15s/1s/" prometheus.yml
start prometheus.log prometheus --config.file=prometheus.yml --storage.tsdb.path=tsdb --web.listen-address="127.0.0.1:$server"
# query TEXT: prints Prometheus' answer as JSON.
query() {
    exec 7<>"/dev/tcp/127.0.0.1/$server" || return 1
    local text=${1//\{/%7B}
    text=${text//\}/%7D} text=${text//\"/%22} text=${text// /%20}
    printf 'GET /api/v1/query?query=%s HTTP/1.0\r\n\r\n' "$text" >&7
    timeout 5 cat <&7
    exec 7>&-
}
answers() { grep -q "$2" <<<"$(query "$1" 2>/dev/null)"; }
until_true 30 "a scrape" answers 'up{job="atoll"}' '"1"\]'
answers 'atoll_rounds_total' '"value":\[[0-9.]*,"[1-9]' || fail "the rounds: $(query atoll_rounds_total)"
until_true 20 "a rate of rounds" answers 'rate(atoll_rounds_total[10s]) > 0' '"value"'
query 'atoll_worker_up == 1' >workers.txt
grep -qF '"worker":"a\"} 1 \\b{c=\"d"' workers.txt || fail "the hostile name: $(<workers.txt)"
(($(grep -o '"worker"' workers.txt | wc -l) == 2)) || fail "there are other workers: $(<workers.txt)"
answers 'count({__name__=~"atoll_.*"} == NaN)' '"result":\[\]' || fail "a metric is no number"

# --- memory: 1,000 scrapes
memory() { awk '/^VmRSS:/ { print $2 }' "/proc/$page/status"; }
for ((i = 0; i < 100; i++)); do body /metrics >/dev/null; done
before=$(memory)
for ((i = 0; i < 1000; i++)); do body /metrics >/dev/null; done
after=$(memory)
echo "memory: $before kB, after 1,000 scrapes $after kB"
((after - before < 1024)) || fail "1,000 scrapes took $((after - before)) kB"

# --- an outage
kill -KILL "$coordinator"
wait "$coordinator" 2>/dev/null || true
ended "$coordinator"
until_true 30 "the outage in Prometheus" answers atoll_up '"0"\]'
until_true 30 "the rule about it" answers 'ALERTS{alertname="AtollCoordinatorDown"}' pending
answers 'atoll_rounds_total' '"value":\[[0-9.]*,"[1-9]' || fail "the counters are gone"
