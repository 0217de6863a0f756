# Tests the search for a toolkit in gpu/cuda.cmake: a toolkit that is too old counts as missing and gives one line. It
# is an error only with ATOLL_CUDA=ON.
# shellcheck shell=bash
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n' >"$work/nvcc"
chmod +x "$work/nvcc"

configure() { cmake --preset release -B "$work/build" -DATOLL_NVCC="$work/nvcc" "$@" 2>&1; }

output=$(configure) || { echo "$output" && exit 1; }
grep -q 'CUDA back end: not built: .* is CUDA 11.8, older than 12$' <<<"$output" || { echo "$output" && exit 1; }
if output=$(configure -DATOLL_CUDA=ON); then echo "ATOLL_CUDA=ON accepts an old toolkit" && exit 1; fi
grep -q 'is CUDA 11.8' <<<"$output" || { echo "$output" && exit 1; }
