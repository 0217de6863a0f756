# What makes kernels slow and shows in their PTX, but in no test of results ($1: its folder; then nvcc and the flags of
# the build).
#
# Loads of 16 bytes before the first instruction that wants a number of them. Device memory takes hundreds of cycles, and
# a warp stops where a number is missing; ptxas moves loads past that within a basic block, but not out of one. So they
# are counted over blocks, and a block that uses a number ends the count. Where rows have an end each load has a branch
# of its own, and a conversion beside it halves what is under way.
#
# Exponentials and quotients for results in bf16: a GPU has instructions for them, and what CUDA makes of functions of C
# are several more.
# shellcheck shell=bash
set -euo pipefail

ptx=$1
shift
nvcc=("$@")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

most() { # kernel < PTX: the most loads under way
    awk -v kernel="$1_kernel" '
        function block_ends(    r) {
            if (used) { under_way = 0; for (r in loaded) delete loaded[r] }
            if (under_way + loads > best) best = under_way + loads
            under_way += loads
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
# Of x and dy two rows, or one in two parts (fp32: two loads each), in bf16 of dres, too; logits in two parts; eight rows
# of a token.
while read -r file kernel wanted; do
    n=$(most "$kernel" <"$ptx/cuda_$file.ptx")
    ((n >= wanted)) || { echo "$kernel: $n loads under way together, not $wanted"; status=1; }
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

# That it would be seen: a conversion beside the loads.
sed 's|act_hold(a->dy, .*;|& dw[0][0] += float_of(held[h].x[0]);|' gpu/cuda/kernels/cuda_norm_fused.cu >"$folder/changed.cu"
"${nvcc[@]}" -ptx "$folder/changed.cu" -o "$folder/changed"
(($(most cuda_norm_fused_bf16 <"$folder/changed") < 6)) || { echo "a conversion beside loads goes unnoticed"; status=1; }
((status)) || echo "as many loads under way as kernels are written for, exponentials by one instruction"
exit $status
