# No script pipes into a reader that ends early: with pipefail, the writer sometimes fails with SIGPIPE. An end-to-end test
# without its library must stop: it would remove files in the working folder. If shellcheck is installed, every script
# passes it.
# shellcheck shell=bash
set -euo pipefail

mapfile -t scripts < <(find run .ci/run configs deploy tests -type f ! -path '*/corpus/*' -exec grep -lE -m 1 '^#!.*bash|^# shellcheck shell=bash' {} +)
if grep -nE '(^|[^|])\|[[:space:]]*(head|grep +(-m|-[a-zA-Z]*q))( |$)' "${scripts[@]}"; then
    echo "a pipe into a reader that ends early: use <<<\"\$(...)\", or sed -n 1p"
    exit 1
fi
if grep -nE '^source tests/e2e/.*[^1]$' "${scripts[@]}" || grep -nE '^source "\$\(dirname' tests/e2e/test_*.sh tests/e2e/*/test_*.sh; then
    echo "an end-to-end test that goes on without its library: source tests/e2e/lib.sh || exit 1"
    exit 1
fi
command -v shellcheck >/dev/null || exit 77
# Sourced files share variables. The tool reads one file at a time and cannot follow them.
shellcheck -x -e SC1090,SC1091,SC2012,SC2034,SC2154 "${scripts[@]}"
