# Python sources have no syntax errors. Those of the package, its tests and the examples have lines of at most 120
# characters, at most 600 lines, no tabs, and no blanks at line ends.
# shellcheck shell=bash
set -euo pipefail

command -v python3 >/dev/null || exit 77
mapfile -t sources < <(find python examples tests/python -name '*.py' | sort)
mapfile -t others < <(find tests -name '*.py' ! -path 'tests/python/*' | sort)
bad=$(
    wc -l "${sources[@]}" | awk '$2 != "total" && $1 > 600 { print $2 ": " $1 " lines, at most 600: split it" }'
    awk 'length($0) > 120 { print FILENAME ":" FNR ": " length($0) " characters, at most 120" }
         /\t/ { print FILENAME ":" FNR ": a tab" }
         /[ \t]$/ { print FILENAME ":" FNR ": a blank at the end of the line" }' "${sources[@]}"
    python3 - "${sources[@]}" "${others[@]}" <<'PY'
import sys

for path in sys.argv[1:]:
    try:
        compile(open(path, encoding="utf-8").read(), path, "exec")
    except SyntaxError as error:
        print(f"{path}:{error.lineno}: {error.msg}")
PY
)
[[ -z $bad ]] || { printf '%s\n' "$bad" && exit 1; }
