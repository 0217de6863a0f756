#!/usr/bin/env bash
# The coordinator's container (coordinator/Dockerfile), without an engine for it: what is copied into the image is enough to
# configure the build, the packages named are those that the programs link, and the coordinator runs as it does there:
# process 1 of its own processes, a user without a name, one folder that can be written, an address that is not its own.
# Workers join from outside; a stopped container goes on where it was.
# ctest: timeout=300
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh
# shellcheck source=tests/e2e/cluster.sh
source "$HERE/cluster.sh"
ROOT=$(cd "$HERE/../.." && pwd)
dockerfile=$ROOT/coordinator/Dockerfile

# --- the build stage has all that its commands need
mkdir src
while read -r -a words; do # COPY FROM... TO
    for path in "${words[@]:1:${#words[@]}-2}"; do cp -r "$ROOT/$path" src/; done
done < <(sed -n '/^FROM.* AS build/,/^FROM [^ ]*$/p' "$dockerfile" | grep '^COPY ')
[[ -e src/CMakeLists.txt ]] || fail "no COPY of the build stage was found in $dockerfile"
(cd src && cmake --preset release -DATOLL_CUDA=OFF -DBUILD_TESTING=OFF) >configure.log 2>&1 ||
    fail "what the Dockerfile copies does not configure: $(tail -n 5 configure.log)"
grep -q 'atoll-coordinator' src/build/cmake_install.cmake || fail "cmake --install leaves atoll-coordinator out"

# --- the last stage has the libraries
libraries=$(ldd "$BIN/atoll-coordinator" "$BIN/atoll" | sed -nE 's/^\t[^ ]+ => ([^ ]+) .*/\1/p' | sort -u)
if command -v dpkg-query >/dev/null; then
    last=$(sed -n '/^FROM [^ ]*$/,$p' "$dockerfile")
    for library in $(readelf -d "$BIN/atoll-coordinator" "$BIN/atoll" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' | sort -u); do
        path=$(grep -F "/$library" <<<"$libraries" | sed -n 1p)
        package=$({ dpkg-query -S "$(readlink -f "$path")" "$path" 2>/dev/null || true; } | sed -n 's/[:,].*//p' | sed -n 1p)
        [[ -n $package && $package != libc6 ]] || continue # built by hand, or there anyway
        grep -qw -e "${package/%t64/}" <<<"$last" || fail "$library is of package $package: the Dockerfile's last stage lacks it"
    done
fi

# --- as process 1 in a root of its own
if ((EUID != 0)) || ! unshare --mount --pid --fork true 2>unshare.log; then
    echo "skipped: root and namespaces are needed for the rest: $(cat unshare.log 2>/dev/null)"
    exit 77
fi
root=$WORK/root
mkdir -p "$root"/{data,bin,proc,dev,tmp}
chmod 755 "$WORK" # the container's user walks through it
touch "$root/dev/null" "$root/dev/urandom"
loader=$(readelf -l "$BIN/atoll" | sed -nE 's/.*interpreter: (.*)\]/\1/p')
for path in $libraries "$loader"; do mkdir -p "$root$(dirname "$path")" && cp -L "$path" "$root$path"; done
cp "$BIN/atoll-coordinator" "$BIN/atoll" "$root/bin/"
chown 10001:10001 "$root/data"
make_data
write_config "$root/run.yaml" train.sync_every=5 train.max_steps=5000 coordinator.min_workers=2 train.eval_every=0
user=$(sed -n 's/^USER //p' "$dockerfile")
listen=$(sed -n 's/^ENV ATOLL_COORDINATOR_LISTEN=//p' "$dockerfile")

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

# As ENTRYPOINT has it, but for the port: sets $container, which ends as the container does, and $first, process 1 of it.
container_start() {
    start coordinator.log env -i ATOLL_COORDINATOR_LISTEN="${listen%:*}:*" unshare --mount --pid --fork --kill-child \
        bash inside.sh "$root" "$user" /bin/atoll-coordinator --dir /data /run.yaml "${overrides[@]}" \
        --coordinator.advertise=127.0.0.1
    container=$pid
    until_true 20 "the container's process 1" first_is_there
}

worker_start() { # name
    start "$1.log" "$BIN/atoll-worker" --join "$join" --dir "$1" --name "$1" --data.train="$WORK/data/train_*.bin" \
        --data.val="$WORK/data/val_*.bin" --train.threads=1
    node_pid[$1]=$pid
}

container_start
until_true 20 "the join line" grep -q 'join with' coordinator.log
[[ $(sed -nE 's/^NSpid:.*\s([0-9]+)$/\1/p' "/proc/$first/status") == 1 ]] || fail "the coordinator is not process 1"
[[ $(sed -nE 's/^Uid:\s([0-9]+)\s.*/\1/p' "/proc/$first/status") == "${user%:*}" ]] || fail "the coordinator is not user $user"
join=$(sed -n 2p "$root/data/address")
[[ $join == tcp://127.0.0.1:*/*/* ]] || fail "the second line of address is not what coordinator.advertise says: $join"
grep -qF -- "--join $join " coordinator.log || fail "the join line is not that of coordinator.advertise"
worker_start worker-0
worker_start worker-1
until_true 60 "10 rounds" rounds_reach 10 "$root/data"
kill -STOP "${node_pid[worker-1]}" # the run does not end while it is looked at
chroot --userspec="$user" "$root" /bin/atoll status /data >status.log 2>&1 || fail "atoll status in it: $(<status.log)"
grep -q 'worker-1' status.log || fail "atoll status does not name the workers: $(<status.log)"

# --- docker stop, docker start
kill -TERM "$first"
finish "$container" 10 75 "the container that was stopped"
stopped=$(rounds_done "$root/data")
container_start
kill -CONT "${node_pid[worker-1]}"
until_true 60 "a round after that" rounds_reach $((stopped + 1)) "$root/data"
node_pid[container]=$container
nodes_finish 250
(($(rounds_done "$root/data") == 1000)) || fail "$(rounds_done "$root/data") rounds, expected 1000"
for made in journal summary.json keys; do
    [[ $(stat -c %u "$root/data/$made") == "${user%:*}" ]] || fail "$made is not of the container's user"
done
