# Forbidden calls: C library functions without bounds or error results, allocation outside mem_*, and exits outside a main.
# shellcheck shell=bash
set -euo pipefail

folders=(common compress wire gpu worker coordinator cli)
code() { # prints "file:line:code" of the sources that grep -E PATTERN does not match
    find "${folders[@]}" -name '*.[ch]' | sort | { grep -vE "$1" || true; } | xargs awk -f tests/lint/strip.awk
}
bad=0
# ban 'PATTERN' 'EXCLUDED FILES' 'ADVICE'
ban() {
    local found
    found=$(code "$2" | grep -E "(^|[^A-Za-z0-9_.>])($1)[[:space:]]*\(" || true)
    [[ -z $found ]] || { printf '%s\n  -> %s\n' "$found" "$3" && bad=1; }
}
ban 'sprintf|vsprintf|strcpy|strcat|strncpy|strncat|gets|strtok' '^$' 'use snprintf, memcpy with a length, strcspn'
ban 'atoi|atof' '^$' 'use number_whole or config_value_set: they report errors'
ban 'rand|srand|random|drand48' '^$' 'use common/base/rng.h'
ban 'malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup|alloca' '^common/base/mem\.c$' 'use common/base/mem.h'
ban 'exit|abort|_Exit|quick_exit' '_main\.c$' 'return a status'
exit $bad
