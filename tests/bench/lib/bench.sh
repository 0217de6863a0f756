# What the scripts of benchmarks share. A script sources it first:
#   name    of the benchmark          root   the repository
#   build   the build folder          out    the folder of what benchmarks write
# ATOLL_BENCH_SMALL=1 (small=1): the smallest form, which only shows that the benchmark runs. It takes seconds, loads
# nothing from the network, and waits for nothing. It writes to a folder of its own, and its numbers mean nothing.
# What needs PyTorch or the Python package and does not find it ends with 77.
# shellcheck shell=bash
name=$(basename "$0")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
build=$(cd "${ATOLL_BUILD:-$root/build}" && pwd)
small=0 out=$build/bench
[[ ${ATOLL_BENCH_SMALL:-0} != 1 ]] || small=1 out=$build/bench/small
export ATOLL_BIN=$build/bin ATOLL_LIB=$build/lib/libatoll.so PYTHONDONTWRITEBYTECODE=1
mkdir -p "$out"

refuse() {
    echo "bench $name: $*" >&2
    exit 2
}

unknown_argument() {
    refuse "unknown argument $1 (see the head of tests/bench/$name)"
}

# A part that this machine lacks.
lacking() {
    ((!small)) || { echo "bench $name: $*" >&2 && exit 77; }
    refuse "$@"
}

# Prints the path of a text: the demo's novels; small: the documents.
text() {
    local text=$build/demo/text/novels.txt
    if ((small)); then
        text=$out/documents.txt
        cat "$root"/docs/*.md >"$text"
    elif [[ ! -s $text ]]; then
        text=$out/novels.txt
        [[ -s $text ]] || "$root/tests/demo/fetch-text" "$text" >&2
    fi
    echo "$text"
}

# python: an interpreter with PyTorch and transformers, and the package; empty without one.
find_python() {
    python=${ATOLL_TORCH_PYTHON:-$build/python/bin/python}
    "$python" -c 'import torch, transformers' 2>/dev/null || python=
    export PYTHONPATH=$root/python
}

need_python() {
    find_python
    [[ $python ]] || lacking "no PyTorch or transformers: run ./run python --all, or set ATOLL_TORCH_PYTHON"
}

# python: an interpreter with PyTorch, for a comparison. It is installed from PyPI (some gigabytes, once), unless
# ATOLL_TORCH_PYTHON names one. Fails without PyTorch.
install_torch() {
    python=${ATOLL_TORCH_PYTHON:-$out/venv/bin/python}
    ! "$python" -c 'import torch' 2>/dev/null || return 0
    [[ ${ATOLL_NO_INSTALL:-0} != 1 && -z ${ATOLL_TORCH_PYTHON:-} ]] || return 1
    echo "bench $name: installing PyTorch into $out/venv" >&2
    python3 -m venv "$out/venv"
    "$out/venv/bin/pip" install --quiet torch numpy
}
