#!/usr/bin/env bash
# The coordinator's container (deploy/images/Dockerfile), without a container engine:
# - The files that the Dockerfile copies suffice to configure the build of the packages.
# - The coordinator runs as in the container: process 1, a user without a name, one writable folder,
#   coordinator.advertise.
# - Workers join from outside. A stopped container continues its run after a restart.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"
ROOT=$(cd "$HERE/../.." && pwd)
dockerfile=$ROOT/deploy/images/Dockerfile

# --- build stage
mkdir src
while read -r -a words; do # COPY FROM... TO
    to=src/${words[-1]}
    [[ $to != */ ]] || mkdir -p "$to"
    for path in "${words[@]:1:${#words[@]}-2}"; do cp -r "$ROOT/$path" "$to"; done
done < <(sed -n '/^FROM .* AS build/,/^FROM .* AS programs/p' "$dockerfile" | grep '^COPY ')
[[ -e src/CMakeLists.txt ]] || fail "the build stage of $dockerfile has no COPY"
src/run help >help.log 2>&1 || fail "./run lacks a file: $(<help.log)"
(cd src && cmake --preset deb -DATOLL_CUDA=OFF) >configure.log 2>&1 ||
    fail "cmake cannot configure the copied files: $(tail -n 5 configure.log)"
grep -q 'atoll-coordinator' src/build/deb/cmake_install.cmake || fail "the packages lack atoll-coordinator"

# --- the coordinator as process 1 in its own root
if ((EUID != 0)) || ! unshare --mount --pid --fork true 2>unshare.log; then
    echo "skipped: the rest needs root and namespaces: $(cat unshare.log 2>/dev/null)"
    exit 77
fi
root=$WORK/root
mkdir -p "$root"/{data,bin,proc,dev,tmp}
chmod 755 "$WORK" # the container's user needs access to the path
touch "$root/dev/null" "$root/dev/urandom"
libraries=$(ldd "$BIN/atoll-coordinator" "$BIN/atoll" | sed -nE 's/^\t[^ ]+ => ([^ ]+) .*/\1/p' | sort -u)
loader=$(readelf -l "$BIN/atoll" | sed -nE 's/.*interpreter: (.*)\]/\1/p')
for path in $libraries "$loader"; do mkdir -p "$root$(dirname "$path")" && cp -L "$path" "$root$path"; done
cp "$BIN/atoll-coordinator" "$BIN/atoll" "$root/bin/"
make_data
write_config "$root/run.yaml" train.sync_every=5 train.max_steps=5000 coordinator.min_workers=2 train.eval_every=0
user=$(sed -n 's/^USER //p' "$dockerfile")
listen=$(sed -n 's/^ENV ATOLL_COORDINATOR_LISTEN=//p' "$dockerfile")
chown "$user" "$root/data"
chmod "$(sed -nE 's/.*mkdir -m ([0-7]+) \/data.*/\1/p' "$dockerfile")" "$root/data"
supervised=$(sed -n 's/^ENV ATOLL_SUPERVISED=//p' "$dockerfile")

cat >inside.sh <<'SH'
set -eu
root=$1 user=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
for kept in data dev/null dev/urandom; do mount --bind "$root/$kept" "$root/$kept"; done
mount --bind /dev/null "$root/dev/null"
mount --bind /dev/urandom "$root/dev/urandom"
mount -t proc proc "$root/proc"
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" "$@"
SH

first_is_there() {
    first=$(descendants "$container" | sed -n 1p)
    [[ $(cat "/proc/$first/comm") == atoll-coordinat* ]]
}

first_is_there_or_ended() { first_is_there || ! kill -0 "$container"; }

# Starts the ENTRYPOINT with another port and these arguments. Sets $container (its exit code is the container's) and $first (process 1 in
# it).
container_start() {
    start "${log:-coordinator.log}" env -i ATOLL_COORDINATOR_LISTEN="${listen%:*}:*" ATOLL_SUPERVISED="$supervised" unshare --mount --pid --fork --kill-child \
        bash inside.sh "$root" "$user" /bin/atoll-coordinator --dir /data /run.yaml "${overrides[@]}" \
        --coordinator.advertise=127.0.0.1 "$@"
    container=$pid
    until_true 20 "the container's process 1, or its end" first_is_there_or_ended
}

worker_start() { # NAME
    ATOLL_JOIN=$join start "$1.log" "$BIN/atoll-worker" --dir "$1" --name "$1" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --train.threads=1
    node_pid[$1]=$pid
}

# --- what a restart cannot help ends with 0, which no engine restarts
for wrong in --no-such-option --train.max_steps=many --coordinator.listen=tcp://192.0.2.1:1; do
    rm -f wrong.log
    log=wrong.log container_start "$wrong"
    finish "$container" 10 0 "a container with $wrong"
    grep -q 'exit code 0 instead of 2' wrong.log || fail "unexpected lines with $wrong: $(<wrong.log)"
    [[ -z $(ls "$root/data") ]] || fail "a failed start leaves files: $(ls "$root/data")"
done

container_start
until_true 20 "the join line" grep -q 'join with' coordinator.log
[[ $(sed -nE 's/^NSpid:.*\s([0-9]+)$/\1/p' "/proc/$first/status") == 1 ]] || fail "the coordinator is not process 1"
[[ $(sed -nE 's/^Uid:\s([0-9]+)\s.*/\1/p' "/proc/$first/status") == "${user%:*}" ]] ||
    fail "the coordinator is not user $user"
join=$(sed -n 2p "$root/data/address")
[[ $join == tcp://127.0.0.1:*/*/* ]] || fail "the second line of address ignores coordinator.advertise: $join"
! grep -qF -- "${join##*/}" coordinator.log || fail "the log of the container holds the secret of the join line"
worker_start worker-0
worker_start worker-1
until_true 60 "10 rounds" rounds_reach 10 "$root/data"
kill -STOP "${node_pid[worker-1]}" # holds the run during the inspection
chroot --userspec="$user" "$root" /bin/atoll status /data >status.log 2>&1 ||
    fail "atoll status in the container: $(<status.log)"
grep -q 'worker-1' status.log || fail "atoll status lacks the name of a worker: $(<status.log)"

# --- docker stop, docker start
kill -TERM "$first"
finish "$container" 10 75 "the stopped container"
stopped=$(rounds_done "$root/data")
container_start
kill -CONT "${node_pid[worker-1]}"
until_true 60 "a round after the restart" rounds_reach $((stopped + 1)) "$root/data"
node_pid[container]=$container
nodes_finish 250
(($(rounds_done "$root/data") == 1000)) || fail "$(rounds_done "$root/data") rounds, expected 1000"
for made in journal summary.json keys; do
    [[ $(stat -c %u "$root/data/$made") == "${user%:*}" ]] || fail "$made does not belong to the container's user"
done
