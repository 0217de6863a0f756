# Checks the output of ptxas from the build of the CUDA back end. $1: folder of *.ptxas, $2: architectures, $3: plugin.
# - Every kernel is compiled for every architecture.
# - No kernel spills or uses a stack.
# - Every kernel keeps the limits in registers.txt (only with the nvcc of ATOLL_CUDA_MEASURED, because other versions
#   allocate registers differently).
# - The plugin lists every kernel for loading at the start.
# Skipped without a CUDA build.
# shellcheck shell=bash
set -euo pipefail

logs=$1
archs=$2
plugin=$3
budget=tests/cuda/ptx/registers.txt
compgen -G "$logs/*.ptxas" >/dev/null || exit 77
# ACT_KERNEL and WIDE_KERNEL define two kernels: fp32 and bf16.
kernels=$(sed -nE 's/^KERNEL\(([a-z0-9_]+),.*/\1/p; s/^(ACT|WIDE)_KERNEL\(([a-z0-9_]+),.*/\2_fp32\n\2_bf16/p' gpu/cuda/kernels/cuda_*.cu | sort)
version=$("${ATOLL_NVCC:-nvcc}" --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
same=$(sed -nE 's/^set\(ATOLL_CUDA_MEASURED ([0-9.]+)\).*/\1/p' gpu/cuda.cmake)
[[ -n $version && -n $same ]] || { echo "cannot read the version of nvcc or ATOLL_CUDA_MEASURED in gpu/cuda.cmake" && exit 1; }
status=0

# The sources and registers.txt name the same kernels.
budgeted=$(awk '!/^#/ { print $1 }' "$budget" | sort)
if [[ $kernels != "$budgeted" ]]; then
    { diff <(echo "$kernels") <(echo "$budgeted") || true; } |
        sed -nE "s|^< (.*)|\1: no line in $budget: add its limits of registers and shared memory|p
                 s|^> (.*)|\1: in $budget, but not in the sources|p"
    status=1
fi

awk -v archs="$archs" -v budget="$budget" -v exact="$([[ $version == "$same" ]] && echo 1)" '
    function complain(text) { print name " for " arch ": " text; bad = 1 }
    FILENAME == budget {
        if ($1 !~ /^#/) {
            registers[$1] = $2
            shared[$1] = $3
            n_kernels++
        }
        next
    }
    /Compiling entry function/ {
        name = $7
        arch = $9
        gsub(/^\047_Z[0-9]+|_kernel[0-9]+[a-z_]+[^\047]*\047$/, "", name)
        gsub(/\047/, "", arch)
        compiled[arch]++
    }
    /bytes stack frame/ {
        few = exact ? 0 : 64
        if ($1 > few) complain($1 " bytes of stack")
        if ($5 > few || $9 > few) complain("spills " $5 " and reloads " $9 " bytes")
    }
    exact && /Used [0-9]+ registers/ {
        for (i = 1; i < NF; i++) {
            if ($i == "Used" && $(i + 1) > registers[name])
                complain($(i + 1) " registers, at most " registers[name])
            if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/ && $i > shared[name])
                complain($i " bytes of shared memory, at most " shared[name])
        }
    }
    END {
        n = split(archs, list, /[ ;]+/)
        for (i = 1; i <= n; i++)
            if (compiled["sm_" list[i]] != n_kernels) {
                printf "sm_%s: %d of %d kernels\n", list[i], compiled["sm_" list[i]], n_kernels
                bad = 1
            }
        exit bad
    }' "$budget" "$logs"/*.ptxas || status=1

listed=$((0x$(readelf -SW "$plugin" | sed -nE 's/.* atoll_kernels +PROGBITS +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) .*/\1/p') / 16))
if ((listed != $(wc -l <<<"$kernels"))); then
    echo "$plugin loads $listed kernels at the start, expected $(wc -l <<<"$kernels"): check KNOWN_KERNEL in the macros that define kernels"
    status=1
fi
((status)) || echo "$(wc -l <<<"$kernels") kernels for sm $archs by nvcc $version, no spills$([[ $version == "$same" ]] || echo " above 64 bytes")"
exit $status
