# docs/gpu.md and common/config/config_env.c list exactly the environment variables that the programs read.
# shellcheck shell=bash
set -euo pipefail

folders=(common compress wire gpu worker coordinator cli)
read=$(grep -rhoE --include='*.[ch]' '(getenv|environment_number)\("ATOLL_[A-Z_]+"|_ENV "ATOLL_[A-Z_]+"' "${folders[@]}" |
    grep -oE 'ATOLL_[A-Z_]+' | sort -u)
documented=$(awk 'BEGIN { RS = "\140" } /^ATOLL_[A-Z_]+$/' docs/gpu.md | sort -u) # between two back quotes
[[ $read == "$documented" ]] || {
    diff <(echo "$read") <(echo "$documented") | sed -n 's/^</docs\/gpu.md does not list/p; s/^>/no program reads, but docs\/gpu.md lists,/p'
    exit 1
}
listed=$(sed -n '/programs\[\] = {/,/};/p' common/config/config_env.c | grep -oE '"[a-z_]+"' | tr -d '"' | tr '[:lower:]' '[:upper:]' | sed 's/^/ATOLL_/' | sort)
[[ $listed == "$documented" ]] || {
    diff <(echo "$listed") <(echo "$documented") | sed -n 's/^</only common\/config_env.c has/p; s/^>/common\/config_env.c lacks/p'
    exit 1
}
