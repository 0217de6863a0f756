# Files of at most 600 lines, functions of at most 70, lines of at most 120 characters, folders of at most 30 files, and no
# file name twice.
# shellcheck shell=bash
set -euo pipefail

folders=(common compress wire gpu worker coordinator cli tests)
mapfile -t sources < <(find "${folders[@]}" -name '*.[ch]' -o -name '*.cu' | sort)
bad=$(
    wc -l "${sources[@]}" | awk '$2 != "total" && $1 > 600 { print $2 ": " $1 " lines, at most 600: split it" }'
    awk 'FNR == 1 { start = 0 }
         /^\{/ { start = FNR }
         /^\}/ && start { if (FNR - start > 71) print FILENAME ":" start ": a function of " FNR - start - 1 " lines, at most 70"
                          start = 0 }
         length($0) > 120 { print FILENAME ":" FNR ": " length($0) " characters, at most 120" }' "${sources[@]}"
    printf '%s\n' "${sources[@]##*/}" | sort | uniq -d | sed 's/$/: two files have this name/'
    # Data is not read file by file: fuzzing inputs and golden files do not count.
    find "${folders[@]}" -type f ! -path 'tests/fuzz/corpus/*' ! -path 'tests/golden/*' ! -name '*.pyc' -printf '%h\n' |
        sort | uniq -c | awk '$1 > 30 { print $2 ": " $1 " files, at most 30: make rooms" }'
)
[[ -z $bad ]] || { printf '%s\n' "$bad" && exit 1; }
