# What ptxas said while the CUDA back end was built ($1: folder of *.ptxas): every kernel was compiled for every
# architecture, none spills or uses a stack, and none takes more registers or shared memory than it may. Skipped where
# there is no CUDA build.
# shellcheck shell=bash
set -euo pipefail

logs=$1
archs=${2:-'80 90'}
compgen -G "$logs/*.ptxas" >/dev/null || exit 77
kernels=$(cat gpu/cuda_*.cu | grep -cE '^KERNEL\(')
cat "$logs"/*.ptxas | awk -v kernels="$kernels" -v archs="$archs" -v registers=128 -v shared=49152 '
    function complain(text) { print name " for " arch ": " text; bad = 1 }
    /Compiling entry function/ {
        name = $7
        arch = $9
        gsub(/^\047_Z[0-9]+|\047/, "", name)
        gsub(/\047/, "", arch)
        compiled[arch]++
    }
    /bytes stack frame/ {
        if ($1 > 0) complain($1 " bytes of stack")
        if ($5 > 0 || $9 > 0) complain("spills " $5 " and reads back " $9 " bytes")
    }
    /Used [0-9]+ registers/ {
        for (i = 1; i < NF; i++) {
            if ($i == "Used" && $(i + 1) > registers) complain($(i + 1) " registers, at most " registers)
            if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/ && $i > shared)
                complain($i " bytes of shared memory, at most " shared)
        }
    }
    END {
        n = split(archs, list, /[ ;]+/)
        for (i = 1; i <= n; i++)
            if (compiled["sm_" list[i]] != kernels) {
                printf "sm_%s: %d of %d kernels\n", list[i], compiled["sm_" list[i]], kernels
                bad = 1
            }
        exit bad
    }'
echo "$kernels kernels, no spills"
