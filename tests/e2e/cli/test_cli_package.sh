# `atoll VERB` runs atoll-VERB from PATH. prepare and generate leave to the Python package what they cannot do.
# shellcheck shell=bash source=tests/e2e/cli/cli.sh
source tests/e2e/cli/cli.sh || exit 1
atoll=$ATOLL_BIN/atoll
tree=$PWD
cd "$tmp"

# program NAME: writes a program, from standard input, into the folder bin of PATH.
program() { cat >"bin/$1" && chmod +x "bin/$1"; }
mkdir bin
export PATH=$tmp/bin:/usr/bin:/bin

# Without the package. No package index has it, so no text may name one: a stranger could register the name.
install='./run python, or ./run wheel for other machines'
expect_failure 2 "atoll: atoll board is part of the Python package: $install" "$atoll" board run
expect_failure 2 "atoll: atoll board is part of the Python package: $install" "$atoll" help board
expect_failure 2 "atoll: unknown verb 'bord': did you mean board? (see atoll --help)" "$atoll" bord
expect_failure 2 "atoll: unknown verb 'prepre': did you mean prepare? (see atoll --help)" "$atoll" prepre
expect_success "$atoll" --help
[[ $out == *$'\nof the Python package ('"$install"$'):\n\n  board '* ]] || fail "atoll --help: $out"
expect_success "$atoll" --help=words
[[ $out == *$'\nboard\t'* ]] || fail "atoll --help=words lacks board: $out"
echo '{"text":"a"}' | gzip >a.jsonl.gz
echo a >a.txt
: >b.parquet
: >c.zst
mkdir set
echo '{}' >set/state.json
needs="needs the Python package: $install"
expect_failure 2 "atoll: --tokenizer $needs" "$atoll" prepare no a.txt --tokenizer gpt2
expect_failure 2 "atoll: --field $needs" "$atoll" prepare no a.txt --field=content
expect_failure 2 "atoll: --chat $needs" "$atoll" prepare no a.txt --chat
expect_failure 2 "atoll: a.jsonl.gz $needs" "$atoll" prepare no a.txt a.jsonl.gz
expect_failure 2 "atoll: b.parquet $needs" "$atoll" prepare no b.parquet
expect_failure 2 "atoll: c.zst $needs" "$atoll" prepare no c.zst
expect_failure 2 "atoll: - $needs" "$atoll" prepare no -
expect_failure 2 "atoll: set $needs" "$atoll" prepare no set
expect_failure 2 "atoll: lines.jsonl $needs" "$atoll" prepare no a.txt lines.jsonl
[[ ! -e no ]] || fail "a refused prepare leaves a folder"

# With it: arguments, input, output, exit code and signals are those of the program.
program atoll-board <<'SH'
#!/bin/sh
printf '<%s>' "$@"
cat
echo problem >&2
exit 7
SH
run "$atoll" board 'a run' --once --x= '' < <(printf in)
expect_equal "arguments and input" "$out" '<a run><--once><--x=><>in'
expect_equal "exit code" "$code" 7
expect_equal "standard error" "$errors" problem
run "$atoll" help board </dev/null
expect_equal "atoll help board" "$out" '<--help>'
program atoll-die <<'SH'
#!/bin/sh
kill -TERM $$
SH
run "$atoll" die
expect_equal "exit code after a signal" "$code" 143
program atoll-signals <<'SH'
#!/bin/sh
sed -n 's/^SigIgn:\t//p' /proc/self/status
SH
run "$atoll" signals
expect_equal "ignored signals" "$out" "$(bin/atoll-signals)"
program atoll-text <<'SH'
#!/bin/no-such-interpreter
SH
expect_failure 1 'atoll: cannot start atoll-text: the interpreter that it names is missing*' "$atoll" text
: >bin/atoll-plain # not executable
expect_failure 2 "atoll: unknown verb 'plain'*" "$atoll" plain
mkdir atoll-x
cp bin/atoll-board atoll-x/run
expect_failure 2 "atoll: unknown verb 'x/run'*" "$atoll" x/run
expect_failure 2 "atoll: unknown verb '--board'*" "$atoll" --board
program atoll-codec </dev/null # a built-in verb stays
expect_success "$atoll" codec list
[[ $out == *int8* ]] || fail "a program atoll-codec replaces the built-in verb"

# The package takes the whole command line, once an option or input needs it.
program atoll-prepare <<'SH'
#!/bin/sh
echo "taken: $*"
SH
for words in 'no a.txt --tokenizer gpt2' 'no --field=content a.txt' 'no a.txt --chat' 'no a.txt --separator none' \
    'no a.txt --processes 2' 'no --seed 3 a.txt a.jsonl.gz' 'no A.JSONL.GZ' 'no lines.jsonl' 'no - --force' 'no set'; do
    cp a.jsonl.gz A.JSONL.GZ
    # shellcheck disable=SC2086 # split into words
    expect_success "$atoll" prepare $words
    expect_equal "prepare $words" "$out" "taken: $words"
done
expect_success "$atoll" prepare bytes a.txt --tokenizer bytes
[[ -e bytes/train_000000.bin ]] || fail "prepare of plain text needs the package"
expect_failure 2 'atoll: unknown option --sed: did you mean --seed?*' "$atoll" prepare no a.jsonl.gz --sed 3
rm bin/atoll-prepare

# No message and no document tells people to install a name that the project does not hold.
if [[ -e $tree/docs ]]; then
    ! grep -rnE "pip [i]nstall '?atoll" "$tree"/{README.md,docs,cli,common,worker,coordinator,wire,examples,run,tests/e2e} ||
        fail "these lines name a package that no index has"
fi
done_testing
