# Checks the output of ptxas from a build of the CUDA back end: no kernel spills registers or uses a stack.
# $1: folder of *.ptxas, $2: bytes allowed. Skipped without a CUDA build.
# shellcheck shell=bash
set -euo pipefail

compgen -G "$1/*.ptxas" >/dev/null || exit 77
awk -v allowed="$2" '
    /Compiling entry function/ { kernel = $7 " for " $9; n++ }
    /bytes stack frame/ && ($1 > allowed || $5 > allowed || $9 > allowed) { print kernel ": " $0; bad = 1 }
    END {
        if (!n) print "ptxas names no kernel"
        exit bad || !n
    }' "$1"/*.ptxas
