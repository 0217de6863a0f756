#!/usr/bin/env bash
# Every planted bug still has the line that it changes (tests/planted.cmake): configures, builds nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p build/lint/planted
cmake -S . -B build/lint/planted -G Ninja -DATOLL_CUDA=OFF -DATOLL_WERROR=ON >build/lint/planted/configure.log 2>&1 ||
    { cat build/lint/planted/configure.log; exit 1; }
