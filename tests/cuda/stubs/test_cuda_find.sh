# Which toolkit the CUDA back end is built with (gpu/cuda.cmake): one that is too old counts as none, with a line that
# says so, and is an error only where the back end was asked for.
# shellcheck shell=bash
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n' >"$work/nvcc"
chmod +x "$work/nvcc"

configure() { cmake --preset release -B "$work/build" -DATOLL_NVCC="$work/nvcc" "$@" 2>&1; }

said=$(configure) || { echo "$said" && exit 1; }
grep -q 'CUDA back end: not built: .* is of CUDA 11.8, older than 12$' <<<"$said" || { echo "$said" && exit 1; }
if said=$(configure -DATOLL_CUDA=ON); then echo "ON is content with an old toolkit" && exit 1; fi
grep -q 'is of CUDA 11.8' <<<"$said" || { echo "$said" && exit 1; }
