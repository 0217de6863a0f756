# Checks the kernels' PTX for slow code that no test of results detects. $1: folder of the PTX, then nvcc and the flags
# of the build.
#
# - Loads in flight: 16-byte loads before the first use of a loaded value. Device memory takes hundreds of cycles, and a
#   warp stalls at a missing value. ptxas reorders loads within a basic block, but not across blocks. So the count runs
#   over blocks and ends at a block that uses a loaded value. At row ends each load has a branch of its own; a
#   conversion beside it would halve the loads in flight.
# - Exponentials and quotients of bf16 results: a GPU has single instructions for them; CUDA's versions of the C
#   functions take several more.
# shellcheck shell=bash
set -euo pipefail

ptx=$1
shift
nvcc=("$@")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

most() { # KERNEL <PTX: prints the largest number of loads in flight
    awk -v kernel="$1_kernel" '
        function block_ends(    r) {
            if (used) { in_flight = 0; for (r in loaded) delete loaded[r] }
            if (in_flight + loads > best) best = in_flight + loads
            in_flight += loads
            loads = used = 0
        }
        /\.entry/ { inside = index($0, kernel) }
        !inside { next }
        /^\$L/ || /\tbra/ { block_ends() }
        {
            n = split($0, word, /[^%a-z0-9_.]+/)
            wide = /ld\.global\.v4/
            loads += wide
            for (i = 1; i <= n; i++) {
                if (word[i] !~ /^%[rfh]/) continue
                if (wide && $0 ~ "[{][^}]*" word[i] "[,}]") loaded[word[i]]
                else if (word[i] in loaded) used = 1
            }
        }
        END { block_ends(); print best }'
}

status=0
# Norms: two rows of x and dy, or one row in two parts (fp32: two loads each); in bf16 also of dres. Loss: logits in two
# parts. Embedding: eight rows per token.
while read -r file kernel wanted; do
    n=$(most "$kernel" <"$ptx/cuda_$file.ptx")
    ((n >= wanted)) || { echo "$kernel: $n loads in flight, expected $wanted"; status=1; }
done <<'END'
norm_fused cuda_norm_fused_bf16 6
norm_fused cuda_norm_fused_short_bf16 6
norm_fused cuda_rms_fused_bf16 6
norm_fused cuda_rms_fused_short_bf16 6
norm_fused cuda_norm_fused_fp32 8
norm_fused cuda_norm_fused_short_fp32 8
loss cuda_xent_bf16 2
embed cuda_embed_word_bf16 8
END

while read -r file kernel; do
    slow=$(awk -v kernel="${kernel}_bf16_kernel" '/\.entry/ { inside = index($0, kernel) } inside' "$ptx/cuda_$file.ptx" |
        grep -oE '\b(ex2|lg2|rcp|div|sqrt)\.(approx|full|rn)\.f32' | sort -u || true)
    [[ -z $slow ]] || { echo "${kernel}_bf16: ${slow//$'\n'/ }"; status=1; }
done <<'END'
loss cuda_xent
element cuda_gelu_fwd
element cuda_gelu_bwd
glu cuda_glu_fwd
glu cuda_glu_bwd
END

# The check detects a conversion beside the loads.
sed 's|act_hold(a->dy, .*;|& dw[0][0] += float_of(held[h].x[0]);|' gpu/cuda/kernels/cuda_norm_fused.cu >"$folder/changed.cu"
"${nvcc[@]}" -ptx "$folder/changed.cu" -o "$folder/changed"
(($(most cuda_norm_fused_bf16 <"$folder/changed") < 6)) || { echo "the check does not detect a conversion beside loads"; status=1; }
((status)) || echo "all kernels have the expected loads in flight and single-instruction exponentials"
exit $status
