#!/usr/bin/env bash
# The Python package as a new user meets it: a Debian root without a compiler and without the libraries that the wheel
# bundles. It needs root, debootstrap, the Debian mirror, PyPI (some gigabytes) and the wheel of `./run wheel`.
# ctest: labels=long,python timeout=2400
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

skip() {
    echo "skipped: $*"
    exit 77
}
wheel=$(find "$BIN/../wheel" -maxdepth 1 -name 'atoll-*.whl' 2>/dev/null | sort | tail -n 1) || true
[[ $wheel ]] || skip "there is no wheel: ./run wheel"
((EUID == 0)) || skip "chroot needs root"
command -v debootstrap >/dev/null || skip "debootstrap is missing"
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | sed -n 1p)
[[ $mirror ]] || mirror=$(awk '$1 == "deb" { print $2; exit }' /etc/apt/sources.list 2>/dev/null) || true
[[ $suite && $mirror == *debian* ]] || skip "this is no Debian with a mirror"

root=$WORK/root
at_exit() { umount -l "$root/proc" 2>/dev/null || true; }
packages=ca-certificates,python3,python3-venv
debootstrap --variant=minbase --include=$packages "$suite" "$root" "$mirror" >debootstrap.log 2>&1 ||
    skip "debootstrap cannot make a root: $(tail -n 1 debootstrap.log)"
chmod 755 "$root" # mktemp's parent is private
mount -t proc proc "$root/proc" # /dev is the root's own: cleanup must not meet the system's
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    cp -L "$file" "$root$file" 2>/dev/null || true
done
cp "$wheel" "$root/tmp"
cp "$HERE/../python/new_user.sh" "$root/tmp"
for library in zmq yaml jansson sodium pgm; do
    [[ -z $(find "$root/usr/lib" -name "lib$library*.so*") ]] || fail "the root has lib$library"
done
mapfile -t network < <(env | grep -iE '^(https?_proxy|no_proxy|PIP_[A-Z_]*)=' || true)
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb "${network[@]}" \
    chroot "$root" /bin/bash /tmp/new_user.sh "/tmp/${wheel##*/}" || fail "see above"
