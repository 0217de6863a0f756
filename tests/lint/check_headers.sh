# Every header compiles alone. Pieces of a source are exempt: *_body.h, and gpu/vec_*.h, which need their CPU's flags.
# shellcheck shell=bash
set -euo pipefail

bad=0
while read -r header; do
    echo "#include \"$header\"" |
        "${CC:-cc}" -std=c11 -D_GNU_SOURCE -DATOLL_VERSION='"0"' -Wall -Wextra -Werror -I. -fsyntax-only -x c - || {
        echo "$header does not compile alone"
        bad=1
    }
done < <(find common compress wire gpu worker coordinator cli tests -name '*.h' ! -name '*_body.h' ! -path 'gpu/vec_*' | sort)
exit $bad
