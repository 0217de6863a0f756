# The verb package of `run`, which sources this file.
# shellcheck shell=bash disable=SC2154 # jobs and root are run's

# package_archs: prints the GPUs to build for, joined by ';': those of ATOLL_CUDA_ARCHS, or of the preset "gpus" without
# those that this nvcc does not know. Toolkits before 12.8 lack the newest ones.
package_archs() {
    [[ -z ${ATOLL_CUDA_ARCHS:-} ]] || { echo "$ATOLL_CUDA_ARCHS" && return; }
    local nvcc known arch archs=()
    nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
    known=$("$nvcc" --list-gpu-arch 2>/dev/null) || return 0
    for arch in $(sed -nE 's/.*"ATOLL_CUDA_ARCHS": "([0-9;]+)".*/\1/p' CMakePresets.json | tr ';' ' '); do
        [[ $known == *compute_$arch* ]] && archs+=("$arch")
    done
    (IFS=';' && echo "${archs[*]}")
}

verb_package() {
    local dir=build/deb archs log=build/deb/package.log file
    [[ $# -lt 2 && ${1:-deb} == deb ]] || die 2 "unknown argument ${*: -1} of package: ./run package [deb]"
    need_build_tools
    need dpkg-dev command -v dpkg-shlibdeps
    need file command -v file
    need gzip command -v gzip
    [[ ${1:-} ]] || need_python
    install_missing
    archs=$(package_archs)
    own_build $dir
    mkdir -p $dir build/packages
    cmake --preset deb ${archs:+"-DATOLL_CUDA_ARCHS=$archs"} >$dir/configure.log 2>&1 || {
        cat $dir/configure.log >&2
        die 1 "cmake cannot configure $dir: see above"
    }
    step "building for the packages" $dir/build.log cmake --build --preset deb -j "$jobs" || {
        grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking)' $dir/build.log >&2 || true
        die 1 "the build in $dir failed: see above"
    }
    # Equal sources give equal packages: their files have the time of the last commit.
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
    export SOURCE_DATE_EPOCH
    rm -f $dir/*.deb build/packages/*
    cpack --config $dir/CPackConfig.cmake >$log 2>&1 || {
        cat $log >&2
        die 1 "cpack cannot write the packages: see above"
    }
    mv $dir/*.deb build/packages/
    if ! (($#)); then
        make_wheel >/dev/null
        cp build/wheel/*.whl build/packages/
    fi
    for file in build/packages/*; do echo "wrote $file, $(($(stat -c %s "$file") / 1000)) kB"; done
    sed -n 's/^-- \(CUDA back end: .*\)/\1/p' $dir/configure.log
}
