#!/usr/bin/env bash
# The images of deploy/images/Dockerfile, built by buildah on a Debian that debootstrap makes:
# - Each is less than 120 MB larger than its base, and runs as its user and as another one of group 0.
# - With the toolkit of this machine in BUILD_BASE, the image of a worker has the CUDA back end.
# - A coordinator and a worker in images and a worker of this machine train together.
# - deploy/compose.yaml starts a coordinator, its page and two workers, which train, under podman-compose.
# ctest: labels=long timeout=2400 serial=1
set -euo pipefail
# shellcheck source=tests/deploy/roots.sh
source tests/deploy/roots.sh
[[ $(type -P buildah || true) ]] || skip "buildah is missing: apt-get install buildah"
in_namespaces 6 "$0"
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
# shellcheck source=tests/deploy/engine.sh
source "$HERE/../deploy/engine.sh"
ROOT=$(cd "$HERE/../.." && pwd)
engine_start

# --- the images

make_root trixie base
image_of_root base docker.io/library/debian:trixie-slim # the Dockerfile's default
rm -rf --one-file-system base
copy_tree source

# build NAME TARGET [OPTION...]: builds an image and checks its size.
build() {
    local began=$SECONDS more name=$1
    buildah bud -q --network host --layers --format docker -f deploy/images/Dockerfile --target "$2" -t "$name" "${@:3}" source >"$name.log" 2>&1 ||
        fail "buildah cannot build the image $name"
    more=$((($(kilobytes "localhost/$name") - $(kilobytes docker.io/library/debian:trixie-slim)) / 1000))
    ((more < 120)) || fail "the image $name is $more MB larger than its base"
    echo "image $name: $more MB above its base, built in $((SECONDS - began)) s"
}
build atoll-coordinator coordinator
build atoll-worker worker

# --- an image with the CUDA back end. The toolkit is mounted: as an image it would take gigabytes of memory.

chmod 755 "$WORK"
make_data
toolkit=$(readlink -f /usr/local/cuda || true)
if [[ -x $toolkit/bin/nvcc ]]; then
    buildah from --name toolkit docker.io/library/debian:trixie-slim >/dev/null
    buildah run --network host toolkit -- sh -c "apt-get -q update && apt-get -qy install --no-install-recommends g++ && { [ '$toolkit' = /usr/local/cuda ] || ln -s '$toolkit' /usr/local/cuda; }" >toolkit.log 2>&1 ||
        fail "apt cannot install g++"
    buildah commit -q --rm toolkit localhost/toolkit >/dev/null
    build atoll-worker-cuda worker --build-arg BUILD_BASE=localhost/toolkit --build-arg CUDA_ARCHS=90 --volume "$toolkit:$toolkit:ro"
    write_config gpu.yaml
    buildah from --name gpu localhost/atoll-worker-cuda >/dev/null
    ! buildah run -v "$WORK/data:$WORK/data:ro" -v "$WORK/gpu.yaml:/gpu.yaml:ro" gpu -- atoll launch /gpu.yaml --workers 1 --dir /data/gpu --train.devices=cuda >gpu.log 2>&1 ||
        fail "a worker trains on a GPU without a driver"
    grep -q 'no NVIDIA driver' gpu.log || fail "a worker without a driver says: $(<gpu.log)"
else
    echo "image atoll-worker-cuda: not built, because this machine has no CUDA Toolkit"
fi

# --- a run with a coordinator and a worker in images, and a worker of this machine

# container NAME IMAGE USER WORD...: starts an image's ENTRYPOINT with WORD... in the background; its /data is the folder NAME.
container() {
    local name=$1 image=$2 user=$3 words
    shift 3
    mapfile -t words < <(of_image "localhost/$image" Entrypoint)
    buildah from --name "$name" "localhost/$image" >/dev/null
    buildah config --volume /data- "$name" # buildah mounts an empty folder over the one below
    start "$name.log" buildah run --user "$user" -v "$WORK/$name:/data" -v "$WORK/data:/tokens:ro" -v "$WORK/run.yaml:/run.yaml:ro" "$name" \
        -- "${words[@]}" "$@"
}

write_config run.yaml train.sync_every=5 train.max_steps=200 coordinator.min_workers=3
[[ $(of_image localhost/atoll-coordinator Env) == *ATOLL_SUPERVISED=container* ]] || fail "an image ends with any code"
# The owner of /data in the image is the owner of a new volume; OpenShift gives a user of its own the group 0.
mkdir -m 2770 coordinator one two
chown 10001:0 coordinator one
chgrp 0 two
container coordinator atoll-coordinator 10001:0 /run.yaml --data.train='/tokens/train_*.bin' --data.val='/tokens/val_*.bin' "${overrides[@]}"
coordinator=$pid
until_true 30 "the join line" test -s coordinator/address
tail -n 1 coordinator/address >one/join
tail -n 1 coordinator/address >two/join
chmod 640 one/join two/join
chown 10001:0 one/join
container one atoll-worker 10001:0 --name one --join /data/join --data.train='/tokens/train_*.bin'
one=$pid
container two atoll-worker 1234567890:0 --name two --join /data/join --data.train='/tokens/train_*.bin'
two=$pid
start host.log "$BIN/atoll-worker" --dir host --name host --join coordinator --data.train="$WORK/data/train_*.bin"
host=$pid
finish $host 120 0 "the worker of this machine"
finish "$one" 20 0 "the worker in an image"
finish "$two" 20 0 "the worker in an image with another user"
finish "$coordinator" 20 0 "the coordinator in an image"
[[ $(json get coordinator/summary.json workers) == 3 ]] || fail "not all workers trained: $(<coordinator/summary.json)"
for name in one two host; do grep -q "\"worker\": *\"$name\"" coordinator/metrics.jsonl || fail "no step of worker $name"; done
[[ $(stat -c %u two/key) == 1234567890 && $(stat -c %u:%a one/key) == 10001:600 ]] || fail "a worker's files have another owner"
echo "a coordinator, a worker and a worker of user 1234567890 in images, and a worker of this machine: $(rounds_done coordinator) rounds together"

# --- deploy/compose.yaml

PATH=$BIN/../deploy/venv/bin:$PATH # ./run test --all deploy installs podman-compose there
for name in podman podman-compose; do
    [[ $(type -P $name || true) ]] || skip "the rest needs podman and podman-compose 1.3: $name is missing"
done
podman-compose --version 2>&1 | grep -qE 'version:? 1\.([3-9]|[1-9][0-9])' || skip "the rest needs podman-compose 1.3"

cat >compose.sh <<'SH'
set -eu
ip link set lo up
cd source
export ATOLL_TEXT=$1/text
began=$(date +%s%3N)
podman-compose -f deploy/compose.yaml up -d --no-build </dev/null
until_logged() { # REGEX
    until podman logs atoll_coordinator_1 2>&1 | grep "$1" >/dev/null; do
        [ $(($(date +%s%3N) - began)) -lt 240000 ] || exit 1
        sleep 0.2
    done
}
until_logged '^round  *1/'
echo "first joint step after $(($(date +%s%3N) - began)) ms"
python3 - "$(podman exec atoll_page_1 cat /data/page-token)" <<'PY'
import json, sys, time, urllib.request
request = urllib.request.Request("http://127.0.0.1:9600/status.json", headers={"Authorization": "Bearer " + sys.argv[1]})
for _ in range(100):
    try:
        status = json.load(urllib.request.urlopen(request, timeout=5))
        if {worker["name"] for worker in status["workers"]} == {"worker-1", "worker-2"}:
            sys.exit()
    except OSError as error:
        print(error)
    time.sleep(0.2)
sys.exit("the page does not show two workers")
PY
podman exec atoll_coordinator_1 atoll status /data
podman exec atoll_worker-1_1 ls -A /shared /data
podman-compose -f deploy/compose.yaml stop -t 20
[ "$(podman wait atoll_coordinator_1)" = 75 ]
podman-compose -f deploy/compose.yaml up -d --no-build </dev/null
until_logged 'continuing the run'
podman-compose -f deploy/compose.yaml down --volumes
[ -z "$(podman volume ls -q)" ]
SH
mkdir text
make_text 300000 >text/text.txt
unshare --net timeout -k 10 300 bash compose.sh "$WORK" >compose.log 2>&1 || fail "deploy/compose.yaml: $(tail -n 40 compose.log)"
grep -E 'first joint step' compose.log
