#!/usr/bin/env bash
# The packages of ./run package, in Debian roots:
# - They are built in a minimal root, which needs apt and network alone. A second call gives the same bytes.
# - atoll installs into a bare root by apt. The network example of README.md then trains, without a compiler.
# - libatoll-dev suffices to build examples/library.c with pkg-config and with CMake.
# - atoll-cuda, with the toolkit of this machine: it installs without the toolkit, and a worker says what it lacks.
# - Removing a package leaves no file.
# ctest: labels=long timeout=2400 serial=1
set -euo pipefail
# shellcheck source=tests/deploy/roots.sh
source tests/deploy/roots.sh
in_namespaces 6 "$0"
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1
ROOT=$(cd "$HERE/../.." && pwd)

# build SUITE: makes the root $1 (bare) and the root build.$1, with the packages in its /src/build/packages.
build() {
    local suite=$1 cuda=()
    make_root "$suite" "$suite"
    cp -a "$suite" "build.$suite"
    copy_tree "build.$suite/src"
    if [[ $suite == trixie && -x /usr/local/cuda/bin/nvcc ]]; then
        cuda=(ATOLL_CUDA_ARCHS=90)
        mkdir -p "build.$suite/usr/local/cuda"
        mount --bind "$(readlink -f /usr/local/cuda)" "build.$suite/usr/local/cuda"
        mount -o remount,bind,ro "build.$suite/usr/local/cuda"
        in_root "build.$suite" sh -c 'apt-get -q update && apt-get -qy install --no-install-recommends g++' >gxx.log 2>&1 || fail "apt cannot install g++"
    fi
    in_root "build.$suite" env "${cuda[@]}" sh -c 'cd /src && ./run package deb' >"package.$suite.log" 2>&1 || fail "./run package deb on $suite"
    (cd "build.$suite/src/build/packages" && sha256sum ./*) >"sums.$suite"
    in_root "build.$suite" env "${cuda[@]}" sh -c 'cd /src && ./run package deb' >>"package.$suite.log" 2>&1 || fail "./run package deb again on $suite"
    (cd "build.$suite/src/build/packages" && sha256sum --quiet -c "$WORK/sums.$suite") || fail "equal sources give other packages"
    if ((${#cuda[@]})); then umount "build.$suite/usr/local/cuda"; fi
}

# network_example FOLDER: prints the commands of "Over a network" in README.md, with BOX replaced by this machine.
network_example() {
    sed -n '/^## Over a network/,/^## /p' "$ROOT/README.md" | sed -n 's/^    //p' | sed -E 's/ssh BOX/sh -c/'
}

# joint_step SUITE: apt installs the package, two workers train; prints the seconds until the first round is complete.
joint_step() {
    local root=$1 began
    mkdir -p "$root/debs"
    cp "build.$1/src/build/packages/"*.deb "$root/debs"
    make_text 300000 >"$root/root/text.txt"
    network_example >"$root/root/example"
    [[ $(grep -cE '^(atoll-coordinator|atoll-worker|tail|atoll status) ' "$root/root/example") == 4 ]] || fail "README.md has another network example: $(<"$root/root/example")"
    cat >"$root/root/train.sh" <<'SH'
set -eu
cd /root
ln -s /usr/share/atoll/configs configs
atoll prepare data text.txt
step() { sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}' example | grep "^$1 "; }
worker=$(step atoll-worker | sed 's/#.*//')
eval "exec $(step atoll-coordinator)" >coordinator.log 2>&1 &
coordinator=$!
until [ -s runs/joint/address ]; do sleep 0.1; done
eval "$(step tail)"
for name in one two; do
    mkdir $name
    cp join $name/join
    ln -s ../data $name/data
    (cd $name && eval "exec $worker --name $name") >$name.log 2>&1 &
done
until grep -q '^round  *1/' coordinator.log; do
    [ $(jobs -r | wc -l) = 3 ] || { cat *.log; exit 1; }
    sleep 0.1
done
date +%s%3N >first
eval "$(step 'atoll status')"
kill $coordinator
wait $coordinator || [ $? = 75 ]
SH
    began=$(now_ms)
    in_root "$root" sh -c 'apt-get -q update && cd /debs && apt-get -qy install --no-install-recommends ./atoll_*.deb' >"install.$1.log" 2>&1 ||
        fail "apt cannot install the package on $1"
    [[ ! -e $root/usr/bin/cc ]] || fail "the package brings a compiler"
    in_root "$root" true # mounts its /proc
    # shellcheck disable=SC2016 # the inner shell expands
    unshare --net bash -c 'ip link set lo up && exec env -i PATH=/usr/sbin:/usr/bin:/bin HOME=/root timeout -k 10 300 chroot "$1" bash /root/train.sh' sh "$root" >"train.$1.log" 2>&1 ||
        fail "the network example on $1"
    grep -q '^state  *training, round ' "train.$1.log" || fail "atoll status says nothing"
    echo "$1: $(seconds $(($(<"$root/root/first") - began))) s from apt install to the first joint step"
}

# content SUITE: what the package must hold, and that removing it leaves nothing.
content() {
    local root=$1 file
    for file in share/man/man1/atoll{,-worker,-coordinator,-status}.1.gz share/bash-completion/completions/atoll-worker share/zsh/site-functions/_atoll \
        share/atoll/configs/diloco.yaml; do
        [[ -s $root/usr/$file ]] || grep -qs 'path-exclude' "$root"/etc/dpkg/dpkg.cfg.d/* || fail "$1 lacks /usr/$file"
    done
    for file in "$ROOT"/deploy/systemd/*.service; do
        [[ ! -e $file || -s $root/usr/lib/systemd/system/${file##*/} ]] || fail "$1 lacks ${file##*/}"
    done
    [[ $(gzip -dc "$root/usr/share/man/man1/atoll.1.gz") == *'atoll launch'* ]] || fail "the manual page lacks atoll launch"
    [[ $(in_root "$root" atoll --version) == "atoll $(sed -nE 's/^project\(atoll VERSION ([0-9.]+).*/\1/p' "$ROOT/CMakeLists.txt")" ]] ||
        fail "another version: $(in_root "$root" atoll --version)"
    in_root "$root" dpkg -L atoll >files
    in_root "$root" apt-get -qy purge atoll >purge.log 2>&1 || fail "apt cannot purge the package"
    while read -r file; do [[ ! -f $root$file ]] || fail "purge leaves $file"; done <files
}

# library SUITE: examples/library.c from libatoll-dev, in the root with a compiler.
library() {
    cat >"build.$1/root/library.sh" <<'SH'
set -eu
cd /root
apt-get -qy install --no-install-recommends /src/build/packages/libatoll*.deb
cc -o by-pkg-config /src/examples/library.c $(pkg-config --cflags --libs atoll) -lm
mkdir cmake
cat >cmake/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(atoll REQUIRED)
add_executable(by-cmake /src/examples/library.c)
target_link_libraries(by-cmake atoll::atoll m)
END
cmake -S cmake -B cmake/build && cmake --build cmake/build
for program in by-pkg-config cmake/build/by-cmake; do
    ldd $program | grep 'libatoll.so.0 => /'
    ! ./$program || exit 1
done
SH
    in_root "build.$1" sh /root/library.sh >"library.$1.log" 2>&1 || fail "a program with libatoll-dev on $1"
}

# cuda SUITE: atoll-cuda in the bare root, without a toolkit.
cuda() {
    local debs=("$1"/debs/atoll-cuda_*.deb)
    [[ -e ${debs[0]} ]] || { echo "atoll-cuda: not built, because this machine has no toolkit" && return; }
    in_root "$1" sh -c 'cd /debs && apt-get -qy install --no-install-recommends ./atoll_*.deb ./atoll-cuda_*.deb' >cuda.log 2>&1 || fail "apt cannot install atoll-cuda"
    in_root "$1" sh -c 'ldd /usr/lib/atoll/atoll_cuda.so' >>cuda.log 2>&1 || true
    ! in_root "$1" sh -c 'cd /root && atoll launch configs/diloco.yaml --workers 1 --dir runs/gpu --train.devices=cuda' >gpu.log 2>&1 || fail "a worker trains on a GPU without a driver"
    grep -q 'no NVIDIA driver' gpu.log || fail "a worker without a driver says: $(<gpu.log)"
}

for suite in bookworm trixie; do
    build $suite
    joint_step $suite
    content $suite
    library $suite
    [[ $suite != trixie ]] || cuda $suite
    for file in "build.$suite"/src/build/packages/*.deb; do
        echo "$suite: ${file##*/} $(($(stat -c %s "$file") / 1000)) kB: $(dpkg-deb -f "$file" Depends)"
    done
    if [[ $(type -P lintian || true) ]]; then
        lintian --fail-on error --suppress-tags bad-distribution-in-changes-file "build.$suite"/src/build/packages/*.deb >lintian.log 2>&1 || fail "lintian: $(<lintian.log)"
    fi
    umount "$suite/proc" "build.$suite/proc"
    rm -rf --one-file-system "$suite" "build.$suite"
done
