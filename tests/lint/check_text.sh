# A sentence of a document has at most 25 words. Tables, code and headings do not count; a code span counts as one word.
# shellcheck shell=bash
set -euo pipefail

git rev-parse --is-inside-work-tree >/dev/null 2>&1 || exit 77
mapfile -t documents < <(git ls-files '*.md')
bad=$(
    awk -v most=25 '
        function end() {
            if (words > most) printf "%s:%d: a sentence of %d words, at most %d: %s ...\n", file, from, words, most, start
            words = 0
        }
        # add(TEXT): counts the words of a line; a word that ends in a stop ends its sentence.
        function add(text,    n, i, word) {
            gsub(/`[^`]*`/, "code", text)
            gsub(/\]\([^)]*\)/, "]", text)
            n = split(text, list, /[ \t]+/)
            for (i = 1; i <= n; i++) {
                word = list[i]
                if (word ~ /[A-Za-z0-9]/ && !words++) { from = FNR; start = word }
                else if (words <= 6) start = start " " word
                if (word ~ /[.!?][])"*_]*$/ && word !~ /^\(?(e\.g|i\.e|etc)\.$/) end()
            }
        }
        FNR == 1 { end(); file = FILENAME; fence = code = 0; blank = 1 }
        /^ *```/ { end(); fence = !fence; next }
        fence { next }
        /^[ \t]*$/ { end(); blank = 1; next }
        /^(    |\t)/ && (blank || code) { code = 1; next }
        { code = blank = 0 }
        /^ *\|/ || /^#/ || /^<!--/ { end(); next }
        /^ *([-*+]|[0-9]+\.) / { end(); sub(/^ *([-*+]|[0-9]+\.) +/, "") }
        { add($0) }
        END { end() }' "${documents[@]}"
)
[[ -z $bad ]] || { printf '%s\n' "$bad" && exit 1; }
