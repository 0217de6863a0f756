# Environment variables that the programs read stand in docs/gpu.md and in common/config/config_env.c, and no others do.
# shellcheck shell=bash
set -euo pipefail

folders=(common compress wire gpu worker coordinator cli)
read=$(grep -rhoE --include='*.[ch]' '(getenv|environment_number)\("ATOLL_[A-Z_]+"|_ENV "ATOLL_[A-Z_]+"' "${folders[@]}" |
    grep -oE 'ATOLL_[A-Z_]+' | sort -u)
told=$(awk 'BEGIN { RS = "\140" } /^ATOLL_[A-Z_]+$/' docs/gpu.md | sort -u) # between two back quotes
[[ $read == "$told" ]] || {
    diff <(echo "$read") <(echo "$told") | sed -n 's/^</docs\/gpu.md does not tell of/p; s/^>/docs\/gpu.md tells of, and nobody reads,/p'
    exit 1
}
listed=$(sed -n '/programs\[\] = {/,/};/p' common/config/config_env.c | grep -oE '"[a-z_]+"' | tr -d '"' | tr '[:lower:]' '[:upper:]' | sed 's/^/ATOLL_/' | sort)
[[ $listed == "$told" ]] || {
    diff <(echo "$listed") <(echo "$told") | sed -n 's/^</only common\/config_env.c has/p; s/^>/common\/config_env.c lacks/p'
    exit 1
}
