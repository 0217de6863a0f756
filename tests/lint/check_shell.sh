# Every script passes shellcheck; skipped where that is not installed.
# shellcheck shell=bash
set -euo pipefail

command -v shellcheck >/dev/null || exit 77
mapfile -t scripts < <(find run .ci/run configs tests -type f ! -path '*/corpus/*' -exec grep -lE -m 1 '^#!.*bash|^# shellcheck shell=bash' {} +)
# Pieces that are sourced share variables that shellcheck, looking at one file at a time, cannot follow.
shellcheck -x -e SC1090,SC1091,SC2012,SC2034,SC2154 "${scripts[@]}"
