# Checks the rounding in the PTX of the kernels whose results equal the host's bits. $1: folder of the PTX, then nvcc
# and the flags of the build. The kernels are those of the codecs (gpu/delta_rules.h) and AdamW with bf16 moments
# (gpu/moment_rules.h).
# - Every operation on floats is exact or rounded once, to nearest and with denormals, as on the host.
# - No operation is contracted, approximate, or flushes to zero.
# - Every operation names its rounding, because ptxas contracts the others.
# shellcheck shell=bash
set -euo pipefail

folder=$1
shift
nvcc=("$@")
rounded='((add|sub|mul|div|rcp|sqrt)\.rn\.f(32|64)|(min|max)\.f32|cvt\.f64\.f32|cvt\.rn\.f32\.f64|cvt\.rni\.f32\.f32'
rounded+='|cvt\.rn\.bf16\.f32|cvt\.rn\.f(32|64)\.[su](32|64)|cvt\.rzi\.u32\.f32)'

operations() { # prints the float operations in PTX, one per line; only those of the kernel $only if it is set
    awk -v name="$only" '/\.entry|\.func/ { inside = index($0, name) } inside || !name' |
        grep -oE '\b(add|sub|mul|div|fma|mad|r?sqrt|rcp|ex2|lg2|sin|cos|tanh|cvt|min|max)\.[a-z0-9.]*f(16|32|64)[a-z0-9.]*' |
        sort -u
}

status=0
for what in gpu/cuda/kernels/cuda_delta_*.cu gpu/cuda/kernels/cuda_optim.cu:cuda_adamw_bf16_kernel gpu/cuda/kernels/cuda_optim.cu:cuda_count_step_kernel; do
    IFS=: read -r source only <<<"$what"
    all=$(operations <"$folder/$(basename "$source" .cu).ptx")
    grep -qxE '(add|mul).rn.f(32|64)' <<<"$all" || { echo "$what: found no addition or product"; status=1; }
    if wrong=$(grep -vxE "$rounded" <<<"$all"); then
        printf '%s: not rounded like on the host: %s\n' "$what" "${wrong//$'\n'/ }"
        status=1
    fi
done

# The check detects each compiler flag that changes the rounding.
only=
for flag in --fmad=true --ftz=true --prec-div=false; do
    all=$("${nvcc[@]}" $flag -ptx gpu/cuda/kernels/cuda_delta_block.cu -o - 2>/dev/null | operations)
    grep -qvxE "$rounded" <<<"$all" || { echo "the check does not detect $flag"; status=1; }
done
((status)) || echo "gpu/cuda_delta_*.cu, cuda_adamw_bf16, cuda_count_step: every operation is exact or rounded once"
exit $status
