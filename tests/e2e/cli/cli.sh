# Helpers of the test_cli_* tests; source it first. Makes an empty folder $tmp and removes it at the end.
# shellcheck shell=bash
set -euo pipefail

: "${ATOLL_BIN:?folder of the programs under test}"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/atoll-test.XXXXXX")
trap 'jobs -p | xargs -r kill 2>/dev/null || true; wait; rm -rf "$tmp"' EXIT
checks=0

fail() {
    printf 'FAIL %s:%s: %s\n' "${BASH_SOURCE[1]##*/}" "${BASH_LINENO[0]}" "$*" >&2
    exit 1
}

# run COMMAND...: sets $code, $out (stdout) and $errors (stderr).
run() {
    code=0
    "$@" >"$tmp/.out" 2>"$tmp/.err" || code=$?
    # shellcheck disable=SC2034 # read by the caller
    out=$(<"$tmp/.out")
    errors=$(<"$tmp/.err")
}

# expect_failure CODE PATTERN COMMAND...: checks that COMMAND exits with CODE and prints one line on stderr, which
# matches PATTERN.
expect_failure() {
    local want=$1 pattern=$2
    shift 2
    run "$@"
    [[ $code == "$want" ]] || fail "$*: exit code $code, expected $want: $errors"
    [[ $(wc -l <"$tmp/.err") == 1 ]] || fail "$*: expected one line on stderr, got: $errors"
    # shellcheck disable=SC2053 # the right side is a pattern
    [[ $errors == $pattern ]] || fail "$*: stderr is '$errors', expected '$pattern'"
    checks=$((checks + 1))
}

# expect_success COMMAND...: checks that COMMAND exits with 0.
expect_success() {
    run "$@"
    [[ $code == 0 ]] || fail "$*: exit code $code: $errors"
    checks=$((checks + 1))
}

# expect_equal WHAT GOT WANT: checks that GOT equals WANT.
expect_equal() {
    [[ $2 == "$3" ]] || fail "$1 is '$2', expected '$3'"
    checks=$((checks + 1))
}

# wait_until SECONDS COMMAND...: repeats COMMAND until it succeeds; fails after SECONDS.
wait_until() {
    local until=$((SECONDS + $1))
    shift
    while ! "$@" 2>/dev/null; do
        ((SECONDS < until)) || fail "timeout: $*"
        sleep 0.05
    done
    checks=$((checks + 1))
}

done_testing() { echo "$checks checks passed"; }
