# Bugs in what nvcc is given and the emulation is not (behind #ifdef __CUDACC__), or in what it might make of the rest, put
# into the PTX of kernels ($1: its folder): the comparison that carries PTX out ($2: folder of the tests) has to fail.
# shellcheck shell=bash
set -euo pipefail

ptx=$(cd "$1" && pwd) bin=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
planted=0 status=0

passes() { # file test: with that file in the folder beside the others as they are
    local program only file
    read -r program only <<<"$2"
    for file in "$ptx"/*.ptx; do [[ ${file##*/} == "$1.ptx" ]] || ln -sf "$file" "$folder"; done
    # The shell's own words about one that aborts go to stderr, too.
    { ATOLL_EMULATED_PTX=$folder timeout 100 "$bin/$program" ${only:+"$only"} >"$folder/log"; } 2>/dev/null
}

while IFS='|' read -r name file test edit; do
    rm -f "$folder"/*
    sed -E "$edit" "$ptx/$file.ptx" >"$folder/$file.ptx"
    if [[ $name == none ]]; then
        passes "$file" "$test" || { echo "without a bug: $(tail -n 20 "$folder/log")"; exit 1; }
        continue
    fi
    ((++planted))
    if cmp -s "$ptx/$file.ptx" "$folder/$file.ptx"; then
        echo "$name cannot be planted"
        status=1
    elif passes "$file" "$test"; then
        echo "$name goes unnoticed"
        status=1
    fi
done <<'END'
none|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|
matrix_not_transposed|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|s/x4\.trans\.shared/x4.shared/
matrix_transposed|cuda_attn_bwd|test_cuda_kernels_layers test_attn_tiles|0,/m8n8\.x4\.shared/s/x4\.shared/x4.trans.shared/
copies_not_waited_for|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|s/wait_group 0/wait_group 1/
copies_in_no_group|cuda_attn_bwd|test_cuda_kernels_layers test_attn_tiles|s/cp\.async\.commit_group;//
rows_behind_the_last|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|s/(cp\.async\.cg.*), 16, %r[0-9]+;/\1, 16, 16;/
halves_of_a_pair|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|s/(cvt\.rn\.bf16x2\.f32 %r[0-9]+), (%f[0-9]+), (%f[0-9]+)/\1, \3, \2/
rows_of_a_product|cuda_attn_bwd|test_cuda_kernels_layers test_attn_tiles|s/(mma\S+ \{[^}]*\}, )\{(%r[0-9]+), (%r[0-9]+), /\1{\3, \2, /
columns_of_a_product|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|s/(mma\S+ \{[^}]*\}, \{[^}]*\}, )\{(%r[0-9]+), (%r[0-9]+)\}/\1{\3, \2}/
block_not_waited_for|cuda_attn_fwd|test_cuda_kernels_layers test_attn_tiles|s/bar\.sync.*//
order_of_a_wide_store|cuda_element|test_cuda_kernels_layers test_lin|s/(st\.global\.v4\.u32 .*\{)(%r[0-9]+), (%r[0-9]+)/\1\3, \2/
order_of_a_wide_load|cuda_norm|test_cuda_kernels_rows test_norm|s/(ld\.global\.v4\.u32 .*\{)(%r[0-9]+), (%r[0-9]+)/\1\3, \2/
upper_half_of_bf16|cuda_glu|test_cuda_kernels_rows test_llama|s/(and\.b32 .*), -65536/\1, -1048576/
exponent|cuda_loss|test_cuda_kernels_layers test_head|s/0f3FB8AA3B/0f3FB80000/
sum_of_half_the_warp|cuda_norm|test_cuda_kernels_rows test_norm|0,/shfl/s/(shfl\.sync\.bfly\.b32\s.*), [^,]+, ([^,]+, [^,]+;)/\1, 8, \2/
residual_subtracted|cuda_delta_block|test_cuda_delta test_blocks|s/add\.rn\.f32/sub.rn.f32/
END
echo "$planted bugs in PTX, $([[ $status == 0 ]] && echo all || echo not all) noticed"
exit $status
