# Folders include only to the left of
#     common <- { compress, wire, gpu } <- { worker, coordinator } <- cli
# compress, wire and gpu never each other; worker and coordinator never each other; nothing includes tests. Includes of
# ours are written "folder/file.h", and a source includes its own header first (X.h or X_impl.h).
# shellcheck shell=bash
set -euo pipefail

declare -A allowed=(
    [common]='common'
    [compress]='common compress'
    [wire]='common wire'
    [gpu]='common gpu'
    [worker]='common compress wire gpu worker'
    [coordinator]='common compress wire coordinator'
    [cli]='common compress wire gpu worker coordinator cli'
)
bad=0
complain() {
    echo "$*"
    bad=1
}

for folder in "${!allowed[@]}"; do
    while IFS=: read -r file line text; do
        [[ $text =~ \"([^\"]+)\" ]] || continue
        included=${BASH_REMATCH[1]}
        if [[ $included != */* ]]; then
            complain "$file:$line: \"$included\": write the folder too, \"$folder/$included\""
        elif [[ " ${allowed[$folder]} " != *" ${included%%/*} "* ]]; then
            complain "$file:$line: $folder must not include $included"
        fi
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$folder" --include='*.[ch]' --include='*.cu' || true)

    while read -r source; do
        [[ -e ${source%.c}.h ]] || continue
        first=$(grep -m 1 -oE '^#include [<"][^>"]+' "$source" | sed 's/.*[<"]//')
        [[ $first == "${source%.c}.h" || $first == "${source%.c}_impl.h" ]] || complain "$source: its own header is not its first include but $first"
    done < <(find "$folder" -name '*.c')
done
exit $bad
