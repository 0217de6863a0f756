# Builds the CUDA back end for every GPU that packages support (preset "gpus", build/gpus). $1: bytes of spills allowed.
# Skipped if nvcc does not know all architectures.
# shellcheck shell=bash
set -euo pipefail

command -v "${ATOLL_NVCC:=nvcc}" >/dev/null || exit 77
archs=$(sed -nE 's/.*"ATOLL_CUDA_ARCHS": "([0-9;]+)".*/\1/p' CMakePresets.json | tr ';' ' ')
[[ -n $archs ]] || { echo "CMakePresets.json lacks ATOLL_CUDA_ARCHS" && exit 1; }
known=$("$ATOLL_NVCC" --list-gpu-code)
for arch in $archs; do
    grep -qx "sm_$arch" <<<"$known" || { echo "skipped: $ATOLL_NVCC does not know sm_$arch" && exit 77; }
done
cmake --preset gpus -DATOLL_WERROR=ON >/dev/null
cmake --build --preset gpus -j "$(nproc)"
bash tests/cuda/test_cuda_spills.sh build/gpus/cuda "$1"
