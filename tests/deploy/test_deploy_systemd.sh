#!/usr/bin/env bash
# deploy/systemd without a running systemd:
# - systemd-analyze verifies the units, and rates their exposure below 3.
# - Their command lines with their environment run and stop as the units expect.
# - The programs use system calls of SystemCallFilter alone, if strace is installed.
# ctest: labels=long timeout=120 waits=1
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
UNITS=$HERE/../../deploy/systemd
[[ $(type -P systemd-analyze || true) ]] || { echo "skipped: systemd-analyze is missing: apt-get install systemd" && exit 77; }

# --- the units, with the programs of this build in place of /usr/bin

mkdir units
for unit in "$UNITS"/*.service; do
    name=${unit##*/}
    sed "s|/usr/bin/|$BIN/|" "$unit" >"units/$name"
    said=$(systemd-analyze verify --man=no "./units/$name" 2>&1) || fail "$name: $said"
    [[ ! $said ]] || fail "$name: $said"
    systemd-analyze security --offline=yes --threshold=30 --no-pager "./units/$name" >security.log 2>&1 ||
        fail "$name is exposed more than 3: $(tail -n 1 security.log)"
    sed -n 's/.*Overall exposure level for/exposure of/p' security.log
done
sed 's/^NoNewPrivileges/NoNewPrivilege/' units/atoll-page.service >units/broken.service
[[ $(systemd-analyze verify --man=no ./units/broken.service 2>&1) == *NoNewPrivilege* ]] || fail "systemd-analyze verify accepts an unknown key"
sed '/^[A-Z].*=yes$/d' units/atoll-page.service >units/open.service
! systemd-analyze security --offline=yes --threshold=30 --no-pager ./units/open.service >/dev/null 2>&1 ||
    fail "a unit without a sandbox is not exposed"

# --- what they start

values() { sed -n "s/^$2=//p" "units/$1.service"; } # UNIT KEY
has() { [[ " $(values "$1" "$2" | tr '\n' ' ') " == *" $3 "* ]] || fail "$1: $2 lacks $3"; }
# service UNIT: runs ExecStart with Environment in the unit's folders. Sets $pid.
service() {
    local unit=$1 words=() env=()
    read -ra words <<<"$(values "$unit" ExecStart | place)"
    read -ra env <<<"$(values "$unit" Environment | tr '\n' ' ' | place)"
    start "$unit.log" env -i PATH=/usr/bin:/bin "${env[@]}" ${TRACE:+strace -f -qq -o "$unit.calls"} "${words[@]}"
}
main_of() { [[ $TRACE ]] && descendants "$1" | sed -n 1p || echo "$1"; } # the program under strace
place() { sed "s|/etc/atoll|$WORK/etc|g; s|/var/lib|$WORK/var|g; s|%H|box|g; s|%d|$WORK/credentials|g; s|tcp://0.0.0.0:29600|tcp://127.0.0.1:*|"; }
TRACE=$(type -P strace || true)
[[ ! $TRACE ]] || strace -qq true 2>/dev/null || TRACE=''
for unit in atoll-coordinator atoll-worker; do
    for code in 2 78; do has $unit RestartPreventExitStatus $code; done
    has $unit SuccessExitStatus 75
    has $unit Restart on-failure
done
make_data
mkdir -p etc var/atoll var/atoll-worker credentials
cp -r data var/atoll-worker/data
service atoll-coordinator
finish "$pid" 10 2 "a coordinator without a configuration"
write_config etc/run.yaml
sed -i 's/max_steps: 60/max_steps: 30000/; s/{listen: [^}]*}/{max_workers: 4}/' etc/run.yaml
echo broken >credentials/join
service atoll-worker
finish "$pid" 10 2 "a worker without a join line"
service atoll-coordinator
coordinator=$pid
until_true 20 "the join line" test -s var/atoll/run/address
cp var/atoll/run/address credentials/join
service atoll-worker
worker=$pid
until_true 60 "20 rounds" rounds_reach 20 var/atoll/run
kill -TERM "$(main_of "$worker")"
finish "$worker" 30 75 "a stopped worker"
kill -TERM "$(main_of "$coordinator")"
finish "$coordinator" 30 75 "a stopped coordinator"
echo broken >var/atoll/run/keys
service atoll-coordinator
finish "$pid" 10 78 "a coordinator with damaged keys"

# --- system calls

if [[ ! $TRACE ]]; then
    echo "system calls not compared: strace is missing, or may not trace here"
    exit 0
fi
calls_of() { # SET: all calls of a set of systemd, also those of the sets in it
    local name
    while read -r name; do
        if [[ $name == @* ]]; then calls_of "$name"; elif [[ $name && $name != '#'* ]]; then echo "$name"; fi
    done < <(systemd-analyze syscall-filter --no-pager "$1" | sed 1d)
}
calls_of @system-service | sort -u >allowed
calls_of @privileged | sort -u >denied
comm -23 allowed denied >left
(($(wc -l <left) > 200)) || fail "the filter has $(wc -l <left) calls"
# arch_prctl and the first execve belong to the start of any program.
cat ./*.calls | sed -nE 's/^[0-9]+ +([a-z_0-9]+)\(.*/\1/p' | sort -u >used
(($(wc -l <used) > 30)) || fail "strace saw $(wc -l <used) calls"
outside=$(comm -23 used left | tr '\n' ' ')
[[ ! $outside ]] || fail "system calls outside of the filter: $outside"
echo "$(wc -l <used) system calls, all in SystemCallFilter"
