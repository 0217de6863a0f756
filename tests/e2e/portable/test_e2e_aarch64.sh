#!/usr/bin/env bash
# ARM: a cross build, its unit tests under qemu-user, and one training run whose theta_hash equals that of this machine
# with ATOLL_CPU=portable.
# - The ARM libraries are unpacked below build/aarch64, with lists and caches of apt there: nothing is installed.
# - Unit tests that need what qemu-user lacks (TCP_INFO, maps of many gigabytes) stay out.
# ctest: labels=long timeout=7200
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

root=$(cd "$HERE/../.." && pwd)
home=$root/build/aarch64
sysroot=$home/sysroot
build=$home/build
libraries=(libc6-dev libzmq3-dev liblz4-dev libyaml-dev libjansson-dev libxxhash-dev libmicrohttpd-dev
    libcmocka-dev)

skip() {
    echo "skipped: $*"
    exit 77
}

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip "there is no qemu-aarch64: install qemu-user"
for tool in aarch64-linux-gnu-gcc apt-get dpkg-deb cmake ninja; do
    command -v $tool >/dev/null || skip "there is no $tool: install gcc-aarch64-linux-gnu, apt, dpkg, cmake and ninja-build"
done
[[ $(uname -m) == x86_64 ]] || skip "the machine is $(uname -m), not x86_64"

# ---- the ARM libraries ----------------------------------------------------------------------------------------------

# apt with state of its own, for arm64 alone; no package counts as installed.
arm_apt() {
    local options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)"
        -o Dir::State="$home/apt" -o Dir::State::status="$home/apt/status" -o Dir::Cache="$home/apt"
        -o Dir::Cache::archives="$home/apt/archives")
    [[ ! -e $home/apt/ubuntu.list ]] ||
        options+=(-o Dir::Etc::sourcelist="$home/apt/ubuntu.list" -o Dir::Etc::sourceparts=-)
    apt-get -q -y "${options[@]}" "$@"
}

# Ubuntu keeps arm64 on another server than the machine's own packages.
name_ubuntu() {
    local ID='' VERSION_CODENAME=''
    # shellcheck source=/dev/null
    source /etc/os-release
    [[ $ID == ubuntu ]] || return 0
    printf 'deb http://ports.ubuntu.com/ubuntu-ports %s main universe\n' "$VERSION_CODENAME" "$VERSION_CODENAME-updates" \
        >"$home/apt/ubuntu.list"
}

unpack() {
    local file link
    for file in "$home"/apt/archives/*.deb; do dpkg-deb -x "$file" "$sysroot"; done
    find "$sysroot" -type l -lname '/*' | while read -r link; do ln -sfn "$sysroot$(readlink "$link")" "$link"; done
    [[ -e $sysroot/lib ]] || ln -s usr/lib "$sysroot/lib" # Debian 13: all libraries are below usr
}

if [[ ! -e $home/unpacked ]]; then
    rm -rf "$sysroot" "$home/apt"
    mkdir -p "$sysroot" "$home/apt/lists/partial" "$home/apt/archives/partial"
    touch "$home/apt/status"
    name_ubuntu
    { arm_apt update && arm_apt --no-install-recommends --download-only install "${libraries[@]}"; } >apt.log 2>&1 ||
        skip "apt-get cannot fetch the arm64 libraries: $(tail -n 1 apt.log)"
    unpack
    touch "$home/unpacked"
fi

# ---- the cross build ------------------------------------------------------------------------------------------------

cat >"$home/toolchain.cmake" <<CMAKE
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_SYSROOT $sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR $qemu -L $sysroot)
CMAKE
export PKG_CONFIG_SYSROOT_DIR=$sysroot
export PKG_CONFIG_LIBDIR=$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig:$sysroot/usr/share/pkgconfig
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DATOLL_CUDA=OFF \
    -DCMAKE_TOOLCHAIN_FILE="$home/toolchain.cmake" >configure.log 2>&1 || fail "cmake cannot configure the cross build"
selected=(--test-dir "$build" -L '^unit$' -LE long -E '^test_(transport_slow|zmq_guard|large_models)$')
[[ -z ${ATOLL_ARM_TESTS:-} ]] || selected+=(-R "$ATOLL_ARM_TESTS") # a part, by hand
ctest -N "${selected[@]}" | sed -nE 's/^ *Test +#[0-9]+: ([^ ]+).*/\1/p' >tests.txt
mapfile -t targets < <(awk 'NR == FNR { want[$1]; next } $1 in want { for (i = 2; i <= NF; i++) print $i }' \
    tests.txt "$build/test_targets.txt" | sort -u)
[[ -s tests.txt ]] || fail "the cross build has no unit tests"
cmake --build "$build" -j "$(nproc)" --target atoll atoll-coordinator atoll-worker libatoll "${targets[@]}" >build.log 2>&1 ||
    fail "the cross build failed"
unset PKG_CONFIG_SYSROOT_DIR PKG_CONFIG_LIBDIR

# ---- one training run -----------------------------------------------------------------------------------------------

# train NAME FOLDER RUNNER...: a run of one worker with the programs in FOLDER, which RUNNER starts; its hash in $hash.
train() {
    local name=$1 programs=$2 coordinator
    shift 2
    start "$name-coordinator.log" "$@" "$programs/atoll-coordinator" run.yaml --dir "$name" "${overrides[@]}"
    coordinator=$pid
    until_true 60 "the coordinator of $name" test -s "$name/address"
    start "$name-worker.log" "$@" "$programs/atoll-worker" --join "$name" --dir "$name-worker" --data.train="$WORK/data/train_*.bin"
    finish "$pid" 600 0 "the worker of $name"
    finish "$coordinator" 60 0 "the coordinator of $name"
    hash=$(grep -oE '"theta_hash": *"[0-9a-f]{16}"' "$name/summary.json" | grep -oE '[0-9a-f]{16}')
}

make_data
write_config run.yaml codec.up=int8:256 codec.down=int8:256
export ATOLL_CPU=portable
train here "$BIN"
expected=$hash
train arm "$build/bin" "$qemu" -L "$sysroot"
echo "theta_hash: x86-64 $expected, aarch64 $hash"
[[ $hash == "$expected" ]] || fail "the run on ARM ends with other parameters"

# ---- the unit tests -------------------------------------------------------------------------------------------------

ctest "${selected[@]}" -j "$(nproc)" --output-on-failure >unit.log 2>&1 || {
    grep -E '\*\*\*|ERROR|LINE' unit.log >&2
    fail "unit tests failed on ARM"
}
grep 'tests passed' unit.log
