# Every header compiles alone. Exempt are parts of a source (*_body.h, and vec_*.h, which need the flags of their CPU), and
# headers that include missing CUDA headers.
# shellcheck shell=bash
set -euo pipefail

compiler=("${CC:-cc}" -std=c11 -D_GNU_SOURCE -DATOLL_VERSION='"0"'
    -DKERNEL_EMULATION='"tests/cuda/emulator/emulate_kernel.h"' -Wall -Wextra -Werror -I. -fsyntax-only -x c -)
bad=0
cuda=yes
echo '#include <cublasLt.h>' | "${compiler[@]}" 2>/dev/null || cuda=
while read -r header; do
    output=$(echo "#include \"$header\"" | "${compiler[@]}" 2>&1) && continue
    [[ -z $cuda && $output =~ 'fatal error: '(cublasLt|cuda_runtime_api)'.h' ]] && continue
    echo "$output"
    echo "$header does not compile alone"
    bad=1
done < <(find common compress wire gpu worker coordinator cli tests -name '*.h' ! -name '*_body.h' ! -name 'vec_*.h' | sort)
exit $bad
