#!/usr/bin/env bash
# deploy/kubernetes without a cluster:
# - kubernetes-validate accepts all documents, in its strict form, also the Jobs inside of the JobSet.
# - The pods run as Kubernetes starts them: argv and environment of the files, a user without a name in group 0, without
#   HOME, a read-only root, the volumes of the pod alone. The names and ports are those of the files.
# - A table of exit codes by cause: none of the failures ends with 0.
# - A worker and a coordinator end within 25 s of SIGTERM while a link of 1 Mbit/s is busy.
# ctest: labels=long timeout=600 waits=1
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ ! ${DEPLOY_ALONE:-} ]]; then
    python3 -c 'import yaml' 2>/dev/null || { echo "skipped: python3-yaml is missing" && exit 77; }
    unshare --net --mount --pid --fork --mount-proc true 2>/dev/null || { echo "skipped: needs root and namespaces" && exit 77; }
    # The port of the files is free in a network of its own, and the processes end with this script.
    DEPLOY_ALONE=1 exec unshare --net --mount --pid --fork --mount-proc --kill-child=TERM bash "$0"
fi
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
FILES=$ROOT/deploy/kubernetes
VALIDATE=${KUBERNETES_VALIDATE:-$BIN/../deploy/venv/bin/kubernetes-validate}
pod() { PYTHONDONTWRITEBYTECODE=1 python3 "$ROOT/tests/deploy/pod.py" "$@"; }
python3 -c '
import fcntl, socket, struct
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 1))' || fail "cannot start the loopback interface" # SIOCSIFFLAGS, IFF_UP

# --- validation

for job in coordinator worker; do pod write "$FILES/jobset.yaml" $job >"jobset-$job.yaml"; done
if [[ -x $VALIDATE ]]; then
    "$VALIDATE" --strict "$FILES"/{storage,coordinator,workers}.yaml jobset-*.yaml >validate.log 2>&1 ||
        fail "kubernetes-validate: $(<validate.log)"
    cat validate.log
    (($(grep -c passed validate.log) == 7)) || fail "kubernetes-validate passed $(grep -c passed validate.log) documents, expected 7"
    sed 's/restartPolicy/restartsPolicy/' jobset-worker.yaml >broken.yaml
    ! "$VALIDATE" --strict broken.yaml >/dev/null 2>&1 || fail "kubernetes-validate accepts an unknown field"
else
    echo "not validated: kubernetes-validate is missing; ./run test --all deploy installs it"
fi
# The Jobs of both forms start the same.
for of in "coordinator coordinator keys" "coordinator coordinator coordinator" "workers worker worker"; do
    read -r file job container <<<"$of"
    for what in argv env; do
        cmp <(pod $what "$FILES/$file.yaml" atoll-"$job" "$container") <(pod $what "$FILES/jobset.yaml" "$job" "$container") ||
            fail "$file.yaml and jobset.yaml differ in $what of $container"
    done
done

# --- a root folder as that of the images

root=$WORK/root uid=1000680000
chmod 755 "$WORK"
mkdir -p "$root"/{bin,etc,proc,dev/shm,data,config,keys,atoll,join}
touch "$root"/dev/{null,urandom}
ln -s bin "$root/usr" # /usr/bin/sh
programs=("$BIN"/atoll "$BIN"/atoll-{coordinator,worker})
for tool in sh mkdir cat mv; do programs+=("$(readlink -f "$(type -P $tool)")"); done
for path in $(ldd "${programs[@]}" | sed -nE 's/^\t([^ ]+ => )?(\/[^ ]+) .*/\2/p' | sort -u); do
    mkdir -p "$root$(dirname "$path")" && cp -L "$path" "$root$path"
done
cp "${programs[@]}" "$root/bin/"
ln -sf "$(basename "$(readlink -f "$(type -P sh)")")" "$root/bin/sh" 2>/dev/null || true
echo '127.0.0.1 localhost atoll' >"$root/etc/hosts"
mkdir run-volume workers-volume secrets config
chown 0:10001 run-volume workers-volume && chmod 2775 run-volume workers-volume # what fsGroup does

cat >inside.sh <<'IN'
set -eu
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
for device in null urandom; do mount --bind /dev/$device "$root/dev/$device"; done
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm" -o mode=1777
for volume in $2; do mount --bind "${volume%%:*}" "$root${volume#*:}"; done
mount -o remount,bind,ro "$root"
for volume in $2; do case $volume in */secrets:* | */config:*) mount -o remount,bind,ro "$root${volume#*:}" ;; esac; done
shift 2
IN
echo "exec $(type -P chroot) --userspec=$uid:0 --groups=0,10001 \"\$root\" \"\$@\"" >>inside.sh

# container LOG FILE JOB CONTAINER [PROBE | --OPTION=VALUE...]: starts a container of a pod; an option takes the place of that in
# the file. Sets $pid, whose exit code is that of the container.
container() {
    local log=$1 file=$FILES/$2.yaml job=$3 name=$4 probe='' word i argv env volumes="$WORK/run-volume:/data $WORK/config:/config"
    shift 4
    [[ ${1:-} != *Probe ]] || { probe=$1 && shift; }
    mapfile -t -d '' argv < <(pod argv "$file" "$job" "$name" ${probe:+"$probe"})
    mapfile -t -d '' env < <(pod env "$file" "$job" "$name")
    for word; do
        for i in "${!argv[@]}"; do [[ ${argv[i]} != "${word%%=*}="* ]] || unset "argv[i]"; done
    done
    [[ $name != keys ]] || volumes+=" $WORK/secrets:/keys"
    [[ $name != worker ]] || volumes="$WORK/workers-volume:/atoll $WORK/secrets:/join"
    start "$log" env -i PATH=/bin HOSTNAME="$job-x7k2p" "${env[@]}" unshare --mount --pid --fork --kill-child \
        "$BASH" "$WORK/inside.sh" "$root" "$volumes" "${argv[@]}" "$@"
}
first_of() { descendants "$1" | sed -n 1p; } # the container's process 1
keys() { container keys.log coordinator atoll-coordinator keys && finish "$pid" 10 0 "the container keys"; }
coordinator() { container coordinator.log coordinator atoll-coordinator coordinator "$@" && coordinator=$pid; }
worker() { container worker.log workers atoll-worker worker "$@" && worker=$pid; }
probe() { # NAME CODE
    local began
    began=$(now_ms)
    container probe.log coordinator atoll-coordinator coordinator "$1"
    finish "$pid" 25 "$2" "$1"
    echo "$1: exit code $2 after $(($(now_ms) - began)) ms"
}
listens() { "$BIN/atoll" status "$join" >/dev/null 2>&1; }

# --- the commands of coordinator.yaml

make_data
mkdir workers-volume/data && cp data/* workers-volume/data/
"$BIN/atoll" keygen atoll-run --coordinator atoll >secrets/join
join=$(sed s/atoll:/127.0.0.1:/ secrets/join)
cp atoll-run/keys secrets/keys
chown -R 0:10001 secrets && chmod 440 secrets/*
write_config config/run.yaml
sed -i 's/max_steps: 60/max_steps: 600/; s/listen: [^}]*/max_workers: 8/' config/run.yaml
chmod 644 config/run.yaml

probe startupProbe 1
keys
[[ $(stat -c %a run-volume/run/keys) == 600 ]] || fail "the mode of the keys is $(stat -c %a run-volume/run/keys)"
coordinator
until_true 20 "the coordinator" listens
for name in startupProbe livenessProbe; do probe $name 0; done # while it waits for workers
worker
held=$worker
sleep 1
probe livenessProbe 0
POD_INDEX=1 worker
finish "$coordinator" 120 0 "the coordinator"
finish "$held" 20 0 "worker 0" && finish "$worker" 20 0 "worker 1"
! grep -q 'can read the join line' worker.log || fail "a warning about the mode of the Secret"
[[ $(stat -c %u:%g run-volume/run/journal) == $uid:* ]] || fail "the journal belongs to $(stat -c %u:%g run-volume/run/journal)"
probe livenessProbe 0 # of a run that is done

# --- exit codes by cause

printf '\n%-11s | %-44s | code | Job\n' pod cause >table
row() { # POD CODE CAUSE
    local job=atoll-$1 file=coordinator
    (($2 != 0)) || [[ $3 == 'the run is done' ]] || fail "$3 ends with 0"
    [[ $1 == coordinator ]] || file=workers
    printf '%-11s | %-44s | %4d | %s\n' "$1" "$3" "$2" "$(pod action "$FILES/$file.yaml" "$job" "$2")" >>table
}
cause() { # POD CODE CAUSE: waits for $pid
    finish "$pid" 30 "$2" "$1: $3"
    row "$@"
}
killed() { # PID: kills a container. Some versions of unshare do not pass the signal on as 137.
    kill -KILL "$(first_of "$1")"
    wait "$1" && fail "a killed container ended with 0"
    ended "$1"
}
again() { rm -rf run-volume/run workers-volume/workers && keys && coordinator "$@"; }

again --coordinator.min_workers=1
worker
cause worker 0 "the run is done"
pid=$coordinator
cause coordinator 0 "the run is done"
again && until_true 20 "the coordinator" listens
kill -TERM "$(first_of "$coordinator")"
cause coordinator 75 "SIGTERM: a drained node"
coordinator && until_true 20 "the coordinator" listens
killed "$coordinator"
row coordinator 137 "SIGKILL: out of memory"
again --train.sync_every=-1
cause coordinator 2 "a wrong setting"
mv config/run.yaml config/hidden && again
cause coordinator 2 "run.yaml is missing"
mv config/hidden config/run.yaml && again && until_true 20 "the coordinator" listens
first=$coordinator
coordinator
cause coordinator 78 "another pod has the run folder"
killed "$first"
echo broken >run-volume/run/keys && coordinator
cause coordinator 78 "damaged keys"
again && until_true 20 "the coordinator" listens
kill -TERM "$(first_of "$coordinator")" && finish "$coordinator" 10 75 "the coordinator"
chmod 500 run-volume/run && coordinator
cause coordinator 1 "the run folder is not writable"
chmod 700 run-volume/run
mount -t tmpfs -o size=24k,uid=$uid,mode=700 tmpfs run-volume
keys && coordinator
cause coordinator 78 "a full volume"
umount run-volume && coordinator && until_true 20 "the coordinator" listens
kill -TERM "$(first_of "$coordinator")" && finish "$coordinator" 10 75 "the coordinator"

mv workers-volume/data workers-volume/hidden && worker
cause worker 2 "no token shards"
mv workers-volume/hidden workers-volume/data && worker --max-wait=5
cause worker 75 "no coordinator for --max-wait"
mv secrets/join secrets/hidden && echo atoll >secrets/join && worker
cause worker 2 "the Secret holds no join line"
sed 's/atoll:29600/nowhere.invalid:29600/' secrets/hidden >secrets/join && worker --max-wait=5
cause worker 75 "the coordinator's name does not exist"
mv secrets/hidden secrets/join && coordinator && until_true 20 "the coordinator" listens
"$BIN/atoll" keygen other --coordinator atoll >secrets/other
chown 0:10001 secrets/other && chmod 440 secrets/other
worker --join=/join/other
cause worker 2 "the join line of another run"
worker && sleep 1 && kill -TERM "$(first_of "$worker")"
cause worker 75 "SIGTERM: a drained node"
worker && sleep 1 && killed "$worker"
row worker 137 "SIGKILL: out of memory"
"$BIN/atoll" revoke run-volume/run worker-0 >revoke.log || fail "revoke: $(<revoke.log)" # by root, as the folder's owner
[[ $(stat -c %u run-volume/run/worker-keys) == "$uid" ]] || fail "root took the list of workers from its coordinator"
worker
cause worker 2 "revoked"
kill -TERM "$(first_of "$coordinator")" && finish "$coordinator" 10 75 "the coordinator"
cat table

# --- SIGTERM while a link of 1 Mbit/s is busy: the grace of the pods has to be longer

grace=$(pod grace "$FILES/workers.yaml" atoll-worker)
((grace >= 30)) || fail "terminationGracePeriodSeconds is $grace"
sed -e 's/n_layer: 1, n_head: 2, n_embd: 16/n_layer: 4, n_head: 4, n_embd: 192/' -e 's/sync_every: 5/sync_every: 2/' config/run.yaml >slow.yaml
stop() { # PID WHAT: the seconds from SIGTERM to its end with 75
    local began
    began=$(now_ms)
    kill -TERM "$1"
    finish "$1" 25 75 "$2"
    echo "SIGTERM: $2 ended after $(seconds $(($(now_ms) - began))) s"
}
doing() { grep -Eq "$1" <<<"$("$BIN/atoll" status slow 2>/dev/null || true)"; }
begin() { # MESSAGE: slow processes, until status says what the worker does
    rm -rf slow slow-worker relayed
    start slow.log "$BIN/atoll-coordinator" slow.yaml --dir slow --coordinator.listen='tcp://127.0.0.1:*' "${@:2}"
    coordinator=$pid
    until_true 20 "the address" test -s slow/address
    start relay.log "$BIN/atoll" relay 1mbit,rtt=20ms --join slow --join-file relayed
    relay=$pid
    until_true 20 "the relay" test -s relayed
    start slow-worker.log "$BIN/atoll-worker" --join relayed --dir slow-worker --data.train="$WORK/data/train_*.bin"
    worker=$pid
    until_true 150 "$1" doing "$1"
}
end() {
    kill "$relay"
    wait "$relay" 2>/dev/null || true
    ended "$relay"
}
begin 'sending delta, [5-9] %'
stop "$worker" "a worker in an upload of 7 MB"
stop "$coordinator" "its coordinator"
end
begin 'sending delta, [5-9] %'
stop "$coordinator" "a coordinator in that upload"
stop "$worker" "its worker, without a coordinator"
end
begin 'receiving update, [5-9] %' --codec.up=1bit
stop "$worker" "a worker in a download of 7 MB"
stop "$coordinator" "its coordinator"
end
start launch.log "$BIN/atoll" launch slow.yaml --workers 2 --dir launched --link 1mbit --coordinator.listen='tcp://127.0.0.1:*'
launch=$pid
until_true 60 "an upload of both workers" grep -q 'waiting for the upload' launch.log
stop "$launch" "atoll launch with two such workers"
