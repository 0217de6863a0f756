# Every script passes shellcheck; skipped where that is not installed.
# shellcheck shell=bash
set -euo pipefail

command -v shellcheck >/dev/null || exit 77
mapfile -t scripts < <(find run .ci/run configs tests -type f ! -path '*/corpus/*' -exec grep -lE -m 1 '^#!.*bash|^# shellcheck shell=bash' {} +)
shellcheck -x "${scripts[@]}"
