#!/usr/bin/env bash
# atoll workers, atoll revoke and atoll keygen without a running coordinator: list, results and errors.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

verb() { # CODE PATTERN VERB...: runs atoll VERB; checks the exit code and one pattern in the output
    local want=$1 pattern=$2 code=0
    shift 2
    "$BIN/atoll" "$@" >out.txt 2>&1 || code=$?
    ((code == want)) || fail "atoll $*: exit code $code, expected $want: $(<out.txt)"
    grep -Eq -- "$pattern" out.txt || fail "atoll $*: no '$pattern' in: $(<out.txt)"
}

make_data
write_config run.yaml
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir run
until_true 30 "the address" test -s run/address
kill "$pid"
finish "$pid" 30 75 coordinator
cp run/keys keys.before

key=$(printf 'ab%.0s' {1..32})
verb 0 '^name +state +since +key$' workers run
verb 0 '^enrolled one$' workers run --add one "$key"
verb 0 "^one +enrolled +2.* $key\$" workers run
verb 2 'needs the public key' workers run --add two "${key}0"
verb 2 'a key needs --add NAME' workers run "$key"
verb 2 'a name has 1 to 63 bytes' workers run --add '' "$key"
verb 2 'give one of them' workers run --add one --readmit one "$key"
verb 0 '^readmitted one$' workers run --readmit one
verb 2 "no enrolled worker 'two'" workers run --readmit two
verb 2 "no enrolled worker 'two'" revoke run two
cmp -s keys.before run/keys || fail "a revoke that failed changed the keys"
verb 0 'revoked 1 key of one' revoke run one
cmp -s keys.before run/keys && fail "a revoke kept the secret of the join line"
[[ $(head -n 2 keys.before) == "$(head -n 2 run/keys)" ]] || fail "a revoke changed the key of the coordinator"
verb 0 '^one +revoked' workers run
verb 2 "no enrolled worker 'one'" revoke run one
verb 1 "'one' was revoked" workers run --add one "$key"
verb 1 'is not a run folder' workers nowhere
verb 1 'is not a run folder' revoke data one
echo nonsense >>run/worker-keys
verb 1 'worker-keys, line 2: expected KEY STATE' workers run

verb 0 '^[0-9a-f]{64}$' keygen box
[[ $(stat -c %a box/key) == 600 ]] || fail "the key of a worker has mode $(stat -c %a box/key)"
cp out.txt first.txt
verb 0 '^[0-9a-f]{64}$' keygen box
cmp -s out.txt first.txt || fail "keygen replaced the key"
verb 2 'is the folder of a run' keygen run

# The keys of a run before its coordinator starts.
verb 0 '^tcp://atoll.example:29600/[0-9a-f]{64}/[0-9a-f]{64}$' keygen next --coordinator atoll.example
[[ $(stat -c %a next/keys) == 600 ]] || fail "the keys of a run have mode $(stat -c %a next/keys)"
cp next/keys keys.before
verb 0 '^tcp://127.0.0.1:5/' keygen next --coordinator 127.0.0.1:5
cmp -s keys.before next/keys || fail "keygen replaced the keys of a run"
verb 2 '--coordinator: ' keygen next --coordinator 'host:port'
verb 2 'data' keygen data --coordinator atoll.example
[[ ! -e data/keys ]] || fail "keygen wrote keys into the data"
start coordinator.log "$BIN/atoll-coordinator" run.yaml --dir next
until_true 30 "the address" test -s next/address
line=$("$BIN/atoll" keygen next --coordinator "$(sed -nE 's|^tcp://([^/]*)/.*|\1|p' next/address)")
[[ $line == "$(<next/address)" ]] || fail "the join line of keygen is $line, that of the coordinator $(<next/address)"
verb 0 'waiting' status "$line"
kill "$pid"
finish "$pid" 30 75 coordinator
echo "workers, revoke, keygen: as documented"
