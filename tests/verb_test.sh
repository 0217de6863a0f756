# The verb test of `run`, which sources this file.
# shellcheck shell=bash

passed=0 failed=0 skipped=0 matched=0

# Sanitizers map shadow memory at fixed addresses. Old versions fail if the kernel randomizes more address bits than
# they expect, so the programs run without randomization.
without_aslr() {
    if setarch -R true 2>/dev/null; then setarch -R "$@"; else "$@"; fi
}

count_of() { # ATTRIBUTE: prints its number in $counts, or 0
    if [[ $counts =~ \ $1=\"([0-9]+)\" ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi
}

# test_preset PRESET CTEST_ARGS...: runs the selected tests and adds to the counts.
test_preset() {
    local preset=$1 dir wrap=() counts started=$SECONDS
    shift
    dir=$(folder_of "$preset")
    [[ $preset == asan || $preset == tsan ]] && wrap=(without_aslr)
    # A test occupies two of these slots, a test that mostly sleeps one (tests/CMakeLists.txt).
    local args=(--test-dir "$dir" --output-on-failure --output-junit results.xml --no-tests=ignore -j $((3 * jobs)) "$@")
    echo "== $preset: ctest ${*}"
    rm -rf "$dir/results.xml" "$dir/notes"
    local status=0
    "${wrap[@]}" ctest "${args[@]}" 2>&1 | { grep --line-buffered -vE '^(Internal ctest|Test project| +Start |Label Time|[a-z0-9]+ += +|Errors while running|The following tests)|^$' || true; } ||
        status=${PIPESTATUS[0]}
    if ((status == 0)) && ! grep -q '<testcase' "$dir/results.xml" 2>/dev/null; then
        echo "run: the filter matches no test of the $preset build"
        return
    fi
    # ctest's own counts: <testsuite name="…" tests="9" failures="1" disabled="0" skipped="0" …>
    counts=$({ tr '\n\t' '  ' <"$dir/results.xml" | grep -oE '<testsuite [^>]*>' | sed -n 1p; } 2>/dev/null) || counts=''
    local n_tests n_failed n_skipped
    n_tests=$(count_of tests) n_failed=$(count_of failures) n_skipped=$(count_of skipped)
    # A crash of ctest or a missing test program counts as a failure.
    if ((status != 0 && n_failed == 0)); then
        echo "run: ctest of the $preset build exited with code $status without a failed test"
        n_failed=1
        n_tests=$((n_tests + 1))
    fi
    ((matched += n_tests, failed += n_failed, skipped += n_skipped, passed += n_tests - n_failed - n_skipped)) || true
    echo "== $preset: $((n_tests - n_failed - n_skipped)) of $n_tests passed in $((SECONDS - started)) s"
    [[ ! -d $dir/notes ]] || cat "$dir/notes"/* # lines of tests that count something, also of those that passed
}

all=0 filter=''

# select_tests PRESET: sets `selected` to the arguments of ctest that select the tests of this call.
select_tests() {
    selected=()
    case $1 in
    asan) selected=(-L '^(unit|sim|fuzz|asan)$') ;;
    tsan) selected=(-L '^threads$') ;;
    esac
    ((all)) || selected+=(-LE long)
    [[ -z $filter ]] || selected+=(-R "$filter")
}

# build_selected PRESET: builds what the selected tests need. Without a filter that is everything.
build_selected() {
    local preset=$1 dir names targets=(all)
    if [[ -n $filter ]]; then
        dir=$(folder_of "$preset")
        configure_preset "$preset"
        select_tests "$preset"
        names=$(ctest --test-dir "$dir" -N "${selected[@]}" | sed -nE 's/^ *Test +#[0-9]+: ([^ ]+).*/\1/p')
        # A line of test_targets.txt is TEST TARGET... (tests/CMakeLists.txt)
        mapfile -t targets < <(awk 'NR == FNR { want[$1]; next } $1 in want { for (i = 2; i <= NF; i++) print $i }' \
            <(echo "$names") "$dir/test_targets.txt" | sort -u)
        ((${#targets[@]})) || return 0
    fi
    # Programs of long tests alone are in no other target.
    [[ $all$preset != 1release || " ${targets[*]} " != *' all '* ]] || targets+=(long_tests)
    build_preset "$preset" "${targets[@]}"
}

# The next preset builds at low priority while the tests of the current one run: tests wait a lot.
build_ahead() { # PRESET
    set -m
    (renice -n 19 "$BASHPID" >/dev/null || true; build_selected "$1") </dev/null >build/ahead.log 2>&1 &
    ahead=$!
    set +m
}

build_wait() { # PRESET
    local status=0
    [[ -z $(jobs -pr) ]] || echo "== $1: building"
    wait "$ahead" || status=$?
    ahead=0
    ((status == 0)) || { cat build/ahead.log >&2; exit "$status"; }
}

# One interpreter has both (tests/python/run_tests).
has_modules() { python3 -c 'import numpy, yaml' || /usr/bin/python3 -c 'import numpy, yaml'; }

have_qemu() { command -v qemu-aarch64 || command -v qemu-aarch64-static; }

# needs_python FILTER: true if FILTER selects long tests of the Python package.
needs_python() {
    local tests
    tests=$(ctest --test-dir build -N -L python -L long ${1:+-R "$1"} 2>/dev/null) || return 1
    [[ $tests == *' Test '*'#'* ]]
}

# The tests of deploy/ start daemons of Slurm and containers. Their packages come with that filter alone: they bring services
# of systemd.
need_deploy() {
    need slurm-wlm command -v slurmctld
    need munge command -v munged
    need systemd command -v systemd-analyze
    need debootstrap command -v debootstrap
    need iproute2 command -v ip
    need buildah command -v buildah
    need podman command -v podman
    need crun command -v crun
    need netavark test -x /usr/lib/podman/netavark
    need aardvark-dns test -x /usr/lib/podman/aardvark-dns
    need_python
}

# For test_deploy_kubernetes and test_deploy_images. podman-compose of Debian 12 is too old.
install_deploy() {
    local venv=build/deploy/venv
    [[ ! -x $venv/bin/kubernetes-validate || ! -x $venv/bin/podman-compose ]] || return 0
    [[ -x $venv/bin/pip ]] || { mkdir -p build/deploy && python3 -m venv $venv; }
    pip_install "installing kubernetes-validate and podman-compose" $venv kubernetes-validate podman-compose
}

verb_test() {
    local preset presets selected names=${ATOLL_TEST_PRESETS:-}
    while (($#)); do
        case $1 in
        --all) all=1 ;;
        --release) names=release ;;
        -*) die 2 "unknown option $1 of test: ./run test [--all] [--release] [FILTER]" ;;
        *) [[ -z $filter ]] || die 2 "test takes one FILTER, a regular expression on test names: join several with |" && filter=$1 ;;
        esac
        shift
    done
    if [[ ! $names ]]; then
        names='release asan'
        ((!all)) || names+=' tsan'
    fi
    read -ra presets <<<"$names"
    need_build_tools
    need python3-numpy has_modules
    need python3-yaml has_modules
    if ((all)); then
        need python3-zmq /usr/bin/python3 -c 'import zmq' # tests/attack
        need_python
        if [[ $(uname -m) == x86_64 ]] && command -v apt-get >/dev/null; then # test_e2e_aarch64 is skipped without them
            need gcc-aarch64-linux-gnu command -v aarch64-linux-gnu-gcc
            need qemu-user have_qemu
        fi
    fi
    [[ $all$filter != 1*deploy* ]] || need_deploy
    install_missing
    [[ $all$filter != 1*deploy* ]] || install_deploy
    # The fake stack of detect_stack_use_after_return does not align locals to 64 bytes, as AVX-512 requires.
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0}
    export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
    export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:suppressions=$root/tests/tsan.supp}
    build_selected "${presets[0]}"
    if ((all)) && needs_python "$filter"; then
        [[ ${ATOLL_TORCH_PYTHON:-} ]] || install_package all
        [[ ${ATOLL_NO_INSTALL:-} ]] || make_wheel >/dev/null # for test_e2e_new_user
    fi
    while ((${#presets[@]})); do
        preset=${presets[0]}
        presets=("${presets[@]:1}")
        ((!${#presets[@]})) || build_ahead "${presets[0]}"
        select_tests "$preset"
        test_preset "$preset" "${selected[@]}"
        # A filter asks about a few tests, and the answer is known: other builds would take minutes.
        [[ $matched$preset != 0release ]] || break
        if [[ -n $filter ]] && ((failed && ${#presets[@]})); then
            echo "== stopping: a test of the $preset build failed; not run: ${presets[*]}"
            break
        fi
        ((!ahead)) || build_wait "${presets[0]}"
    done
    ((matched)) || die 1 "no test matches '$filter': ctest --test-dir build -N lists the names"
    if ((skipped)); then
        echo "$passed passed, $failed failed, $skipped skipped"
    else
        echo "$passed passed, $failed failed"
    fi
    ((failed == 0))
}

