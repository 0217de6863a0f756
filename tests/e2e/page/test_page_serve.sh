#!/usr/bin/env bash
# atoll page: from a run folder and from a join line, before, during and after a run; tokens, hosts and methods; counters
# across restarts of coordinator and page.
# ctest: timeout=240
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"
# shellcheck source=tests/e2e/page/page.sh
source "$HERE/page/page.sh"

# --- before the run
make_data
write_config run.yaml train.max_steps=100000 train.eval_every=1 coordinator.min_workers=1
serve page.log run --interval 0.2
[[ $(code /healthz) == 503 ]] || fail "a page without a run is healthy"
[[ $(body /healthz) == *'waiting for run, which does not exist yet'* ]] || fail "the reason: $(body /healthz)"
[[ $(code /status.json) == 503 ]] || fail "there is a status before the run"

# --- during the run
node_start coordinator
node_start kitchen
until_true 60 "three rounds on the page" metric_reaches atoll_rounds_total 3
# Rounds come from the folder, the rest from an answer of the coordinator, which may come later.
until_true 20 "health" code_is /healthz 200
until_true 20 "the worker on the page" metric_is 'atoll_worker_up{worker="kitchen"}' 1
body /status.json >page.json
"$BIN/atoll" status run --json >status.json
keys() { grep -oE '"[a-z_]+":' "$1" | sort -u; }
[[ $(keys page.json) == "$(keys status.json)" ]] || fail "status.json of the page has other keys than atoll status"
page_text=$(body /)
[[ $page_text == *'<script nonce='* && $page_text != *'<!--'* ]] || fail "the page is incomplete"
[[ $page_text != *'src='* && $page_text != *'@import'* ]] || fail "the page loads something else"
get / | tr -d '\r' >answer.txt
grep -q "^Content-Security-Policy: default-src 'none'; script-src 'nonce-" answer.txt || fail "no policy: $(<answer.txt)"
[[ $(grep -oE "nonce-[0-9a-f]{32}" answer.txt | sort -u) != "$(get / | grep -oE "nonce-[0-9a-f]{32}" | sort -u)" ]] ||
    fail "two answers have one nonce"

# The events: everything first, then each change; a round appears in less than half a minute.
exec 8<>"/dev/tcp/127.0.0.1/$port"
printf 'GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n' >&8
timeout 30 sed -nE '/^event: /p; /^event: tick/q' <&8 >events.txt || fail "no event within 30 s"
exec 8>&-
[[ $(sed -n 1p events.txt) == "event: full"* ]] || fail "the first event is $(head -n 1 events.txt)"

# Who may ask, and how.
[[ $(code /) == 200 ]] || fail "no page"
[[ $(request 'GET / HTTP/1.1' 'Host: evil.example') == *' 403 '* ]] || fail "another name of this machine is allowed"
[[ $(request 'POST / HTTP/1.1' 'Host: localhost' 'Content-Length: 5') == *' 405 '* ]] || fail "POST is allowed"
[[ $(code /metricsx) == 404 && $(code /../etc/passwd) == 404 ]] || fail "an unknown path has an answer"
[[ $(request 'HEAD /metrics HTTP/1.1' 'Host: localhost') != *'atoll_'* ]] || fail "HEAD has a body"
big=$(head -c 60000 /dev/zero | tr '\0' a)
[[ $(code / "X-Big: $big") =~ ^(400|413|431)?$ ]] || fail "a header of 60 kB is accepted: $(code / "X-Big: $big")"

# --- from a join line, which appears after the page started
first=$page first_port=$port
serve remote.log join --interval 0.2
[[ $(code /healthz) == 503 ]] || fail "a page without a join line is healthy"
tail -n 1 run/address >join.part
chmod 600 join.part
mv join.part join
until_true 20 "the status over the network" metric_reaches atoll_rounds_total 4
until_true 20 "the worker over the network" metric_is 'atoll_worker_up{worker="kitchen"}' 1
kill -TERM "$page"
finish "$page" 20 0 "the page of a join line"
grep -q "$(sed -E 's|.*/||' join)" remote.log && fail "the log holds the secret"
page=$first port=$first_port

# --- a token: every other address needs one, and logs never show it
listen=0.0.0.0
serve open.log run --interval 0.2
token=$(<run/page-token)
[[ $(stat -c %a run/page-token) == 600 && ${#token} == 32 ]] || fail "run/page-token is not a private token"
grep -q "$token" open.log && fail "the log holds the token"
[[ $(code /metrics) == 401 && $(code /events) == 401 && $(code /status.json) == 401 && $(code /) == 401 ]] ||
    fail "something is shown without the token"
[[ $(body /metrics) != *atoll_* ]] || fail "the refusal shows numbers"
[[ $(code /metrics "Authorization: Bearer $token") == 200 ]] || fail "the token is refused"
[[ $(code /metrics "Authorization: Bearer ${token%?}") == 401 ]] || fail "a part of the token is accepted"
[[ $(code "/?token=$token") == 303 ]] || fail "the browser does not get its cookie"
cookie=$(get "/?token=$token" | tr -d '\r' | sed -nE 's/^Set-Cookie: ([^;]*);.*HttpOnly.*/\1/p')
[[ $(code / "Cookie: other=1; $cookie") == 200 ]] || fail "the cookie is refused: $cookie"
until_true 20 "health without a token" code_is /healthz 200
kill -TERM "$page"
finish "$page" 20 0 "the page with a token"
"$BIN/atoll" page join --listen 0.0.0.0:0 >refused.log 2>&1 && fail "a page for everyone without a token"
grep -q -- '--token FILE' refused.log || fail "the refusal: $(<refused.log)"
"$BIN/atoll" page run --listen "127.0.0.1:$first_port" >taken.log 2>&1 && fail "a port is used twice"
grep -q 'another program listens' taken.log || fail "the refusal: $(<taken.log)"
page=$first port=$first_port listen=127.0.0.1

# --- a killed coordinator: the page says so, and no counter falls
before=$(body /metrics)
node_kill coordinator
until_true 20 "an outage on the page" metric_is atoll_up 0
[[ $(code /healthz) == 503 ]] || fail "the page is healthy without a coordinator"
[[ $(body /metrics) != *atoll_worker_up* ]] || fail "workers are up without a coordinator"
kill -TERM "$page"
finish "$page" 20 0 "the page of a run folder"
serve page.log run --interval 0.2
node_start coordinator
until_true 60 "the run after its restart" metric_is atoll_up 1
# counters TEXT: prints "NAME VALUE" of each counter of the run.
counters() { awk '$2 ~ /^[0-9.e+]+$/ && $1 ~ /^atoll_(rounds|tokens|bytes|other_bytes|faults)_total/' <<<"$1"; }
after=$(body /metrics)
while read -r name value; do
    now=$(awk -v name="$name" '$1 == name { print $2 }' <<<"$after")
    awk -v a="$value" -v b="${now:-0}" 'BEGIN { exit !(b >= a) }' || fail "$name fell from $value to ${now:-nothing}"
done < <(counters "$before")
(($(counters "$before" | wc -l) >= 9)) || fail "counters are missing: $before"
until_true 20 "the restart, counted once" metric_is 'atoll_faults_total{kind="restart"}' 1

# --- after the run
says_stopped() { [[ $(body /healthz) == *'is stopped'* ]]; }
kill -TERM "${node_pid[coordinator]}"
finish "${node_pid[coordinator]}" 20 75 "the coordinator"
until_true 20 "a stopped run on the page" says_stopped
before_last=$(($(rounds_done) - 1))
"$BIN/atoll" rollback run --to "$before_last" >rollback.log 2>&1 || fail "rollback: $(<rollback.log)"
until_true 20 "a run that was rolled back" metric_is atoll_rounds_total "$before_last"
kill -TERM "$page"
finish "$page" 20 0 "the page"
