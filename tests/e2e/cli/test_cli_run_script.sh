# ./run in a folder of stubs: what `test FILTER` builds and runs, a copied tree, and the progress of long steps.
# ctest: waits=1
# shellcheck shell=bash source=tests/e2e/cli/cli.sh
source tests/e2e/cli/cli.sh || exit 1
tree=$PWD
cd "$tmp"
mkdir -p bin tests/lint configs
mkdir common compress wire gpu worker coordinator cli
cp "$tree/run" .
cp "$tree/tests/verb_test.sh" tests
mkdir -p deploy/debian
cp "$tree/deploy/debian/verb_package.sh" deploy/debian
echo exit 0 >tests/lint/check_nothing.sh
sed -i 's/^log_every_s=.*/log_every_s=1/' run

# cmake notes what it builds. A file slow-FOLDER makes that build take 3 s.
cat >bin/cmake <<'STUB'
#!/bin/bash
case $1 in
--preset)
    folder=build/$2
    [[ $2 != release ]] || folder=build
    # As the real one: whole or not at all. A build ahead is killed at any moment.
    echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" >$folder/CMakeCache.txt.tmp
    mv $folder/CMakeCache.txt.tmp $folder/CMakeCache.txt
    printf 'test_a test_a\ntest_b test_b plugin\ntest_e2e programs helper\nlint_x\n' >$folder/test_targets.txt
    ;;
--build)
    echo "$2: ${*:6}" >>calls
    echo "[12/361] Building C object a.o"
    [[ ! -e slow ]] || sleep 3
    ;;
-S)
    mkdir -p "$4"
    for i in {1..101}; do echo "  \"file\": \"$PWD/common/file_$i.c\""; done >"$4/compile_commands.json"
    ;;
esac
STUB
# ctest lists or runs the tests that -R selects. A test fails in the builds that the file failing names.
cat >bin/ctest <<'STUB'
#!/bin/bash
folder=$2 words="$*" regex=. names=() failures=0
[[ $words != *' -R '* ]] || regex=${words##* -R }
for name in test_a test_b test_e2e lint_x; do [[ ! $name =~ $regex ]] || names+=("$name"); done
if [[ $* == *' -N '* ]]; then
    for i in "${!names[@]}"; do echo "  Test  #$i: ${names[i]}"; done
    exit
fi
echo "tested $folder: ${names[*]}" >>calls
! grep -qx "$folder" failing || failures=1
{
    echo "<testsuite name=\"x\" tests=\"${#names[@]}\" failures=\"$failures\" disabled=\"0\" skipped=\"0\">"
    for name in "${names[@]}"; do echo "<testcase name=\"$name\"/>"; done
} >"$folder/results.xml"
exit $((failures * 8))
STUB
# python3 has all modules and makes a virtual environment; pip takes 3 s.
cat >bin/python3 <<'STUB'
#!/bin/bash
if [[ $1$2 == -mvenv ]]; then
    folder=${*: -1}
    mkdir -p "$folder/bin"
    echo "VIRTUAL_ENV=\"$PWD/$folder\"" >"$folder/bin/activate"
    cp "$0" "$folder/bin/python"
    printf '#!/bin/bash\necho atoll 0\n' >"$folder/bin/atoll"
    chmod +x "$folder/bin/atoll"
    touch "$folder/bin/pip"
elif [[ $1$2 == -mpip ]]; then
    echo "  [7/90] Building" # pip -v indents it
    sleep 3
fi
[[ $* != *'import torch'* && $* != *scikit_build_core* ]]
STUB
printf '#!/bin/bash\necho "version 14.0"\n' >bin/clang-format
printf '#!/bin/bash\necho "31 warnings generated." >&2\n[[ ! -e untidy ]] || { echo "x.c:1: error: y"; exit 1; }\n' >bin/clang-tidy
printf '#!/bin/bash\n' >bin/shellcheck
for name in cc ninja pkg-config; do printf '#!/bin/bash\n' >bin/$name; done
chmod +x bin/*
touch failing
export PATH=$tmp/bin:$PATH ATOLL_NO_INSTALL=1
unset ATOLL_TEST_PRESETS CI
calls() { cat calls 2>/dev/null && rm -f calls; }

# --- a filter builds the targets of the selected tests, in each build
expect_success ./run test 'test_(b|e2e)'
expect_equal "calls" "$(calls | sort)" "build/asan: helper plugin programs test_b
build: helper plugin programs test_b
tested build/asan: test_b test_e2e
tested build: test_b test_e2e"
expect_equal "the last line" "$(tail -n 1 <<<"$out")" "4 passed, 0 failed"
ATOLL_TEST_PRESETS=tsan expect_success ./run test test_b
expect_equal "calls for a named build" "$(calls)" "build/tsan: plugin test_b
tested build/tsan: test_b"
expect_success ./run test --release lint_x
expect_equal "calls for a test without programs" "$(calls)" "tested build: lint_x"
expect_success ./run test --release
expect_equal "calls without a filter" "$(calls)" "build: all
tested build: test_a test_b test_e2e lint_x"

# --- the first failure answers a filter; without one all builds are tested
echo build >failing
run ./run test test_a
expect_equal "exit code" "$code" 1
grep -q '^tested build: test_a$' calls || fail "the test did not run: $(<calls)"
! grep -q '^tested build/' calls || fail "other builds are tested after a failure: $(<calls)"
[[ $out == *$'\n== stopping: a test of the release build failed; not run: asan\n0 passed, 1 failed' ]] || fail "unexpected output: $out"
rm calls
run ./run test
expect_equal "exit code" "$code" 1
expect_equal "tested builds without a filter" "$(calls | grep -c tested)" 2
: >failing

# --- what a user mistypes
run ./run test nothing_like_this
expect_equal "exit code" "$code" 1
expect_equal "the error" "$errors" "run: no test matches 'nothing_like_this': ctest --test-dir build -N lists the names"
! grep -q '^build' calls || fail "a filter without tests builds: $(<calls)"
expect_failure 2 'run: unknown option --relase of test: ./run test \[--all\] \[--release\] \[FILTER\]' ./run test --relase
expect_failure 2 'run: test takes one FILTER, *' ./run test a b

# --- a copied tree
mkdir -p old/build/asan copy/tests copy/build/asan copy/build/lint/build
cp -r run bin failing deploy copy
cp tests/verb_test.sh copy/tests
cd copy
for folder in build build/asan build/lint/build; do
    echo "CMAKE_HOME_DIRECTORY:INTERNAL=$tmp/old" >$folder/CMakeCache.txt
done
for verb in build test 'test x' 'test --release x'; do
    # shellcheck disable=SC2086 # words
    expect_failure 1 "run: build/ was made in another folder ($tmp/old): remove build/ and run this again" ./run $verb
done
rm build/CMakeCache.txt
ATOLL_TEST_PRESETS=asan expect_failure 1 \
    "run: build/asan/ was made in another folder ($tmp/old): remove build/asan/ and run this again" ./run test
mkdir -p build/python/bin
echo "VIRTUAL_ENV=$tmp/old/build/python" >build/python/bin/activate
expect_failure 1 "run: build/python/ was made in another folder ($tmp/old/build/python): remove build/python/ and run this again" ./run python
cd ..

# --- progress in a log
touch slow
expect_success ./run build
[[ $out =~ 'building build: '[0-9]+' s so far, step 12 of 361'$'\n' ]] || fail "a long build tells nothing: $out"
rm slow
expect_success ./run python
for line in 'creating build/python' 'installing scikit-build-core, which builds the package' \
    'building the package and installing it with compare into build/python'; do
    grep -qx "$line" <<<"$out" || fail "./run python does not name the step '$line': $out"
done
seconds='into build/python: [0-9]+ s' # on a busy machine a second may pass without its line
[[ $out =~ $seconds' so far, step 7 of 90'$'\n'.*$seconds$'\n' ]] ||
    fail "a long step of ./run python tells nothing: $out"

# --- lint shows errors, and not the counts of warnings in system headers
expect_success ./run lint
[[ $out == *'lint: tidy: passed ('* ]] || fail "unexpected output of lint: $out"
touch untidy
run ./run lint
expect_equal "exit code of lint" "$code" 1
[[ $out == *'x.c:1: error: y'*'lint: tidy: failed'* && $out != *'warnings generated'* ]] || fail "unexpected output of lint: $out"

# --- the real table of targets: a line for each test
table=$ATOLL_BIN/../test_targets.txt
if [[ -e $table ]]; then
    PATH=${PATH#*:}
    expect_equal "tests with a line in test_targets.txt" "$(cut -d' ' -f1 "$table" | sort)" \
        "$(ctest --test-dir "$ATOLL_BIN/.." -N | sed -nE 's/^ *Test +#[0-9]+: ([^ ]+).*/\1/p' | sort)"
    for line in 'test_units test_units' 'test_memory_plan test_memory_plan atoll_cuda_emulated' 'lint_text'; do
        grep -qx "$line" "$table" || fail "test_targets.txt lacks the line '$line'"
    done
    grep -q '^test_cli_run_script programs ' "$table" || fail "the targets of an end-to-end test lack the programs"
fi
done_testing
