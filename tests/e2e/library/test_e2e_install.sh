#!/usr/bin/env bash
# An installation: programs, libatoll, manual pages, completion, and the CUDA plugin in lib/. Exit codes in --help.
# shellcheck source=tests/e2e/lib.sh
source tests/e2e/lib.sh || exit 1

# --- exit codes
for words in 'atoll-coordinator --help' 'atoll-worker --help' 'atoll help launch'; do
    read -r -a command <<<"$words"
    "$BIN/${command[0]}" "${command[@]:1}" >help.txt || fail "$words: exit code $?"
    for code in 0 1 2 75; do
        grep -qE "^  $code +[a-z]" help.txt || fail "$words lacks the exit code $code: $(<help.txt)"
    done
done

# --- the installed files
prefix=$WORK/prefix
env -u DESTDIR cmake --install "$BIN/.." --prefix "$prefix" >install.log 2>&1 || fail "cmake --install: $(tail -n 3 install.log)"
programs=(atoll atoll-coordinator atoll-worker)
for name in "${programs[@]}"; do
    for file in "bin/$name" "share/man/man1/$name.1" "share/bash-completion/completions/$name"; do
        [[ -s $prefix/$file ]] || fail "cmake --install lacks $file: $(cd "$prefix" && find . -type f)"
    done
done
[[ -s $prefix/share/zsh/site-functions/_atoll ]] || fail "cmake --install lacks the completion for zsh"
[[ ! -e $prefix/bin/atoll_cuda.so ]] || fail "the plugin is among the programs"

# --- the library: it exports the functions of its header, and programs find it through pkg-config and CMake
library=$(find "$prefix" -name libatoll.so.0)
[[ $library ]] || fail "cmake --install lacks libatoll.so.0: $(cd "$prefix" && find . -type f)"
folder=$(dirname "$library")
export PKG_CONFIG_PATH=$folder/pkgconfig LD_LIBRARY_PATH=$folder
nm -D --defined-only "$library" | sed -n 's/.* T //p' | sort >exported.txt
sed -n 's/^ATOLL_API .*[ *]\(atoll_[a-z_]*\)(.*/\1/p' "$prefix/include/atoll.h" | sort >declared.txt
diff exported.txt declared.txt || fail "libatoll.so exports other functions than atoll.h declares"
(($(nm -D --defined-only "$library" | wc -l) == $(wc -l <declared.txt))) || fail "it exports more: $(nm -D --defined-only "$library")"
grep -q 'SONAME.*libatoll\.so\.0\]' <<<"$(readelf -d "$library")" || fail "wrong SONAME: $(readelf -d "$library")"
[[ $(pkg-config --modversion atoll) == "$("$prefix/bin/atoll" --version | cut -d ' ' -f 2)" ]] || fail "atoll.pc has another version"
mkdir example
cp "$HERE/../../examples/library.c" example
read -r -a flags <<<"$(pkg-config --cflags --libs atoll)"
"${CC:-cc}" -std=c11 -Wall -Wextra -Werror -o by_pkg_config example/library.c "${flags[@]}" -lm || fail "pkg-config: ${flags[*]}"
cat >example/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(example C)
find_package(atoll 0.1 REQUIRED)
add_executable(by_cmake library.c)
target_link_libraries(by_cmake PRIVATE atoll::atoll m)
CMAKE
cmake -G Ninja -S example -B example/build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log 2>&1 || fail "find_package(atoll): $(<cmake.log)"
cmake --build example/build >cmake.log 2>&1 || fail "atoll::atoll: $(tail -n 5 cmake.log)"
echo '#include <atoll.h>' >header.cc # a C++ program may include it
if command -v c++ >/dev/null; then c++ -fsyntax-only -I"$prefix/include" header.cc || fail "atoll.h is no C++"; fi
for program in ./by_pkg_config example/build/by_cmake; do
    status=0
    "$program" tcp://127.0.0.1 2>wrong.txt || status=$?
    [[ $status == 1 && $(<wrong.txt) == 'library: join: '* ]] || fail "$program: exit code $status, $(<wrong.txt)"
done

# --- manual pages: they render without a warning, and name every option
show() { type -P man >/dev/null && MANWIDTH=200 MANROFFOPT='' man --warnings -l "$1" >page.txt 2>page.err; }
for name in "${programs[@]}"; do
    page=$prefix/share/man/man1/$name.1
    grep -q '^\.SH "*EXIT STATUS' "$page" || fail "$name.1 has no exit status: $(<"$page")"
    show "$page" || { echo "skipped: man cannot show a page here" && break; }
    [[ ! -s page.err ]] || fail "man warns about $name.1: $(<page.err)"
    grep -qE 'OPTIONS|VERBS' page.txt || fail "$name.1 shows no options: $(<page.txt)"
done
for option in --join --max-wait --data.train; do
    grep -qF -- "${option//-/\\-}" "$prefix/share/man/man1/atoll-worker.1" || fail "atoll-worker.1 lacks $option"
done
grep -qF 'atoll launch' "$prefix/share/man/man1/atoll.1" || fail "atoll.1 lacks a verb"

# --- completion in bash
# shellcheck source=/dev/null
source "$prefix/share/bash-completion/completions/atoll"
compopt() { :; } # exists only while readline completes
export PATH=$prefix/bin:$PATH
# completes "EXPECTED" WORD...: the completion of the last word contains EXPECTED.
completes() {
    local expected=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    _atoll "$1"
    [[ " ${COMPREPLY[*]} " == *" $expected "* ]] || fail "'$*' completes to '${COMPREPLY[*]}', expected $expected"
}
completes launch atoll la
completes status atoll ''
completes --workers atoll launch --w
completes --resume atoll launch run.yaml --r
completes --train.max_steps= atoll launch run.yaml --train.max
completes --join atoll-worker --j
completes --dir atoll-coordinator run.yaml --
completes --help atoll --
COMP_WORDS=(atoll launch run.y) COMP_CWORD=2
_atoll atoll
((${#COMPREPLY[@]} == 0)) || fail "a file name completes to ${COMPREPLY[*]}"
if command -v zsh >/dev/null; then zsh -n "$prefix/share/zsh/site-functions/_atoll" || fail "the completion for zsh is malformed"; fi

# --- the plugin: an installed program finds it in lib/
make_data
write_config run.yaml train.max_steps=5
"$BIN/atoll" launch run.yaml --workers 1 --dir run "${overrides[@]}" >run.log 2>&1 || fail "a run: $(tail -n 3 run.log)"
on_gpu() {
    ! env -u ATOLL_CUDA_PLUGIN "$prefix/bin/atoll" generate run --device cuda:0 --tokens 1 >gpu.txt 2>&1 || fail "it loads no plugin"
}
rm -f "$prefix/lib/atoll/atoll_cuda.so"
on_gpu
grep -q 'CUDA: no .*/bin/atoll_cuda.so: this build has no CUDA back end' gpu.txt || fail "unexpected error without a plugin: $(<gpu.txt)"
mkdir -p "$prefix/lib/atoll" && echo 'no library' >"$prefix/lib/atoll/atoll_cuda.so"
on_gpu
grep -qE 'CUDA: (no NVIDIA driver|atoll_cuda.so cannot be loaded)' gpu.txt || fail "lib/atoll/atoll_cuda.so is not found: $(<gpu.txt)"
