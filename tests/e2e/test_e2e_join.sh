#!/usr/bin/env bash
# A join that cannot succeed says why in one line within 5 s and ends with 2 (wrong line, run or data) or 1 (no
# coordinator). --max-wait retries. A coordinator that restarts meanwhile is found.
# ctest: timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

make_data
key=$(printf '%064d' 7)
write_config run.yaml coordinator.min_workers=2 coordinator.listen='tcp://0.0.0.0:*' coordinator.advertise=127.0.0.1
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
coordinator=$pid
until_true 20 "the coordinator's address" test -s run/address
line=$(tail -n 1 run/address)
endpoint=${line%/*/*} keys=${line#"$endpoint/"}
secret=${keys#*/} server=${keys%/*}

# ends WHAT CODE TEXT COMMAND...: COMMAND ends with CODE within 5 s, and its output is one line with TEXT.
ends() {
    local what=$1 code=$2 text=$3 began
    shift 3
    rm -f out.log
    began=$(now_ms)
    start out.log "$@"
    finish "$pid" 10 "$code" "$what"
    local took=$(($(now_ms) - began))
    grep -qE "^atoll[a-z-]*: .*$text" out.log || fail "$what: $(<out.log)"
    (($(wc -l <out.log) == 1)) || fail "$what: more than one line: $(<out.log)"
    ((took < 5500)) || fail "$what: took $took ms"
    echo "$what: $(seconds $took) s, code $code: $(<out.log)"
}
worker() { # LINE FLAGS...
    local line=$1
    shift
    ATOLL_JOIN=$line exec "$BIN/atoll-worker" --data.train="$WORK/data/train_*.bin" "$@"
}
status() { ATOLL_JOIN=$1 exec "$BIN/atoll" status; }

ends 'host does not exist' 2 'not found' worker "tcp://host..name:29600/$key/$key" --name w1
ends 'connection refused' 1 'refused the connection' worker "tcp://127.0.0.1:1/$key/$key" --name w2
ends 'wrong secret' 2 'refused the secret' worker "$endpoint/$server/$key" --name w3
# A service waits for its coordinator, but not for a key that is refused.
ATOLL_SUPERVISED=1 ends 'wrong secret of a service' 2 'refused the secret' worker "$endpoint/$server/$key" --name w3
ends 'key of another coordinator' 2 'does not accept the server key' worker "$endpoint/$key/$secret" --name w4
start relay.log "$BIN/atoll" relay none --to "127.0.0.1:${endpoint##*:}" --control "$WORK/line"
until_true 20 "the relay's address" grep -q '^127' relay.log
echo stall >"$WORK/line"
ends 'nothing answers' 1 'says nothing' worker "tcp://$(grep -m 1 '^127' relay.log)/$keys" --name w5
make_text 5000 >other.txt
"$BIN/atoll" prepare other other.txt >/dev/null 2>&1
ends 'status, wrong secret' 2 'refused the secret' status "$endpoint/$server/$key"
ends 'status, connection refused' 1 'refused the connection' status "tcp://127.0.0.1:1/$key/$key"

# --max-wait: the reason is logged, the worker retries, and a coordinator that comes later is found.
kill -TERM "$coordinator"
finish "$coordinator" 20 75 "the coordinator after SIGTERM"
later() {
    start later.log worker "$line" --name w6 --max-wait 60
    until_true 20 "the reason" grep -q 'retrying: .*refused the connection' later.log
    kill -0 "$pid" || fail "the worker ended: $(<later.log)"
}
later
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run "${overrides[@]}"
coordinator=$pid
until_true 30 "the worker" grep -q 'w6 joined' coordinator.log
(($(grep -c retrying later.log) == 1)) || fail "the worker logs its retries more than once: $(<later.log)"
rm -f out.log
start out.log worker "$line" --name w7 --data.train="$WORK/other/train_*.bin"
finish "$pid" 20 2 'a worker with other data'
grep -qE '^atoll: .*(data|tokens)' out.log || fail "other data: $(<out.log)"
echo "a join says why it fails"
