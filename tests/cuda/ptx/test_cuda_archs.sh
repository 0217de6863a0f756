# The CUDA back end for every GPU that packages support (the preset "gpus", build/gpus): it compiles and links, and
# kernels keep to their registers. Skipped where nvcc does not know them all.
# shellcheck shell=bash
set -euo pipefail

command -v "${ATOLL_NVCC:=nvcc}" >/dev/null || exit 77
archs=$(sed -nE 's/.*"ATOLL_CUDA_ARCHS": "([0-9;]+)".*/\1/p' CMakePresets.json | tr ';' ' ')
[[ -n $archs ]] || { echo "CMakePresets.json names no ATOLL_CUDA_ARCHS" && exit 1; }
known=$("$ATOLL_NVCC" --list-gpu-code)
for arch in $archs; do
    grep -qx "sm_$arch" <<<"$known" || { echo "$ATOLL_NVCC knows no sm_$arch" && exit 77; }
done
cmake --preset gpus -DATOLL_WERROR=ON >/dev/null
cmake --build --preset gpus -j "$(nproc)"
bash tests/cuda/ptx/test_cuda_resources.sh build/gpus/cuda "$archs" build/gpus/bin/atoll_cuda.so
