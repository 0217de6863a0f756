# Debian roots of their own for tests of packages and images: source before tests/e2e/lib.sh.
# shellcheck shell=bash

skip() {
    echo "skipped: $*"
    exit 77
}

# in_namespaces GIB SCRIPT: goes on only in mount and PID namespaces of this test, with $TMPDIR in GIB of memory. So its
# processes, mounts and files end with it, however it ends. Nothing else may remove the files: roots hold mounts.
in_namespaces() {
    local name free
    [[ ! ${DEPLOY_ALONE:-} ]] || return 0
    for name in debootstrap ip; do [[ $(type -P $name || true) ]] || skip "$name is missing: apt-get install debootstrap iproute2"; done
    if ((EUID != 0)) || ! unshare --mount --pid --net --fork --mount-proc true 2>/dev/null; then skip "needs root and namespaces"; fi
    free=$(sed -nE 's/^MemAvailable: *([0-9]+) kB/\1/p' /proc/meminfo)
    ((free > ($1 + 2) << 20)) || skip "needs $(($1 + 2)) GiB of free memory for its Debian roots"
    # shellcheck disable=SC2016 # the inner shell expands
    DEPLOY_ALONE=1 exec unshare --mount --pid --fork --mount-proc --kill-child bash -c '
        mount -t tmpfs -o "size=$1G,mode=755" atoll-deploy /mnt && TMPDIR=/mnt E2E_KEEP=1 exec bash "$2"' sh "$1" "$2"
}

# debian_mirror: prints the mirror of this machine; nothing if it has none, then debootstrap takes its own.
debian_mirror() {
    local mirror
    mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 1p)
    [[ $mirror ]] || mirror=$(awk '$1 == "deb" { print $2; exit }' /etc/apt/sources.list 2>/dev/null) || true
    [[ $mirror != *debian* ]] || echo "$mirror"
}

# make_root SUITE FOLDER: a minimal Debian, without a compiler and without Atoll's libraries.
make_root() {
    local file mirror
    mapfile -t mirror < <(debian_mirror)
    debootstrap --variant=minbase "$1" "$2" "${mirror[@]}" >"debootstrap.$1.log" 2>&1 ||
        skip "debootstrap cannot make a root: $(tail -n 1 "debootstrap.$1.log")"
    chmod 755 "$2"
    for file in /etc/resolv.conf /etc/hosts; do cp -L $file "$2$file" 2>/dev/null || true; done
    [[ ! $(find "$2/usr/lib" -name 'libzmq.so*' -o -name 'libjansson.so*') && ! -e $2/usr/bin/cc ]] || fail "the root of $1 is not bare"
}

# copy_tree FOLDER: the files of this tree that git knows, also those that are not committed.
copy_tree() {
    mkdir -p "$1"
    (cd "$HERE/../.." && git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'ls -d "$@" 2>/dev/null' sh | tar -cf - -T -) | tar -xf - -C "$1"
}

# in_root FOLDER COMMAND...: runs COMMAND in a root, with the environment of a login and this machine's proxies.
in_root() {
    local root=$1 proxies
    shift
    mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
    mapfile -t proxies < <(env | grep -iE '^(https?|no)_proxy=' || true)
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive \
        "${proxies[@]}" chroot "$root" "$@"
}
